"""The commands: one module each, imported when invoked; its Typer app is `app`."""

from __future__ import annotations
