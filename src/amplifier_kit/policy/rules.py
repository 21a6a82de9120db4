"""`amplifier policy test|replay|suggest`."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import typer
import yaml

from amplifier_app.base.errors import ConfigError, SessionError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending
from amplifier_app.base.redact import redact, redactor
from amplifier_app.base.sanitize import visible
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.tree.nodes import NOWHERE, ListNode, to_node, with_items
from amplifier_app.render.table import Column, Format, OutputOption, print_table
from amplifier_app.runtime.approvals import (
    Decision,
    find_refusal,
    open_guards,
    open_policy,
    place_of_rule,
)
from amplifier_app.runtime.describe import count
from amplifier_app.sessions.store import SessionStore
from amplifier_support.files import is_below
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.project_folders import HOOK_FILES

ModeOption = Annotated[
    Literal["ask", "edits", "propose", "read-only", "auto"] | None,
    option("--mode", "The mode to decide in. [default: the plan's]"),
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


def _parse_call(call: str, document: str | None) -> tuple[str, dict[str, Any]]:
    """The tool and input of a call: `bash: ls -l`, or a tool and its input as JSON.

    Raises:
        UsageError: It is not a call.
    """
    if document is not None:
        try:
            values: Any = json.loads(document)
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
    first = _KEYS.values() if len(values) == 1 else ("command",)
    for key in (*first, "file_path", "path"):
        if isinstance(values.get(key), str):
            return visible(f"{tool}: {values[key]}", _LONGEST)
    return visible(f"{tool} {json.dumps(dict(values), default=repr, ensure_ascii=False)}", _LONGEST)


def saved_calls(session_ids: Sequence[str]) -> Iterator[SavedCall]:
    """The tool calls of sessions, by id; of all sessions if none is given.

    Raises:
        SessionError: A session that was named is unknown or damaged.
    """
    store = SessionStore()
    for name in session_ids or [summary.id for summary in store.summaries()]:
        folder = store.find(name)
        try:
            project = str(folder.metadata.get("project") or os.getcwd())
            calls = folder.conversation().calls
        except SessionError as error:
            if session_ids:
                raise
            to_stderr(f"amplifier: skipped session {name}: {error.message}")
            continue
        for call in calls:
            values = cast("dict[str, Any]", call.input) if isinstance(call.input, dict) else {}
            was_denied = (call.result or "").removeprefix("Error: ").startswith("denied: ")
            yield SavedCall(folder.id, call.number, call.name, values, project, was_denied)


@takes_plan_options("profile", "plan", "sets")
def show_decision(
    call: Annotated[
        str | None, argument("CALL", "The call, as 'bash: rm -rf build', or a tool.")
    ] = None,
    input: Annotated[str | None, argument("JSON", "The input of the tool.")] = None,
    *,
    request: Request,
    mode: ModeOption = None,
    programs: Annotated[
        str | None,
        option(
            "--as PROGRAMS",
            "Run the plan's guards on the call in the formats of claude, codex or both.",
        ),
    ] = None,
    sessions: Annotated[
        list[str] | None, option("--session ID", "With --as: the calls of a session.")
    ] = None,
    output: OutputOption = "text",
) -> None:
    """Show the decision on a tool call, and the rule that made it.

    \b
      amplifier policy test 'bash: rm -rf build'
      amplifier policy test 'edit_file: src/app.py' --mode edits
      amplifier policy test web_fetch '{"url": "https://example.com"}'
      amplifier policy test --as claude,codex --session 1a2b3c

    Decides like a session in this directory would, without asking or running anything. With --as, it
    runs hooks of Claude Code and Codex and shows where their decisions differ. Exits with 0 if the
    call is allowed, and with 8 if it is denied or needs approval. What the config of bash or of the web
    tools refuses is denied. A file tool can still refuse an allowed call, such as read_file of a path
    outside the working directory.
    """
    if (call is None) == (not sessions):
        raise UsageError("give either a call or --session", hint="For example: 'bash: ls -l'")
    if sessions and programs is None:
        raise UsageError("--session needs --as", hint="Or run: amplifier policy replay ID")
    chosen = chosen_plan(request)
    if programs is not None:
        calls = _calls(call, input, sessions)
        if _show_guards(chosen, _read_programs(programs), calls, output):
            raise typer.Exit(Ending.DENIED.exit_code)
        return
    tool, values = _parse_call(call or "", input)
    decision = run_loop(_decision(chosen, tool, values, mode))
    facts = _facts(chosen, decision)
    if output == "json":
        print(json_text(redactor().value({"tool": tool, "input": values, **facts})))
    else:
        print(f"{decision.action:<6} {describe_call(tool, values)}")
        place = f" ({facts['at']})" if facts["at"] else ""
        print(f"by     {decision.by}{place}")
        if decision.reason:
            print(f"reason {decision.reason}")
    if decision.action != "allow":
        raise typer.Exit(Ending.DENIED.exit_code)


def _calls(call: str | None, input: str | None, sessions: list[str] | None) -> list[Call]:
    if call is not None:
        calls = [_parse_call(call, input)]
    else:
        calls = [(saved.tool, dict(saved.input)) for saved in saved_calls(sessions or [])]
    return [(describe_call(tool, values), tool, values) for tool, values in calls]


async def _decision(
    plan: ResolvedPlan, tool: str, values: dict[str, Any], mode: str | None
) -> Decision:
    async with open_policy(plan) as decide:
        decision = decide(tool, values, mode=mode)
    refusal = None if decision.action == "deny" else await find_refusal(plan, tool, values)
    return refusal or decision


class _Replayed(NamedTuple):
    call: SavedCall
    decision: Decision


@takes_plan_options("profile", "plan", "sets")
def replay_command(
    ids: Annotated[list[str] | None, argument("ID", "Session ids. [default: all]")] = None,
    *,
    request: Request,
    mode: ModeOption = None,
    asks: Annotated[bool, option("--asks", "Also list calls that would ask.")] = False,
    limit: Annotated[
        int, option("-n, --limit N", "List at most N calls; 0 lists all.", min=0)
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
    denied = [call for call in replayed if call.decision.action == "deny"]
    asking = [call for call in replayed if call.decision.action == "ask"]
    listed = [call for call in replayed if call in denied or (asks and call in asking)]
    if output == "json":
        rows = [
            {
                **{"session_id": call.session_id, "call": call.number},
                **{"tool": call.tool, "input": call.input},
                **_facts(chosen, decision),
            }
            for call, decision in listed
        ]
        facts = {"calls": len(replayed), "denied": len(denied), "asked": len(asking)}
        print(json_text(redactor().value({**facts, "listed": rows})))
        return
    end = ":" if listed else ""
    calls = count(len(replayed), "call")
    print(f"would have denied {len(denied):,} and asked about {len(asking):,} of {calls}{end}")
    if not listed:
        return
    page = listed[:limit] if limit else listed
    columns = [
        Column("SESSION", "middle", drop=1),
        Column("CALL", right=True),
        "DECISION",
        Column("WHAT", "end"),
        Column("BY", "middle"),
    ]
    print_table(columns, [_row(chosen, call) for call in page])
    if len(page) < len(listed):
        print(f"{len(listed) - len(page):,} more: -n 0")


async def _replay(plan: ResolvedPlan, ids: list[str], mode: str | None) -> list[_Replayed]:
    async with open_policy(plan) as decide:
        return [
            _Replayed(call, decide(call.tool, call.input, working_dir=call.project, mode=mode))
            for call in saved_calls(ids)
        ]


def _row(plan: ResolvedPlan, replayed: _Replayed) -> list[str]:
    call, decision = replayed
    by = place_of_rule(plan, decision) or decision.by
    what = describe_call(call.tool, call.input)
    return [call.session_id, str(call.number), decision.action, what, by]


def _facts(plan: ResolvedPlan, decision: Decision) -> dict[str, Any]:
    return {
        "decision": decision.action,
        "by": decision.by,
        "reason": decision.reason,
        "at": place_of_rule(plan, decision),
    }


# -- policy test --as: the guards of a plan on calls in the formats of other programs --


_MAX_REASON = 200

Call = tuple[str, str, Mapping[str, Any]]
"""A call as one line, its tool and its input."""


def _read_programs(text: str) -> list[str]:
    """Return the programs in the value of `--as`.

    Raises:
        UsageError: One is unknown.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in HOOK_FILES:
            hint = f"Known: {', '.join(HOOK_FILES)}."
            raise UsageError(f"--as: unknown program '{visible(name)}'", hint=hint)
    return names


