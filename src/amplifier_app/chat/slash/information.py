"""Commands that show what happens: the session, its plan and its tools, its context, and what it cost."""

from __future__ import annotations

import json
from typing import Any

from amplifier_app.base.errors import UsageError
from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.slash.layout import Lines, Rows, lines, wrapped_source
from amplifier_app.chat.slash.model import answered
from amplifier_app.chat.slash.registry import Chat, Reply, command
from amplifier_app.plan.explain import describe_place, yaml_text
from amplifier_app.plan.masking import masked_tree
from amplifier_app.plan.tree.entries import NoSuchPath, entry_key, find, module_entries, parse_path
from amplifier_app.plan.tree.nodes import Node, read_text
from amplifier_app.runtime import describe
from amplifier_app.runtime.approvals import NO_MODES, current_mode, place_of_rule, policy_of_session
from amplifier_app.runtime.request_sections import find_tool_entry
from amplifier_app.runtime.status import read_status
from amplifier_app.runtime.turns.module_faults import read_messages
from amplifier_core._foreign import find_module
from amplifier_core.module_sources import SECTION_KINDS
from amplifier_support.session_capabilities import REGISTER_APPROVAL_PROVIDER

_COUNTS = {
    "estimated_calls": "calls with estimated tokens",
    "cached_calls": "answers from the cache of batches",
}


@command("/status", "Session, profile, model and directory", during_turn=True)
async def status(chat: Chat, argument: str) -> Reply:
    session, facts, now = chat.session, chat.session.facts, read_status(chat.session)
    budgets = (now.cost_text if now.budget is not None else "", now.tokens_text)
    context = "" if now.context_percent is None else f"{now.context_percent} % full"
    table = [
        ("session", f"{session.id}{'' if facts.saved else ' (not saved)'}"),
        ("profile", facts.profile),
        ("provider", now.provider),
        ("model", now.model or "the provider's default"),
        ("mode", (now.mode or NO_MODES) + answered(session.session.coordinator)),
        *([] if now.module_mode is None else [("module's mode", now.module_mode)]),
        ("directory", facts.working_dir + (f" ({now.branch})" if now.branch else "")),
        ("context", context or "no model call yet"),
        ("budget", ", ".join(filter(None, budgets)) or "no limit on cost or tokens"),
        ("tools", ", ".join(facts.tools) or "none"),
        ("messages", str(len(await session.context.get_messages()))),
    ]
    return Rows((name, one_line(value, 400)) for name, value in table)


@command("/tools", "Tools available to the model", during_turn=True)
async def tools(chat: Chat, argument: str) -> Reply:
    mounted = chat.session.session.coordinator.get("tools")
    listed = [
        (
            one_line(name, 40),
            one_line(describe.first_sentence(str(getattr(tool, "description", ""))), 100),
        )
        for name, tool in mounted.items()
    ]
    return Rows(listed) if listed else "no tools"


@command("/cost", "Tokens and cost so far", during_turn=True)
async def cost(chat: Chat, argument: str) -> Reply:
    usage = chat.session.usage
    if not usage.calls:
        return "No usage yet."
    price = "no price known for this model"
    if usage.cost_usd is not None:
        about = "about " if usage.tokens.get("estimated_calls") else ""
        price = f"{about}{describe.cost(usage.cost_usd)}"
    counts = [
        (_COUNTS.get(name, name.replace("_", " ")), f"{count:,}")
        for name, count in usage.tokens.items()
    ]
    return Rows([*counts, ("cost", price)], numbers=True)


def _short_place(place: str) -> str:
    """Return `file:line` with the file's name alone."""
    return place.replace("\\", "/").rpartition("/")[2]


@command(
    "/plan",
    "The plan of the session, or a part of it",
    usage="[PATH]",
    during_turn=True,
    complete=lambda chat, argument: ("session", *SECTION_KINDS, "agents"),
)
async def plan(chat: Chat, argument: str) -> Reply:
    tree: Node = masked_tree(chat.session.plan.tree)
    if argument:
        try:
            tree = find(tree, parse_path(argument))
        except NoSuchPath as error:
            raise UsageError(f"/plan: {error}", hint=error.hint) from None
        except ValueError as error:
            raise UsageError(f"/plan: {error}") from None
    text = yaml_text(tree, origins=True)
    return Lines(lambda width: wrapped_source(text, width))


@command("/modules", "Modules of the session and where the plan has them", during_turn=True)
async def modules(chat: Chat, argument: str) -> Reply:
    return Rows(
        (f"{entry.kind:<12}  {entry_key(entry.node)}", _short_place(describe_place(entry.node)))
        for entry in module_entries(chat.session.plan.tree)
        if entry.agent is None
    )


@command("/agents", "Agents the model can delegate to", during_turn=True)
async def agents(chat: Chat, argument: str) -> Reply:
    known: dict[str, Any] = chat.session.session.config.get("agents") or {}
    listed = [
        (one_line(name, 40), one_line(str(agent.get("description") or ""), 200))
        for name, agent in known.items()
        if isinstance(agent, dict)
    ]
    return Rows(listed) if listed else "The plan has no agents."


