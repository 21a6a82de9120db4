"""The ground floor: mechanisms of the operating system that know nothing of agents.

Reading order: `environment` (what a child process inherits), `programs` (finding and running helper
programs), `git` (git without foreign configuration), `process_privacy` (who can read this process).
Standard library only; kernel, modules and app may import it.
"""
