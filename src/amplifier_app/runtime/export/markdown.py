"""A conversation as Markdown, and a session as JSON: all that is stored, or as a trajectory in ATIF.

ATIF is the Agent Trajectory Interchange Format of the Harbor project, version 1.8: a list of steps by
`system`, `user` and `agent`; an agent's step has its tool calls, their results and its metrics. The trajectories
of sub-agents are part of that of their parent. Steps that a fork took over are copied context.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from amplifier_app import __version__
from amplifier_app.base.errors import SessionError
from amplifier_app.base.json_text import json_pieces
from amplifier_app.base.sanitize import for_pipe, one_line
from amplifier_app.runtime.export.parts import Exported, Heading, Part, build_heading, build_parts
from amplifier_app.runtime.observers.visibility import Visibility
from amplifier_app.sessions.conversation import Item, Note, Prompt, Step
from amplifier_app.sessions.summary import cost_in
from amplifier_app.sessions.tool_calls import as_text, blocks_in, text_in
from amplifier_support.fields import to_mapping
from amplifier_support.journal import parse
from amplifier_support.usage import dollars


def export_pieces(session: Exported, form: str, continued: str | None = None) -> Iterable[str]:
    """Return a session in one of the forms `md`, `json`, `html` and `atif`, in pieces.

    Args:
        session: The session.
        form: The form.
        continued: See `as_trajectory`.
    """
    if form == "html":
        # Its parser of Markdown takes longer to import than all that the other forms need.
        from amplifier_app.runtime.export.page import as_page

        return as_page(session)
    if form == "md":
        return session_markdown(session)
    data = as_data(session) if form == "json" else as_trajectory(session, continued)
    return itertools.chain(json_pieces(data), ["\n"])


def as_markdown(heading: Heading, parts: Iterable[Part]) -> Iterator[str]:
    """The conversation as Markdown for a file or another program, in pieces."""
    yield f"# {one_line(heading.title)}"
    facts = [" · ".join(heading.facts)] if heading.facts else []
    yield from _paragraphs([*facts, *heading.lines])
    before = ""
    for part in parts:
        text = for_pipe(part.text)
        if part.kind == "prompt":
            is_long = "\n" in text.strip() or len(text) > 80
            title = "## ›" if "\n" in text.strip() else f"## › {one_line(text, 80)}"
            yield from _paragraphs([title, *([text] if is_long else [])])
        elif part.kind == "call":
            yield "\n" if before == "call" else "\n\n"
            yield "- `" + text.replace("`", "'") + "`"
        elif part.kind == "answer":
            yield from _paragraphs([text])
        else:
            quoted = "\n".join(f"> {line}".rstrip() for line in text.splitlines())
            yield from _paragraphs([quoted])
        before = part.kind
    yield "\n"


def _paragraphs(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        if text.strip():
            yield "\n\n"
            yield text.strip("\n")


def session_markdown(session: Exported) -> Iterator[str]:
    """A session and its sub-sessions as Markdown, in pieces."""
    for export in (session, *session.sub_sessions):
        conversation = export.conversation
        heading = build_heading(export.id, export.metadata, conversation, age=False)
        agent = export.metadata.get("agent")
        if export is not session:
            heading = heading._replace(title=f"Sub-agent {agent or ''}: {heading.title}")
            yield "\n"
        yield from as_markdown(heading, build_parts(conversation, Visibility()))


ATIF_VERSION = "ATIF-v1.8"


def as_data(session: Exported) -> dict[str, Any]:
    """Everything stored of a session and its sub-sessions, for `json_pieces`."""
    return {
        "format": "amplifier-session",
        "version": 1,
        "id": session.id,
        "metadata": session.metadata,
        "transcript": iter(session.records),
        "events": iter(session.events),
        "sub_sessions": [as_data(sub_session) for sub_session in session.sub_sessions],
    }


def as_trajectory(session: Exported, continued: str | None = None) -> dict[str, Any]:
    """A session as an ATIF trajectory, with those of its sub-agents, for `json_pieces`.

    Args:
        session: The session.
        continued: The id of the session that continues it; the trajectory of that session has the same id.

    Raises:
        SessionError: It has no messages; a trajectory must have a step.
    """
    below: dict[str, list[Exported]] = {}
    for sub_session in session.sub_sessions:
        below.setdefault(str(sub_session.metadata.get("parent")), []).append(sub_session)
    trajectory = _trajectory(session, below)
    if trajectory is None:
        raise SessionError(f"session {session.id} has no messages to export as a trajectory")
    return {**trajectory, "continued_trajectory_ref": continued} if continued else trajectory


def _trajectory(
    session: Exported, below: Mapping[str, Sequence[Exported]]
) -> dict[str, Any] | None:
    """The trajectory of one session; None if it has no steps.

    Args:
        session: The session.
        below: Sub-sessions by the id of their parent.
    """
    spawned = {export.id: _trajectory(export, below) for export in below.get(session.id, ())}
    spawned = {key: value for key, value in spawned.items() if value is not None}
    if not (
        count := sum(_is_atif_step(item) for item in session.unredacted or session.conversation)
    ):
        return None
    agent: dict[str, Any] = {"name": "amplifier", "version": __version__}
    model, role = session.metadata.get("model"), session.metadata.get("agent")
    if isinstance(model, str):
        agent["model_name"] = model
    if isinstance(role, str):
        agent["extra"] = {"role": role}
    trajectory: dict[str, Any] = {
        "schema_version": ATIF_VERSION,
        "session_id": session.id,
        "trajectory_id": session.id,
        "agent": agent,
        "steps": _atif_steps(session, spawned),
        "final_metrics": _final_metrics(session, count),
    }
    return {**trajectory, "subagent_trajectories": [*spawned.values()]} if spawned else trajectory


def _atif_steps(session: Exported, spawned: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    items = filter(_is_atif_step, session.conversation)
    taken_over = to_mapping(session.metadata.get("forked_from")).get("step")
    is_copy = isinstance(taken_over, int) and taken_over > 0
    for number, item in enumerate(items, 1):
        step = _atif_step(item)
        step["step_id"] = number
        if is_copy:
            step["is_copied_context"] = True
            is_copy = not (isinstance(item, Step) and item.number == taken_over)
        _refer_to(spawned, step)
        yield step


def _is_atif_step(item: Item) -> bool:
    return not isinstance(item, Note) or bool(item.message)


def _refer_to(spawned: Mapping[str, Any], step: Mapping[str, Any]) -> None:
    """Refer from the results of a step to the sub-agents they came from."""
    for result in step.get("observation", {}).get("results", ()):
        called = _session_in(result["content"])
        if called in spawned:
            result["subagent_trajectory_ref"] = [{"trajectory_id": called}]


def _atif_step(item: Item) -> dict[str, Any]:
    if isinstance(item, Prompt):
        return {"step_id": 0, "source": "user", "message": item.text}
    if isinstance(item, Step):
        return _agent_step(item)
    if item.is_attachment:
        return {"step_id": 0, "source": "user", "message": [*_content_parts(item.message)]}
    text = as_text(item.message.get("content"))
    return {"step_id": 0, "source": "system" if item.is_instruction else "user", "message": text}


def _content_parts(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The texts and images of a message; the format refers to images by a URL."""
    for block in blocks_in(message, "text"):
        yield {"type": "text", "text": str(block.get("text", ""))}
    for block in blocks_in(message, "image"):
        source = to_mapping(block.get("source"))
        media_type, data = source.get("media_type"), source.get("data")
        url = f"data:{media_type};base64,{data}"
        yield {"type": "image", "source": {"media_type": media_type, "path": url}}


