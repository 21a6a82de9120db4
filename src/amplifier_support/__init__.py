"""The ground floor: mechanisms that know nothing of agents.

Reading order: `files` (read and replace files: whole or not at all, for their owner only, through
no link), `journal` (append to them), `environment` (what a child process inherits, and who can read
this one), `programs` with `async_programs` (find and run git, rg, uv and shells), `process_tree` (the processes below this
one), `process` (supervised programs), `sandbox` (what commands may do), `run_later` (files that run
later), `redaction` with `secret_shapes` (secrets in texts), `session_capabilities` and
`provider_batches` (what parts of a session share), `provider_access` (which key goes to which address), and the small rules that several use: `addresses`,
`clock`, `code_cache` (modules from one file), `delegate`, `fields`, `images`, `include_lines`, `installation`, `named_tuple`, `path_patterns`, `price_lists`,
`project_folders`, `provider_order`, `text`, `usage`, `working_folder`. Standard library only; kernel, modules and app may import it.
"""
