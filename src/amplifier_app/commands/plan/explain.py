"""`amplifier plan explain`."""

from __future__ import annotations

import json
import os
import shlex
from typing import Annotated, Any

import typer

from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.plan.explain.explanation import Explained, explain
from amplifier_app.plan.explain.history import as_json, dotted
from amplifier_app.plan.tree.nodes import MapNode, Node, plain_data
from amplifier_app.plan.tree.writing import place_of, yaml_text
from amplifier_app.render.table import OutputOption

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("explain")
@takes_plan_options("profile", "plan", "provider", "model", "sets")
def explain_command(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH.TO.KEY", help="For example tools.tool-bash.config.timeout."),
    ],
    *,
    request: Request,
    output: OutputOption = "text",
) -> None:
    """Show a value of the plan, where it is set, and what it replaced, file by file.

    \b
      amplifier plan explain session.orchestrator
      amplifier plan explain tools.tool-bash -f plan.yaml

    For a config key that is not set, shows its default and description.
    """
    chosen = chosen_plan(request, keep_unset=True)
    try:
        found = explain(chosen, path)
    except ConfigError:
        if not os.path.isfile(path):
            raise
        hint = (
            f"Pass a plan file with -f: amplifier plan explain PATH.TO.KEY -f {shlex.quote(path)}"
        )
        raise UsageError(f"{path!r} is a file, not a key of the plan", hint=hint) from None
    if output == "json":
        print(json_text([_facts(one) for one in found]))
        return
    for index, one in enumerate(found):
        if index:
            print()
        for line in _lines(one):
            print(for_terminal(line))


def _facts(one: Explained) -> dict[str, Any]:
    value: dict[str, Any] = {"path": dotted(one.path), "value": None, "at": None, "replaced": []}
    if one.value is not None:
        value = as_json(one.value)
    rule = one.rule or {}
    known = {key: rule[key] for key in ("default", "description") if key in rule}
    return {**value, "set": one.value is not None, **known}


def _lines(one: Explained) -> list[str]:
    name = dotted(one.path)
    rows: list[tuple[str, str]] = []
    if one.value is None:
        text = f"{name} is not set"
    else:
        text = yaml_text(MapNode({name: one.value.node}, one.value.node.at)).rstrip()
        rows.append(("set in", place_of(one.value.node)))
        if one.value.written is not None:
            rows.append(("written as", one.value.written))
        if one.value.gone is not None:
            rows.append(("but", one.value.gone))
        rows += [("replaces", f"{_short(old)}  ({place_of(old)})") for old in one.value.replaced]
    rule = one.rule or {}
    if "default" in rule:
        rows.append(("default", json.dumps(rule["default"], ensure_ascii=False)))
    if "description" in rule:
        rows.append(("meaning", str(rule["description"])))
    width = max((len(label) for label, _ in rows), default=0)
    details = [f"  {label.ljust(width)}  {one_line(value, 400)}" for label, value in rows]
    return [*text.splitlines(), *details]


def _short(node: Node) -> str:
    return one_line(json.dumps(plain_data(node), ensure_ascii=False), 80)
