"""The kinds of documents and the sections each may hold."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

SECTION_KINDS = MappingProxyType({"providers": "provider", "tools": "tool", "hooks": "hook"})
"""Section with a list of modules → kind of its modules."""

ENTRY_SECTIONS = tuple(SECTION_KINDS)

PARTS = ("orchestrator", "context")
"""The parts of `session` that are a module each; the name of a part is the kind of its module."""

_OVERLAY_SECTIONS = (
    "exclude",
    "instruction",
    "session",
    "fallbacks",
    *PARTS,
    *ENTRY_SECTIONS,
)
_MODULE_SECTIONS = (*_OVERLAY_SECTIONS, "agents")


DISPLAY = {"show": ("user", "developer", "internal"), "screen": ("full", "plain", "answer")}
"""The keys of `display` in settings, and the values of each."""


class Shape(NamedTuple):
    """The sections of one kind of document.

    Attributes:
        what: Its name in problems.
        keys: Its sections.
        start: The hint for an empty document; None if it may be empty.
        elsewhere: The hints for sections that belong in other documents.
        tables: Keys of the published form that may contain top-level sections.
        lenient: Whether it has the published form, in which unknown sections belong to other
            programs, unless they look misspelt.
        bundle: Whether it is a bundle, in which all unknown keys belong to other programs.
    """

    what: str
    keys: tuple[str, ...]
    start: str | None = None
    elsewhere: Mapping[str, str] = MappingProxyType({})
    tables: tuple[str, ...] = ()
    lenient: bool = False
    bundle: bool = False


PLAN = Shape(
    "the plan",
    ("name", "description", "extends", *_MODULE_SECTIONS),
    "start with 'session:' or 'extends: default'",
    MappingProxyType(
        {
            "profile": "set it in settings; a plan uses 'extends: NAME'",
            "sources": "set it in settings; in a plan, set 'source:' of the module",
            "bundle": "a bundle is declared with 'bundle: {name: NAME}'",
            "includes": "only bundles have it: add 'bundle: {name: NAME}', or use 'extends: NAME'",
        }
    ),
    tables=("profile", "bundle"),
)
AGENT = Shape(
    "the agent",
    ("description", *_OVERLAY_SECTIONS),
    elsewhere=MappingProxyType({"agents": "agents cannot have agents of their own"}),
)
AGENT_FILE = AGENT._replace(
    keys=("name", *AGENT.keys), start="start with 'description:'", tables=("meta", "agent")
)
SETTINGS = Shape(
    "the settings file",
    ("profile", "sources", "display", *_MODULE_SECTIONS),
    elsewhere=MappingProxyType(
        {
            "extends": "settings apply to every profile; choose one with 'profile: NAME'",
            "name": "only plans and profiles have a name",
            "description": "only plans and profiles have a description",
        }
    ),
)