_CHARACTERS_PER_TOKEN = 4


@command("/context", "What fills the context", during_turn=True)
async def context(chat: Chat, argument: str) -> Reply:
    status = read_status(chat.session)
    parts = await _parts(chat)
    total = sum(parts.values())
    rows = [
        (name, f"{describe.tokens(count)}  {100 * count / max(total, 1):.0f} %")
        for name, count in parts.items()
    ]
    if status.context_used is not None:
        limit = f" of {describe.tokens(status.context_limit)}" if status.context_limit else ""
        head = f"{describe.tokens(status.context_used)} tokens{limit} at the last model call"
    else:
        head = f"about {describe.tokens(total)} tokens"
    return lines(head, Rows(rows, numbers=True))


@command("/why", "What allowed the last tool call, and what it cost", during_turn=True)
async def why(chat: Chat, argument: str) -> Reply:
    session = chat.session
    call = session.recorder.last_tool
    if call is None:
        if session.facts.resumed:
            return "No tool calls since the session was opened; /show N shows an earlier one."
        return "No tool calls yet."
    table = [("call", describe.call(call.name, call.input)), ("outcome", _outcome(call))]
    table.append(("mounted by", _find_module(chat, call.name)))
    if not describe.was_skipped(call.reason):
        decided = "denied by" if call.outcome == "denied" else "allowed by"
        table.append((decided, _decision_on(chat, call)))
    sizes = [f"{name} {describe.tokens(count)}" for name, count in (await _parts(chat)).items()]
    table.append(("context", " · ".join(sizes)))
    usage = session.recorder.usage
    price = f" · {describe.cost(usage.cost_usd)}" if usage.cost_usd is not None else ""
    steps = describe.count(usage.calls, "step")
    tokens = describe.tokens(usage.tokens.get("total_tokens", 0))
    table.append(("this prompt", f"{steps} · {tokens} tokens{price}"))
    return Rows(table)


def _decision_on(chat: Chat, call: Any) -> str:
    if call.decision is None:
        return _describe_rule(chat, call)
    # The event says "answer".
    return f"your {call.decision}" if call.decision.startswith("answer") else call.decision


def _describe_rule(chat: Chat, call: Any) -> str:
    """Describe the rule for a call that needed no answer, with its place in the plan."""
    coordinator = chat.session.session.coordinator
    decide = policy_of_session(chat.session.plan, coordinator)
    mode = current_mode(coordinator)
    if decide is None and REGISTER_APPROVAL_PROVIDER.of(coordinator) is not None:
        return "not reported"
    if decide is None:
        return f"nothing asked about it (mode {mode})" if mode else "no module asks for approval"
    decision = decide(call.name, call.input if isinstance(call.input, dict) else {})
    place = place_of_rule(chat.session.plan, decision)
    by = "it only reads" if decision.by == "read_only" else decision.by
    at = f" ({_short_place(place)})" if place else ""
    because = f": {one_line(decision.reason, 200)}" if decision.reason else ""
    changed = "" if decision.action == "allow" else f"; now it would be: {decision.action}"
    return f"{by}{at}{because}{changed}"


def _outcome(call: Any) -> str:
    took = "" if call.duration_ms is None else f" · {describe.duration(call.duration_ms / 1000)}"
    reason = one_line(call.reason, 300) if call.reason else ""
    if describe.was_skipped(reason):
        return reason
    if call.outcome == "denied" and call.decision is not None:
        return "denied"  # the reason is a text for the model, and the next row has its cause
    if reason.startswith(call.outcome):
        return f"{reason}{took}"
    return f"{call.outcome}{took}{f': {reason}' if reason else ''}"


def _find_module(chat: Chat, tool_name: str) -> str:
    """Return the module of a tool and where the plan has it."""
    tool = chat.session.session.coordinator.get("tools").get(tool_name)
    entry = find_tool_entry(chat.session.plan.tree, tool)
    if entry is not None:
        return f"{read_text(entry.items.get('module'))} ({_short_place(describe_place(entry))})"
    code = find_module(tool) if tool is not None else None
    return one_line(code.__name__, 80) if code is not None else "no tool of this session"


async def _parts(chat: Chat) -> dict[str, int]:
    """Return what fills the context, in tokens: estimated, scaled to the last reported size."""
    sizes = {"system": 0, "tools": 0, "conversation": 0, "tool results": 0}
    for message in await read_messages(chat.session.session):
        role = message.get("role")
        known = {"system": "system", "developer": "system", "tool": "tool results"}
        sizes[known.get(role, "conversation")] += _length(message)
    for tool in chat.session.session.coordinator.get("tools").values():
        schema = getattr(tool, "input_schema", None)
        sizes["tools"] += len(str(getattr(tool, "description", ""))) + _length(schema)
    tokens = {name: size / _CHARACTERS_PER_TOKEN for name, size in sizes.items() if size}
    reported = chat.session.recorder.context_tokens
    scale = reported / sum(tokens.values()) if reported and tokens else 1.0
    return {name: round(count * scale) for name, count in tokens.items()}


def _length(value: Any) -> int:
    return len(json.dumps(value, default=str, ensure_ascii=False)) if value else 0
