"""`amplifier policy suggest`."""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated, Any

import typer
import yaml

from amplifier_app.base.redact import redact
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.tree.nodes import NOWHERE, ListNode, to_node, with_items
from amplifier_app.runtime.approvals import open_policy
from amplifier_app.runtime.describe import count
from amplifier_kit.policy.rules import ModeOption, SavedCall, describe_call, saved_calls
from amplifier_support.files import is_below
from amplifier_support.named_tuple import NamedTuple

_SECRET = re.compile(r"\[REDACTED(?::[a-z0-9-]+)?\]")


_FOLDER_FROM = 3
"""Files of one folder from which a rule names the folder instead of each file."""


class Suggestion(NamedTuple):
    """Rules for the calls of a session.

    Attributes:
        rules: The rules.
        without: Calls that no rule can allow.
        needed: How many calls they are for.
    """

    rules: list[dict[str, Any]]
    without: list[SavedCall]
    needed: int


@takes_plan_options("profile", "plan", "sets")
def suggest_command(
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Session id, the start of one, or a short id.", show_default=False
        ),
    ],
    *,
    request: Request,
    mode: ModeOption = None,
) -> None:
    """Print the rules that allow what a session did, as `approvals` of a plan.

    \b
      amplifier policy suggest 1a2b3c
      amplifier policy suggest 1a2b3c >> plan.yaml

    Calls that need no approval and calls that were denied get no rule. Review the rules before
    you use them.
    """
    chosen = chosen_plan(request)
    calls = list(saved_calls([id]))
    suggestion = run_loop(_suggestion(chosen, calls, mode))
    for call in suggestion.without:
        to_stderr(f"amplifier: no rule can allow: {describe_call(call.tool, call.input)}")
    if not suggestion.rules:
        to_stderr("amplifier: no rules needed" if not suggestion.without else "amplifier: no rules")
        return
    print(f"# For {count(suggestion.needed, 'call')} of session {calls[0].session_id}")
    print("approvals:")
    for rule in suggestion.rules:
        text = yaml.safe_dump(
            rule, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000
        )
        print(f"  - {text.strip()}")


async def _suggestion(plan: ResolvedPlan, calls: list[SavedCall], mode: str | None) -> Suggestion:
    async with open_policy(plan) as decide:
        needed = [
            call
            for call in calls
            if not call.was_denied
            and decide(call.tool, call.input, working_dir=call.project, mode=mode).action == "ask"
        ]
    rules = rules_for(needed)
    # The same rules decide here as in a session, so what they do not allow is known.
    async with open_policy(_with_rules(plan, rules)) as decide:
        refused = {
            (call.session_id, call.number)
            for call in needed
            if decide(call.tool, call.input, working_dir=call.project, mode=mode).action != "allow"
        }
    without = [call for call in needed if (call.session_id, call.number) in refused]
    allowed = [call for call in needed if (call.session_id, call.number) not in refused]
    return Suggestion(rules_for(allowed), without, len(allowed))


def _with_rules(plan: ResolvedPlan, rules: list[dict[str, Any]]) -> ResolvedPlan:
    below = plan.tree.items.get("approvals")
    added = [to_node(rule, NOWHERE, literal=True) for rule in rules]
    existing = below.items if isinstance(below, ListNode) else ()
    approvals = ListNode([*added, *existing], NOWHERE)
    return plan.with_tree(with_items(plan.tree, {**plan.tree.items, "approvals": approvals}))


def rules_for(calls: Iterable[SavedCall]) -> list[dict[str, Any]]:
    """The narrowest rules of few patterns that could allow calls; a wildcard stands for a secret."""
    commands: dict[str, list[list[str]]] = defaultdict(list)
    paths: dict[tuple[str, ...], set[str]] = defaultdict(set)
    files: dict[str, set[str]] = defaultdict(set)
    others: set[str] = set()
    for call in calls:
        tool = _escaped_path(redact(call.tool))
        command = call.input.get("command")
        path = call.input.get("file_path", call.input.get("path"))
        if isinstance(command, str):
            words = _words(redact(command))
            if words and words not in commands[tool]:
                commands[tool].append(words)
        elif isinstance(path, str):
            files[tool].add(redact(_relative(path, call.project)))
        else:
            others.add(tool)
    for tool, names in files.items():
        patterns = tuple(_path_patterns(names))
        paths[patterns].add(tool)
    rules: list[dict[str, Any]] = [
        {"action": "allow", "tool": _one_or_many(sorted(tools)), "path": _one_or_many(patterns)}
        for patterns, tools in paths.items()
    ]
    for tool, word_lists in commands.items():
        patterns = _command_patterns(word_lists)
        rules.append({"action": "allow", "tool": tool, "command": _one_or_many(patterns)})
    rules += [{"action": "allow", "tool": tool} for tool in sorted(others)]
    return rules


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _command_patterns(commands: list[list[str]]) -> list[str]:
    """A pattern for each command, or one for several that begin with the same two words."""
    groups: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for words in commands:
        groups[tuple(words[:2])].append(words)
    patterns: list[str] = []
    for start, group in groups.items():
        if len(group) > 1 and len(start) == 2:
            patterns.append(" ".join([*map(_escaped, start), "*"]))
        else:
            # A pattern is split at spaces: a word with a space is matched by wildcards.
            patterns += [" ".join(map(_escaped, words)) for words in group]
    return patterns


def _escaped(word: str) -> str:
    escaped = re.sub(r"\s", "?", _escaped_path(word))
    # At the end, `*` alone would match more words.
    return "?*" if escaped == "*" else escaped or "?"


def _path_patterns(names: set[str]) -> list[str]:
    folders: dict[str, set[str]] = defaultdict(set)
    for name in names:
        folders[os.path.dirname(name)].add(name)
    patterns: list[str] = []
    for folder, inside in sorted(folders.items()):
        if len(inside) >= _FOLDER_FROM and folder:
            patterns.append(f"{_escaped_path(folder)}/*")
        else:
            patterns += [_escaped_path(name) for name in sorted(inside)]
    return patterns


def _escaped_path(path: str) -> str:
    parts = _SECRET.split(path)
    return "*".join(re.sub(r"([*?\[])", r"[\1]", part) for part in parts)


def _relative(path: str, project: str) -> str:
    base = os.path.realpath(project)
    real = os.path.realpath(os.path.join(base, path))
    return os.path.relpath(real, base) if is_below(real, base) else real


def _one_or_many(items: Iterable[str]) -> str | list[str]:
    listed = list(items)
    return listed[0] if len(listed) == 1 else listed
