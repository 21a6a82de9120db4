"""The kinds of modules, and the sections of a plan that hold them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

ModuleKind = Literal["provider", "tool", "hook", "orchestrator", "context"]

SECTION_KINDS = MappingProxyType({"providers": "provider", "tools": "tool", "hooks": "hook"})
"""Section with a list of modules → kind of its modules."""

SECTION_OF = MappingProxyType({kind: section for section, kind in SECTION_KINDS.items()})
"""Kind of module → the section that lists its modules."""

ENTRY_SECTIONS = tuple(SECTION_KINDS)

PARTS = ("orchestrator", "context")
"""The parts of `session` that are a module each; the name of a part is the kind of its module."""
