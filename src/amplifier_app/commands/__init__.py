"""The commands: one module each, holding its Typer app as `app`, imported when invoked."""

from __future__ import annotations
