"""`amplifier report`: what a bug report needs, in one file."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import re
from collections import deque
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, cast

from amplifier_app.base.errors import SessionError
from amplifier_app.base.file_writing import write_new
from amplifier_app.base.own_packages import version_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.answers import YesOption, confirm
from amplifier_app.commands.doctor import check_state, examine
from amplifier_app.commands.typer_options import option
from amplifier_app.runtime import describe
from amplifier_app.runtime.export.parts import redactor
from amplifier_app.sessions.store import SessionStore
from amplifier_support.clock import utc_now
from amplifier_support.named_tuple import NamedTuple

_MAX_EVENTS = 1000
_TEXTS = frozenset({"title", "project", "profile"})
"""Metadata about the content of a session."""

_NAMES = re.compile(
    r"(?:.*_)?ids?|event|level|ts|tools?|tool_name|provider|orchestrator|model|module|hook|agent|mode"
    r"|(?:.*_)?type|role|status|reason|limit|decided_by"
)
"""Keys of events whose text, if it has no white space, is a name."""

_GIVEN = frozenset({"input", "tool_input", "arguments", "result", "output", "tool_result"})
"""Keys of events with values of the model and of tools, whatever their keys are called."""

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")
"""Keys in them that are names: others may be texts, such as addresses."""

_MAX_NAME = 100
_MAX_ERROR = 1000


class Section(NamedTuple):
    """A part of the report."""

    title: str
    about: str
    text: str


def report(
    session: Annotated[
        str | None, option("--session ID", "The session to report on. [default: the last one here]")
    ] = None,
    texts: Annotated[
        bool, option("--texts", "Include prompts, answers and tool calls of the session.")
    ] = False,
    to: Annotated[Path | None, option("-o, --to FILE", "The new file to write.")] = None,
    yes: YesOption = False,
) -> None:
    """Write a file for a bug report: versions, setup, and what happened in a session.

    \b
      amplifier report
      amplifier report --session 1a2b3c --texts --to report.md

    Without --texts, only names, numbers and error messages of the session are included. Secrets are
    replaced by [REDACTED:…]. Lists what the file contains before it is written.
    """
    # The checks report the missing keys that modules log.
    logging.getLogger().addHandler(logging.NullHandler())
    redact = redactor().value
    sections = [_versions(), _setup(), *_session(session, redact, texts=texts)]
    sections = [section._replace(text=redact(section.text)) for section in sections]
    file = to or Path(f"amplifier-report-{utc_now().astimezone():%Y%m%d-%H%M%S}.md")
    to_stderr(f"{file} will contain:")
    for section in sections:
        size = describe.size(len(section.text.encode("utf-8", "replace")))
        to_stderr(f"  {section.title:<10}{section.about} ({size})")
    to_stderr("Secrets are replaced. Look through the file before you share it.")
    if not confirm("Write the file?", yes):
        to_stderr("Nothing was written.")
        return
    parts = [f"## {section.title}\n\n```\n{section.text.rstrip()}\n```\n" for section in sections]
    write_new(file, "\n".join(["# Amplifier report\n", *parts]))
    print(f"Written to {file}.")


def _versions() -> Section:
    lines = [version_line(), f"Python {platform.python_version()}", platform.platform()]
    with contextlib.suppress(metadata.PackageNotFoundError):  # run from a folder
        for requirement in metadata.requires("amplifier") or []:
            name = re.match(r"[\w.-]+", requirement)
            if name is not None and "extra ==" not in requirement:
                lines.append(f"{name[0]} {_version(name[0])}")
    return Section("Versions", "Amplifier, Python, the system and packages", "\n".join(lines))


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "is not installed"


def _setup() -> Section:
    checks = [f"{check_state(check):<5} {check.name}: {check.message}" for check in examine()]
    return Section("Setup", "the output of 'amplifier doctor'", "\n".join(checks))


def _session(session_id: str | None, redact: Callable[[Any], Any], *, texts: bool) -> list[Section]:
    store = SessionStore()
    try:
        session = store.latest(os.getcwd()) if session_id is None else store.find(session_id)
    except SessionError:
        if session_id is not None:
            raise
        return []
    # Before texts are cut: half a secret is not recognized.
    events = map(redact, deque(session.events(), _MAX_EVENTS))
    excerpt = [event if texts else _without_texts(event) for event in events]
    kept = "with all texts" if texts else "texts replaced by their length"
    count = describe.count(len(excerpt), "event")
    kept_facts = {
        key: value for key, value in session.metadata.items() if texts or key not in _TEXTS
    }
    facts = json.dumps(redact(kept_facts), indent=2, ensure_ascii=False, default=str)
    sections = [Section("Session", f"{session.id}: plan digest, models, modules, usage", facts)]
    if excerpt:
        lines = "\n".join(json.dumps(record, ensure_ascii=False, default=str) for record in excerpt)
        sections.append(Section("Events", f"the last {count}, {kept}", lines))
    return sections


def _without_texts(value: Any, key: str = "", *, given: bool = False) -> Any:
    """An event with the length of each text in its place; names and error messages are kept.

    Args:
        value: The event, or a part of it.
        key: The key of the part.
        given: Whether it is part of what a model or a tool wrote.
    """
    if isinstance(value, str):
        is_name = len(value) <= _MAX_NAME and not any(map(str.isspace, value))
        if key == "message" and not given:
            return value[:_MAX_ERROR]
        return value if is_name and not given and _NAMES.fullmatch(key) else _length(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {
            name if not given or _KEY.fullmatch(name) else _length(name): _without_texts(
                item, name, given=given or name in _GIVEN
            )
            for name, item in items
        }
    if isinstance(value, list):
        return [_without_texts(item, key, given=given) for item in cast("list[Any]", value)]
    return value


def _length(text: str) -> str:
    return f"[{describe.count(len(text), 'character')}]" if text else ""
