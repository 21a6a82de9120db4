"""The kinds of documents and the sections each may hold."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

ENTRY_SECTIONS = ("providers", "tools", "hooks")
PARTS = ("orchestrator", "context")

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
"""The keys of `display` in settings, and what each can say."""


class Shape(NamedTuple):
    """What one kind of document may hold.

    Attributes:
        what: What it is called in problems.
        keys: Its sections.
        start: What an empty one could start with; None if it may be empty.
        elsewhere: What to do about sections of other documents that have no place in it.
        tables: Keys of the published form below which what else stands at the top may stand.
        lenient: Whether it is of the published form, in which sections that are not known are
            those of other programs, unless they look misspelt.
        bundle: Whether it is a bundle: all that is not known is that of other programs.
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
            "profile": "that belongs into settings; a plan says 'extends: NAME'",
            "sources": "that belongs into settings; in a plan a module has its own 'source:'",
            "bundle": "a bundle says 'bundle: {name: NAME}'",
            "includes": "bundles include others: add 'bundle: {name: NAME}'; a plan says "
            "'extends: NAME'",
        }
    ),
    tables=("profile", "bundle"),
)
AGENT = Shape(
    "the agent",
    ("description", *_OVERLAY_SECTIONS),
    elsewhere=MappingProxyType({"agents": "an agent has no agents of its own"}),
)
AGENT_FILE = AGENT._replace(
    keys=("name", *AGENT.keys), start="start with 'description:'", tables=("meta", "agent")
)
SETTINGS = Shape(
    "the settings file",
    ("profile", "sources", "display", *_MODULE_SECTIONS),
    elsewhere=MappingProxyType(
        {
            "extends": "settings lie on top of every profile; 'profile: NAME' chooses one",
            "name": "only plans and profiles have a name",
            "description": "only plans and profiles have a description",
        }
    ),
)
