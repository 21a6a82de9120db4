"""Attempts to leave the sandbox, run by `tests/e2e/test_sandbox_escapes.py`.

Each is a numbered function of an `attempts_*` file. They run inside the sandbox in a plain
interpreter: standard library only.
"""
