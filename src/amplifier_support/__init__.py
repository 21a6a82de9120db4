"""The ground floor: mechanisms that know nothing of agents.

Reading order: `private_files` (files for their owner only), `atomic_write` (replacing them),
`journal` (appending to them), `readable_files` (files that a user names), `below` (files reached
through no link), `environment` (what a child process inherits), `programs` and `async_programs`
(finding and running helper programs), `git` (git without foreign configuration), `process_privacy`
(who can read this process), `process_tree` (the processes below this one), `process` (supervised
programs), `sandbox` (what commands may do), `run_later` (files that run later), `redaction` with `secret_shapes` and `secret_names`
(secrets in texts), and the small rules that several share: `addresses`, `clock`, `did_you_mean`,
`escape_sequences`, `fields`, `folder_copies`, `include_lines`, `path_patterns`, `printable`,
`provider_order`, `usage`. Standard library only; kernel, modules and app may import it.
"""