def _agent_step(step: Step) -> dict[str, Any]:
    message = text_in(step.message, "\n\n")
    data: dict[str, Any] = {"step_id": 0, "source": "agent", "message": message}
    if step.model is not None:
        data["model_name"] = step.model
    thoughts = [str(block.get("thinking", "")) for block in blocks_in(step.message, "thinking")]
    if any(thoughts):
        data["reasoning_content"] = "\n\n".join(filter(None, thoughts))
    if step.calls:
        data["tool_calls"] = [
            {
                "tool_call_id": call.id or f"call-{call.number}",
                "function_name": call.name,
                "arguments": call.input
                if isinstance(call.input, dict)
                else {"input": as_text(call.input)},
            }
            for call in step.calls
        ]
        results = [
            {"source_call_id": call.id or f"call-{call.number}", "content": call.result}
            for call in step.calls
            if call.result is not None
        ]
        if results:
            data["observation"] = {"results": results}
    metrics = _metrics(step.usage)
    if metrics:
        data["metrics"] = metrics
    return data


def _session_in(result: str) -> str | None:
    """The session that the result of a delegated task names; None if it is another result."""
    if '"session_id"' not in result:
        return None
    named = to_mapping(parse(result.encode("utf-8", "surrogatepass"))).get("session_id")
    return named if isinstance(named, str) else None


_METRICS = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "cached_tokens": "cache_read_tokens",
}


def _metrics(usage: Mapping[str, Any]) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        name: usage[key] for name, key in _METRICS.items() if isinstance(usage.get(key), int)
    }
    cost = dollars(usage.get("cost_usd"))
    return metrics if cost is None else {**metrics, "cost_usd": float(cost)}


def _final_metrics(session: Exported, steps: int) -> dict[str, Any]:
    totals = _metrics(to_mapping(session.metadata.get("usage")))
    metrics = {f"total_{name}": value for name, value in totals.items() if name in _METRICS}
    cost = cost_in(session.metadata)
    if cost is not None:
        metrics["total_cost_usd"] = float(cost)
    return {**metrics, "total_steps": steps}
