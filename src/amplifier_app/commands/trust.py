"""`amplifier trust`: review a project's configuration and trust it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.sanitize import visible
from amplifier_app.base.stdio import stdin_is_tty, to_stderr
from amplifier_app.chat.terminal_modes import forget_typed
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.render.table import Column, Format, OutputOption, print_listing
from amplifier_app.trust import (
    Content,
    Record,
    TrustStore,
    examine,
    instruction_sources,
    review,
    trusted_dir,
)
from amplifier_support.project_folders import find_hook_files, project_folders


def trust(
    path: Annotated[
        Path | None, argument("PATH", "Folder of the project. [default: working directory]")
    ] = None,
    show: Annotated[
        bool, option("--show", "Show the .amplifier folder in full without asking.")
    ] = False,
    yes: Annotated[bool, option("-y, --yes", "Trust the project without asking.")] = False,
    always: Annotated[
        bool,
        option(
            "--always",
            "Always trust this project, including future changes (for projects only you write to).",
        ),
    ] = False,
    revoke: Annotated[bool, option("--revoke", "Revoke trust.")] = False,
    list_: Annotated[bool, option("--list", "List the projects you trust.")] = False,
    output: OutputOption = "text",
) -> None:
    """Review a project's configuration and instruction files, and trust it.

    \b
      amplifier trust
      amplifier trust --show
      amplifier trust ~/project --yes

    Shows the project's .amplifier folder and what it selects outside that folder, or the changes
    since you last trusted it, and asks. Settings, profiles, agents and modules of a project apply
    only if you trust it, and only then does the model read its AGENTS.md, CLAUDE.md and skills.
    """
    if sum((show, yes or always, revoke, list_)) > 1:
        raise UsageError("--show, --yes or --always, --revoke and --list are mutually exclusive")
    if list_:
        _list(path, output)
    elif revoke:
        _revoke(path)
    else:
        _look(path, output, only_show=show, agreed=yes, always=always)


def _look(
    path: Path | None, output: Format, *, only_show: bool, agreed: bool, always: bool
) -> None:
    store = TrustStore()
    folder = _project(path)
    record = store.record(folder.parent)
    content = _content(folder, must=not always)
    trusted = record is not None and record.allows(content)
    decide = not only_show and not (trusted and (record is None or record.always or not always))
    if output == "text":
        _print(content, record, trusted=trusted, whole=only_show)
    if decide and (agreed or _agrees(content, always)):
        record, trusted, decide = store.trust(content, always=always), True, False
        to_stderr(f"amplifier: {visible(str(content.root))} is now trusted")
    if output == "json":
        print(json_text(_facts(content, record, trusted=trusted)))
    if decide:
        raise ConfigError(f"trust of {visible(str(content.root))} is unchanged")


def _project(path: Path | None) -> Path:
    folder = paths.project_dir(path)
    here = str(path or os.getcwd())
    root = Path(next(iter(project_folders(here)), here))
    if folder is not None:
        return folder
    if instruction_sources(here) or find_hook_files(root):
        return root / paths.PROJECT_FOLDER
    if path is not None and not path.is_dir():
        raise UsageError(f"{visible(here)} is not a folder", hint="Pass the folder of a project.")
    hint = "A project has a .amplifier folder, an AGENTS.md, skills, or hooks of another agent."
    raise ConfigError(f"no project at {visible(here)}", hint=hint)


def _content(folder: Path, *, must: bool) -> Content:
    """The project's contents; empty if they cannot be read and are not needed."""
    try:
        return examine(folder)
    except ConfigError as error:
        if must:
            raise
        to_stderr(f"amplifier: {error.message}")
        return Content(folder, {}, frozenset(), {})


