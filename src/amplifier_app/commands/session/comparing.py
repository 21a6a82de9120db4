"""`amplifier session diff`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.pager import show_paged
from amplifier_app.base.sanitize import for_pipe, for_terminal
from amplifier_app.base.stdio import terminal_width
from amplifier_app.render.ansi import paint
from amplifier_app.render.table import OutputOption
from amplifier_app.runtime import describe
from amplifier_app.runtime.export.parts import (
    build_parts,
)
from amplifier_app.runtime.observers.visibility import Visibility
from amplifier_app.sessions.conversation import Comparison, Item, compare
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.store import SessionStore
from amplifier_support.files import read_regular

diff_app = typer.Typer(add_completion=False, rich_markup_mode=None)


_CONTEXT_LINES = 3


@diff_app.command()
def diff(
    left: Annotated[str, typer.Argument(metavar="A", help="Session id.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Another one, such as a fork.")],
    no_pager: Annotated[bool, typer.Option("--no-pager", help="Do not use a pager.")] = False,
    output: OutputOption = "text",
) -> None:
    """Show where two sessions diverge and what differs after.

    \b
      amplifier session diff 1a2b3c 4d5e6f

    Ids, times and usage are not compared. Exits with 0 if the sessions are the same, else 1.
    """
    store = SessionStore()
    first, second = store.find(left), store.find(right)
    compared = compare(first.conversation(), second.conversation())
    is_same = not compared.left and not compared.right
    if output == "json":
        print(json_text(_as_data(first, second, compared)))
    elif is_same:
        print(f"{first.id} and {second.id} are the same.")
    else:
        on_terminal = terminal_width(1) is not None
        lines = [_where(compared), *_plan_lines(first, second), *_lines(first, second, compared)]
        safe = [for_terminal(line) if on_terminal else for_pipe(line) for line in lines]
        text = "\n".join(_coloured(line) for line in safe) if on_terminal else "\n".join(safe)
        show_paged(text + "\n", use_pager=not no_pager)
    raise typer.Exit(0 if is_same else 1)


def _where(compared: Comparison) -> str:
    step = compared.last_common_step
    if not compared.common:
        return "The sessions have nothing in common."
    same = describe.count(compared.common, "message")
    after = f" and part after step {step}" if step else ""
    return f"The sessions begin with the same {same}{after}."


def _plan_lines(first: SessionFolder, second: SessionFolder) -> list[str]:
    left, right = _plan(first), _plan(second)
    names = (f"{first.id}/plan.yaml", f"{second.id}/plan.yaml")
    return ["", *_unified(left, right, names)] if left != right else []


def _plan(session: SessionFolder) -> list[str]:
    try:
        return read_regular(session.plan).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _lines(first: SessionFolder, second: SessionFolder, compared: Comparison) -> list[str]:
    found = _unified(_text(compared.left), _text(compared.right), (first.id, second.id))
    return ["", *found]


def _text(items: Sequence[Item]) -> list[str]:
    lines: list[str] = []
    for part in build_parts(items, Visibility()):
        mark = {"prompt": "› ", "call": "  "}.get(part.kind, "")
        lines += [f"{mark}{line}" for line in part.text.strip("\n").splitlines()]
        lines.append("")
    return lines


def _unified(left: list[str], right: list[str], names: tuple[str, str]) -> list[str]:
    found = difflib.unified_diff(
        left, right, fromfile=names[0], tofile=names[1], lineterm="", n=_CONTEXT_LINES
    )
    return list(found)


def _coloured(line: str) -> str:
    if line.startswith(("---", "+++")):
        return paint(line, "bold")
    style = {"-": "red", "+": "green", "@": "cyan"}.get(line[:1])
    return paint(line, style) if style else line


def _as_data(first: SessionFolder, second: SessionFolder, compared: Comparison) -> dict[str, Any]:
    def items(found: Sequence[Item]) -> list[dict[str, str]]:
        return [{"kind": part.kind, "text": part.text} for part in build_parts(found, Visibility())]

    return {
        "a": first.id,
        "b": second.id,
        "same": not compared.left and not compared.right,
        "common_items": compared.common,
        "last_common_step": compared.last_common_step or None,
        "same_plan": _plan(first) == _plan(second),
        "only_a": items(compared.left),
        "only_b": items(compared.right),
    }
