"""Module kinds as values of options and arguments."""

from __future__ import annotations

from enum import Enum


class Kind(str, Enum):  # noqa: UP042 - Typer shows the members' values
    """The kinds of modules."""

    PROVIDER = "provider"
    TOOL = "tool"
    HOOK = "hook"
    ORCHESTRATOR = "orchestrator"
    CONTEXT = "context"
