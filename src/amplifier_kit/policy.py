"""`amplifier policy`: one module per command, imported when invoked."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, cast

import typer
import yaml

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending
from amplifier_app.base.redact import redact, redactor
from amplifier_app.base.sanitize import visible
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.group import command_group
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.plan import ResolvedPlan
from amplifier_app.plan.tree.nodes import NOWHERE, ListNode, node_of, with_items
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.runtime.approvals import Decision, place_of_rule, policy_of
from amplifier_app.runtime.describe import count
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.tool_calls import CallNumbers, calls_in, results_in
from amplifier_support.files import is_below

app = command_group(
    "policy",
    {
        "test": "Show the decision on a tool call, and the rule that made it.",
        "replay": "Apply the rules to the tool calls of saved sessions.",
        "suggest": "Print the rules that allow what a session did.",
    },
    where="amplifier_kit.policy:{}_app",
    help="Test the rules for tool calls.",
)


ModeOption = Annotated[
    Literal["ask", "edits", "read-only", "auto"] | None,
    typer.Option("--mode", help="The mode to decide in. [default: the plan's]", show_default=False),
]

_KEYS = {"bash": "command", "web_fetch": "url", "web_search": "query", "grep": "pattern"}
_LONGEST = 200
_FILE_TOOLS = ("read_file", "write_file", "edit_file", "list_directory")


class SavedCall(NamedTuple):
    """A tool call of a saved session.

    Attributes:
        session_id: The session.
        number: The number of the call in it.
        tool: The tool.
        input: Its input; empty if the model sent none that is valid.
        project: The directory of the session.
        was_denied: Whether it did not run because it was denied.
    """

    session_id: str
    number: int
    tool: str
    input: Mapping[str, Any]
    project: str
    was_denied: bool


def parse_call(call: str, given: str | None) -> tuple[str, dict[str, Any]]:
    """The tool and input of a call: `bash: ls -l`, or a tool and its input as JSON.

    Raises:
        UsageError: It is not a call.
    """
    if given is not None:
        try:
            values: Any = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the input is not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise UsageError(
                "the input is not a JSON object", hint='For example: \'{"path": "src/a.py"}\''
            )
        return call, cast("dict[str, Any]", values)
    tool, colon, text = call.partition(":")
    tool, text = tool.strip(), text.strip()
    key = "path" if tool in _FILE_TOOLS else _KEYS.get(tool)
    if not colon or not tool or key is None:
        raise UsageError(
            f"cannot read the call '{visible(call, 200)}'",
            hint="Give 'bash: COMMAND', 'edit_file: PATH', or a tool and its input as JSON.",
        )
    return tool, {key: text}


def describe_call(tool: str, values: Mapping[str, Any]) -> str:
    """A call as one line, without secrets: `bash: ls -l`."""
    tool, values = redactor().value((tool, values))
    for key in (*_KEYS.values(), "file_path", "path"):
        if len(values) == 1 and isinstance(values.get(key), str):
            return visible(f"{tool}: {values[key]}", _LONGEST)
    if isinstance(values.get("command"), str):
        return visible(f"{tool}: {values['command']}", _LONGEST)
    path = next((values[key] for key in ("file_path", "path") if key in values), None)
    if isinstance(path, str):
        return visible(f"{tool}: {path}", _LONGEST)
    return visible(f"{tool} {json.dumps(dict(values), default=repr, ensure_ascii=False)}", _LONGEST)


def saved_calls(session_ids: Sequence[str]) -> Iterator[SavedCall]:
    """The tool calls of sessions, by id; of all sessions if none is given.

    Raises:
        SessionError: A session that was named is unknown or damaged.
    """
    store = SessionStore()
    for name in session_ids or [one.id for one in store.summaries()]:
        folder = store.find(name)
        try:
            calls = list(calls_of(folder.id, folder.metadata, folder.records()))
        except SessionError as error:
            if session_ids:
                raise
            to_stderr(f"amplifier: skipped session {name}: {error.message}")
            continue
        yield from calls


def calls_of(
    session_id: str, metadata: Mapping[str, Any], records: Iterable[Mapping[str, Any]]
) -> Iterator[SavedCall]:
    """The tool calls in the transcript of a session, whose records are read twice."""
    numbers = CallNumbers()
    project = str(metadata.get("project") or os.getcwd())
    denied = {
        call_id
        for record in records
        for call_id, result in results_in(record)
        if isinstance(result, str) and result.startswith("denied: ")
    }
    for record in records:
        for number, call in zip(numbers.add(record), calls_in(record), strict=False):
            values = cast("dict[str, Any]", call.input) if isinstance(call.input, dict) else {}
            yield SavedCall(session_id, number, call.name, values, project, call.id in denied)


test_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@test_app.command("test")
@takes_plan_options("profile", "plan", "sets")
def show_decision(
    call: Annotated[
        str,
        typer.Argument(metavar="CALL", help="The call, as 'bash: rm -rf build', or a tool."),
    ],
    input: Annotated[
        str | None,
        typer.Argument(metavar="JSON", help="The input of the tool.", show_default=False),
    ] = None,
    *,
    request: Request,
    mode: ModeOption = None,
    output: OutputOption = "text",
) -> None:
    """Show the decision on a tool call, and the rule that made it.

    \b
      amplifier policy test 'bash: rm -rf build'
      amplifier policy test 'edit_file: src/app.py' --mode edits
      amplifier policy test web_fetch '{"url": "https://example.com"}'

    Decides like a session in this directory would, without asking or running anything. Exits with 0
    if the call is allowed, and with 8 if it is denied or needs approval.
    """
    tool, values = parse_call(call, input)
    chosen = chosen_plan(request)
    decision = run_loop(_decision(chosen, tool, values, mode))
    place = place_of_rule(chosen, decision)
    facts = {
        "decision": decision.action,
        "by": decision.by,
        "reason": decision.reason,
        "at": place,
    }
    if output == "json":
        print(json_text(redactor().value({"tool": tool, "input": values, **facts})))
    else:
        print(f"{decision.action:<6} {describe_call(tool, values)}")
        print(f"by     {decision.by}{f' ({place})' if place else ''}")
        if decision.reason:
            print(f"reason {decision.reason}")
    if decision.action != "allow":
        raise typer.Exit(Ending.DENIED.exit_code)


async def _decision(
    plan: ResolvedPlan, tool: str, values: dict[str, Any], mode: str | None
) -> Decision:
    async with policy_of(plan) as decide:
        return decide(tool, values, mode=mode)


replay_app = typer.Typer(add_completion=False, rich_markup_mode=None)


class _Replayed(NamedTuple):
    call: SavedCall
    decision: Decision


@replay_app.command("replay")
@takes_plan_options("profile", "plan", "sets")
def replay_command(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Session ids. [default: all]", show_default=False),
    ] = None,
    *,
    request: Request,
    mode: ModeOption = None,
    asks: Annotated[bool, typer.Option("--asks", help="Also list calls that would ask.")] = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=0, metavar="N", help="List at most N calls; 0 lists all."
        ),
    ] = 50,
    output: OutputOption = "text",
) -> None:
    """Apply the rules to the tool calls of saved sessions, and list those they would deny.

    \b
      amplifier policy replay
      amplifier policy replay -f plan.yaml --asks
      amplifier policy replay 1a2b3c --mode read-only

    Nothing is run. Each call is decided as if in the directory of its session.
    """
    chosen = chosen_plan(request)
    replayed = run_loop(_replay(chosen, ids or [], mode))
    denied = [one for one in replayed if one.decision.action == "deny"]
    asking = [one for one in replayed if one.decision.action == "ask"]
    listed = [one for one in replayed if one in denied or (asks and one in asking)]
    if output == "json":
        rows = [_facts(chosen, one) for one in listed]
        facts = {"calls": len(replayed), "denied": len(denied), "asked": len(asking)}
        print(json_text(redactor().value({**facts, "listed": rows})))
        return
    end = ":" if listed else ""
    calls = count(len(replayed), "call")
    print(f"would have denied {len(denied):,} and asked about {len(asking):,} of {calls}{end}")
    if not listed:
        return
    shown = listed[:limit] if limit else listed
    columns = [
        Column("SESSION", "middle", drop=1),
        Column("CALL", right=True),
        "DECISION",
        Column("WHAT", "end"),
        Column("BY", "middle"),
    ]
    print_table(columns, [_row(chosen, one) for one in shown])
    if len(shown) < len(listed):
        print(f"{len(listed) - len(shown):,} more: -n 0")


async def _replay(plan: ResolvedPlan, ids: list[str], mode: str | None) -> list[_Replayed]:
    async with policy_of(plan) as decide:
        return [
            _Replayed(call, decide(call.tool, call.input, working_dir=call.project, mode=mode))
            for call in saved_calls(ids)
        ]


def _row(plan: ResolvedPlan, one: _Replayed) -> list[str]:
    call, decision = one
    by = place_of_rule(plan, decision) or decision.by
    what = describe_call(call.tool, call.input)
    return [call.session_id, str(call.number), decision.action, what, by]


def _facts(plan: ResolvedPlan, one: _Replayed) -> dict[str, object]:
    call, decision = one
    return {
        "session_id": call.session_id,
        "call": call.number,
        "tool": call.tool,
        "input": call.input,
        "decision": decision.action,
        "by": decision.by,
        "reason": decision.reason,
        "at": place_of_rule(plan, decision),
    }


suggest_app = typer.Typer(add_completion=False, rich_markup_mode=None)

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


@suggest_app.command("suggest")
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
    found = run_loop(_suggestion(chosen, calls, mode))
    for call in found.without:
        to_stderr(f"amplifier: no rule can allow: {describe_call(call.tool, call.input)}")
    if not found.rules:
        to_stderr("amplifier: no rules needed" if not found.without else "amplifier: no rules")
        return
    print(f"# For {count(found.needed, 'call')} of session {calls[0].session_id}")
    print("approvals:")
    for rule in found.rules:
        text = yaml.safe_dump(
            rule, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000
        )
        print(f"  - {text.strip()}")


async def _suggestion(plan: ResolvedPlan, calls: list[SavedCall], mode: str | None) -> Suggestion:
    async with policy_of(plan) as decide:
        needed = [
            call
            for call in calls
            if not call.was_denied
            and decide(call.tool, call.input, working_dir=call.project, mode=mode).action == "ask"
        ]
    rules = rules_for(needed)
    # The same rules decide here as in a session, so what they do not allow is known.
    async with policy_of(_with_rules(plan, rules)) as decide:
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
    added = [node_of(rule, NOWHERE, literal=True) for rule in rules]
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
    for tool, given in commands.items():
        patterns = _command_patterns(given)
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
