"""The ground floor: mechanisms that know nothing of agents.

Reading order: `private_files` (files for their owner only), `atomic_write` (replacing them),
`journal` (appending to them), `environment` (what a child process inherits), `programs` (finding and
running helper programs), `git` (git without foreign configuration), `process_privacy` (who can read
this process), `process_tree` (the processes below this one), `process` (supervised commands), `sandbox`
(what commands may do), `below` (files reached through no link), `redaction` with `secret_shapes` and
`secret_names` (secrets in texts), and the small rules that several share: `addresses`, `did_you_mean`,
`escape_sequences`, `include_lines`, `printable`, `provider_order`, `usage`.
Standard library only; kernel, modules and app may import it.
"""