def _agrees(content: Content, always: bool) -> bool:
    """Ask on the terminal whether to trust the project.

    Raises:
        ConfigError: There is no terminal.
    """
    terminal = next((fd for fd in (1, 2) if os.isatty(fd)), None)
    if terminal is None or not stdin_is_tty():
        raise ConfigError(
            f"cannot ask whether to trust {visible(str(content.root))} without a terminal",
            hint="Pass --yes to trust it.",
        )
    from amplifier_app.chat.ask import Stopped, ask_on_terminal

    forget_typed()
    what = "including future changes" if always else "with its current contents"
    effect = "Its code runs with your rights." if content.entries else "It has no code to run."
    question = f"Trust {visible(str(content.root))} {what}? {effect}"
    try:
        return run_loop(ask_on_terminal(terminal, question, ["yes", "no"], None)) == "yes"
    except Stopped:
        return False


def _print(content: Content, record: Record | None, *, trusted: bool, whole: bool) -> None:
    print(f"{visible(str(content.root))}: {_state(record, trusted)}")
    if trusted and not whole:
        return
    if texts := instruction_sources(str(content.root)):
        print(f"\n{review.INSTRUCTIONS}\n")
        print("\n".join(f"  {visible(str(text))}" for text in texts))
    before = {} if record is None or record.always or trusted else record.entries
    head = "Changes since you last trusted it:" if before else "Contents:"
    for title, lines in (
        ("Files:", review.listing(content)),
        ("Selects:", review.selection(content)),
        (head, [*review.changes(before, content.entries)]),
    ):
        if lines:
            print("\n".join(["", title, "", *(f"  {line}" for line in lines)]))


def _state(record: Record | None, trusted: bool) -> str:
    if record is None:
        return "not trusted"
    day = record.time[:10]
    if record.always:
        return f"trusted since {day}, including future changes"
    return f"trusted since {day}" if trusted else f"changed since it was trusted on {day}"


def _facts(content: Content, record: Record | None, *, trusted: bool) -> dict[str, Any]:
    before = {} if record is None or record.always else record.entries
    return {
        "schema_version": 1,
        "project": str(content.root),
        "trusted": trusted,
        "always": record is not None and record.always,
        "time": record.time if record else None,
        "hash": content.hash,
        "trusted_hash": record.hash if record else None,
        "instructions": [str(text) for text in instruction_sources(str(content.root))],
        "files": [
            {"name": name, "kind": entry.kind, "size": entry.size, "sha256": entry.digest}
            for name, entry in content.entries.items()
        ],
        "selects": [
            {"at": str(fact.at), "what": fact.what, "text": fact.text}
            for fact in review.facts(content)
        ],
        "changes": [*review.changes(before, content.entries)],
    }


def _revoke(path: Path | None) -> None:
    # The trusted folder may no longer exist.
    folder = paths.project_dir(path)
    here = os.path.realpath(path or os.getcwd())
    root = folder.parent if folder else Path(trusted_dir(here) or here)
    known = TrustStore().revoke(root)
    state = "is no longer trusted" if known else "was not trusted"
    to_stderr(f"amplifier: {visible(str(root))} {state}")


def _list(path: Path | None, output: Format) -> None:
    if path is not None:
        raise UsageError("--list does not take a path", hint="Run: amplifier trust --list")
    rows = [(record, _now(record)) for record in TrustStore().records()]
    facts = [
        {
            "project": str(record.root),
            "time": record.time,
            "hash": record.hash,
            "always": record.always,
            "now": now,
        }
        for record, now in rows
    ]
    cells = [
        (visible(str(record.root)), record.time[:10], "always" if record.always else now)
        for record, now in rows
    ]
    columns = (Column("PROJECT", "middle", least=20), Column("SINCE", drop=1), Column("NOW"))
    print_listing(output, facts, columns, cells, "No trusted projects.")


def _now(record: Record) -> str:
    """Describe whether a project has changed since it was trusted."""
    folder = paths.project_dir(record.root)
    if folder is None or folder.parent != record.root:
        if not instruction_sources(str(record.root)) and not find_hook_files(record.root):
            return "gone"
        folder = record.root / paths.PROJECT_FOLDER
    if record.always:
        return "trusted"
    try:
        return "trusted" if record.allows(examine(folder)) else "changed"
    except ConfigError:
        # `amplifier trust` in that project shows the reason.
        return "unreadable"
