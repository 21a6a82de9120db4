"""The sections of a plan that hold modules."""

from __future__ import annotations

from types import MappingProxyType

SECTION_KINDS = MappingProxyType({"providers": "provider", "tools": "tool", "hooks": "hook"})
"""Section with a list of modules → kind of its modules."""

ENTRY_SECTIONS = tuple(SECTION_KINDS)

PARTS = ("orchestrator", "context")
"""The parts of `session` that are a module each; the name of a part is the kind of its module."""
