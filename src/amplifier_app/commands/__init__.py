"""The commands: functions or Typer apps, each imported when it is invoked."""

from __future__ import annotations