def _show_guards(
    plan: ResolvedPlan, programs: Sequence[str], calls: Sequence[Call], output: Format
) -> bool:
    """Print the decision of each guard of a plan on calls in the format of each program.

    Returns:
        True if a guard refuses a call, or asks about it.

    Raises:
        ConfigError: The plan has no guards.
    """
    decisions = run_loop(_ask_guards(plan, programs, calls))
    if calls and not decisions:
        raise ConfigError(
            f"the hooks of the plan '{plan.name}' have no guard in the format of another program",
            hint="See: amplifier docs hooks-shell",
        )
    if output == "json":
        print(json_text(redactor().value(decisions)))
    else:
        _print_guards(redactor().value(decisions), programs)
    return any(row["decision"] in ("deny", "ask") for row in decisions)


async def _ask_guards(
    plan: ResolvedPlan, programs: Sequence[str], calls: Sequence[Call]
) -> list[dict[str, Any]]:
    async with open_guards(plan) as test:
        return [
            {"call": line, "tool": tool, "input": dict(values), **decision}
            for line, tool, values in calls
            for decision in await test(programs, tool, values)
        ]


def _print_guards(decisions: Sequence[Mapping[str, Any]], programs: Sequence[str]) -> None:
    """Print a line for each call and guard, with a column for each program."""
    lines: list[list[str]] = []
    differing = 0
    for first in range(0, len(decisions), len(programs)):
        rows = decisions[first : first + len(programs)]
        decided = [row["decision"] or "-" for row in rows]
        differing += len(set(decided)) > 1
        reason = next((row["reason"] for row in rows if row["reason"]), "")
        call, guard = rows[0]["call"], visible(rows[0]["guard"])
        lines.append([call, guard, *decided, visible(reason, _MAX_REASON)])
    columns = [
        Column("CALL", "end"),
        Column("GUARD", "middle"),
        *(program.upper() for program in programs),
        Column("REASON", "end", drop=1),
    ]
    print_table(columns, lines)
    print(f"{count(len(lines), 'decision')}, {differing:,} different")


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
    id: Annotated[str, argument("ID", "Session id, the start of one, or a short id.")],
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
    for call in dict.fromkeys(describe_call(call.tool, call.input) for call in suggestion.without):
        to_stderr(f"amplifier: no rule can allow: {call}")
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
    """Return the narrowest rules that could allow the calls, with few patterns; a wildcard stands for a secret."""
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
