"""A session as one HTML page that needs nothing else.

The page has no script, and its Content-Security-Policy allows none, nor any request. All text of the
session is escaped; Markdown is rendered without its HTML and images.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from html import escape
from importlib.resources import files
from typing import Any, Literal, cast

from markdown_it import MarkdownIt

from amplifier_app.base.sanitize import for_pipe
from amplifier_app.runtime import describe
from amplifier_app.runtime.export.parts import Exported, build_heading, read_time
from amplifier_app.sessions.conversation import Call, Item, Note, Prompt, Step
from amplifier_app.sessions.tool_calls import as_text, blocks_in
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import cut_text
from amplifier_support.usage import dollars, token_count


class Span(NamedTuple):
    """Something that took time.

    Attributes:
        kind: A model call, a tool call, or a sub-agent.
        name: The model, the tool, or the agent.
        start: Seconds since the epoch.
        end: Seconds since the epoch.
        is_ok: Whether it succeeded.
        tokens: Tokens of a model call.
        cost: US dollars of a model call; None if unknown.
    """

    kind: Literal["model", "tool", "agent"]
    name: str
    start: float
    end: float
    is_ok: bool = True
    tokens: int = 0
    cost: Decimal | None = None


class Turn(NamedTuple):
    """The spans between a prompt and its answer."""

    start: float
    end: float
    spans: list[Span]


_ENDS = {
    "llm:response": ("model", True),
    "provider:error": ("model", False),
    "tool:post": ("tool", True),
    "tool:error": ("tool", False),
}


def _group_turns(events: Iterable[Mapping[str, Any]]) -> list[Turn]:
    """The turns of a session, in order; events that are incomplete are left out."""
    turns: list[Turn] = []
    begun: dict[tuple[str, str], float] = {}
    for event in events:
        name, time = str(event.get("event")), read_time(event)
        raw = event.get("data")
        if time is None or not isinstance(raw, dict):
            continue
        data = cast("dict[str, Any]", raw)
        if name == "prompt:submit":
            turns.append(Turn(time, time, []))
        elif name in ("llm:request", "provider:request"):
            begun.setdefault(("model", _key(data)), time)
        elif name == "tool:pre":
            begun[("tool", _key(data))] = time
        elif name in _ENDS and turns:
            kind, is_ok = _ENDS[name]
            start = begun.pop((kind, _key(data)), None)
            if start is not None:
                turns[-1].spans.append(_span(kind, data, start, time, is_ok))
        if turns and name in (*_ENDS, "prompt:complete", "execution:end"):
            turns[-1] = turns[-1]._replace(end=max(turns[-1].end, time))
    return turns


def _span(kind: str, data: Mapping[str, Any], start: float, end: float, is_ok: bool) -> Span:
    if kind == "tool":
        result = data.get("tool_result")
        failed = isinstance(result, dict) and cast("dict[str, Any]", result).get("success") is False
        name = str(data.get("tool_name") or "tool")
        return Span("agent" if name == "task" else "tool", name, start, end, is_ok and not failed)
    used = to_mapping(data.get("usage"))
    return Span(
        "model",
        str(data.get("model") or data.get("provider") or "model"),
        start,
        end,
        is_ok,
        token_count(used.get("total_tokens")) or 0,
        dollars(used.get("cost_usd")),
    )


def _key(data: Mapping[str, Any]) -> str:
    return str(data.get("tool_call_id") or data.get("span_id"))


_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_WIDTH, _HEIGHT, _ROW, _LABEL, _VALUE = 1000, 80, 22, 190, 200
_MAX_ROWS = 60
_IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


def as_page(session: Exported) -> Iterator[str]:
    """The page, in pieces."""
    title = build_heading(session.id, session.metadata, session.conversation, age=False).title
    style = (files("amplifier_app.runtime.export") / "page.css").read_text(encoding="utf-8")
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{_text(title)}</title>\n<style>\n{style}</style>\n</head>\n"
        "<body>\n<main>\n"
    )
    yield from _session(session, level=1)
    yield "</main>\n</body>\n</html>\n"


def _session(session: Exported, *, level: int) -> Iterator[str]:
    conversation = session.conversation
    heading = build_heading(session.id, session.metadata, conversation, age=False)
    yield f"<header><h{level}>{_text(heading.title)}</h{level}>\n<ul class=facts>"
    yield "".join(f"<li>{_text(fact)}</li>" for fact in heading.facts)
    yield "</ul></header>\n"
    turns = _group_turns(session.events)
    yield from _changed_files(conversation)
    yield _costs(turns)
    prompts = 0
    for item in conversation:
        if isinstance(item, Prompt):
            prompts += 1
            yield f'<section class=prompt id="{_id(session, f"prompt-{prompts}")}">'
            yield f"<pre>{_text(item.text)}</pre></section>\n"
            if prompts <= len(turns):
                yield _timeline(turns[prompts - 1])
        else:
            yield from _item(session, item)
    for sub_session in session.sub_sessions:
        agent = sub_session.metadata.get("agent")
        yield f"<details class=agent><summary>Sub-agent {_text(str(agent or sub_session.id))}</summary>\n"
        yield from _session(sub_session, level=2)
        yield "</details>\n"


def _changed_files(conversation: Iterable[Item]) -> Iterator[str]:
    calls = [call for item in conversation if isinstance(item, Step) for call in item.calls]
    events = [{"tool_name": call.name, "tool_input": call.input} for call in calls if call.result]
    if changed := sorted({path for event in events for path in describe.changed_files(event)}):
        yield f"<details class=files><summary>{describe.count(len(changed), 'file')} changed</summary>\n"
        yield f"<ul>{''.join(f'<li>{_text(path)}</li>' for path in changed)}</ul></details>\n"


def _images(content: Any) -> Iterator[str]:
    """The images of a prompt, each with the text before it."""
    caption = ""
    for block in map(to_mapping, content if isinstance(content, list) else ()):
        source = to_mapping(block.get("source"))
        kind, data = source.get("media_type"), source.get("data")
        if block.get("type") == "text":
            caption = str(block.get("text", ""))
        elif kind in _IMAGE_TYPES and isinstance(data, str) and _BASE64.fullmatch(data):
            image = f'<img alt="{_text(caption)}" src="data:{kind};base64,{data}">'
            yield f"<figure>{image}<figcaption>{_text(caption)}</figcaption></figure>"


def _item(session: Exported, item: Item) -> Iterator[str]:
    if isinstance(item, Step):
        yield f'<section class=step id="{_id(session, f"step-{item.number}")}">'
        yield from _answer(item)
        for call in item.calls:
            yield _call(session, call)
        yield f"<p class=usage>{_text(_usage(item))}</p></section>\n"
    elif isinstance(item, Note) and item.is_attachment:
        yield from _images(item.message.get("content"))
    elif isinstance(item, Note) and item.message:
        name = "System prompt" if item.is_instruction else "Added by a hook"
        text = as_text(item.message.get("content"))
        yield f"<details class=note><summary>{name} · {len(text):,} characters</summary>"
        yield f"<pre>{_text(text)}</pre></details>\n"
    elif isinstance(item, Note):
        done = "cleared" if item.kind == "cleared" else "replaced"
        yield f"<p class=usage>The context was {done} here.</p>\n"


def _answer(step: Step) -> Iterator[str]:
    content = step.message.get("content")
    for block in blocks_in(step.message, "thinking"):
        thought = str(block.get("thinking") or "")
        if thought:
            yield "<details class=note><summary>Thinking</summary>"
            yield f"<pre>{_text(thought)}</pre></details>"
    texts = [str(block.get("text", "")) for block in blocks_in(step.message, "text")]
    for text in [content] if isinstance(content, str) else texts:
        if text.strip():
            yield f"<div class=answer>{_markdown(text)}</div>"


def _call(session: Exported, call: Call) -> str:
    about = describe.tool_input({"tool_input": call.input}, 160)
    result = call.shown
    lines = len(result.splitlines()) if result is not None else 0
    size = "no result" if result is None else describe.count(lines, "line")
    arguments = (
        json.dumps(call.input, indent=2, ensure_ascii=False, default=str)
        if isinstance(call.input, (dict, list))
        else as_text(call.input)
    )
    return (
        f'<details class=call id="{_id(session, f"call-{call.number}")}"><summary>'
        f"<span class=number>{call.number}</span> <b>{_text(call.name)}</b> "
        f"<code>{_text(about)}</code> <span class=size>{size}</span></summary>"
        f"<h4>Input</h4><pre>{_text(arguments)}</pre>"
        f"<h4>Result</h4><pre>{_text(result or '')}</pre></details>"
    )


def _usage(step: Step) -> str:
    usage = step.usage
    facts = [f"step {step.number}", step.model or ""]
    for key, name in (("input_tokens", "in"), ("output_tokens", "out")):
        if isinstance(usage.get(key), int):
            facts.append(f"{describe.tokens(usage[key])} {name}")
    cached = usage.get("cache_read_tokens")
    if isinstance(cached, int) and cached:
        facts.append(f"{describe.tokens(cached)} cached")
    cost = dollars(usage.get("cost_usd"))
    if cost is not None:
        facts.append(describe.cost(cost))
    return " · ".join(filter(None, facts))


# The timeline


def _costs(turns: Iterable[Turn]) -> str:
    """The cost of the session over time."""
    models = (span for turn in turns for span in turn.spans if span.cost is not None)
    spans = sorted(models, key=lambda span: span.end)
    sums = [*itertools.accumulate(span.cost or Decimal(0) for span in spans)]
    if not any(sums):
        return ""
    start, total = spans[0].start, max(spans[-1].end - spans[0].start, 0.001)
    line = "".join(
        f"H{_WIDTH * (span.end - start) / total:.1f}V{_HEIGHT * (1 - float(cost / sums[-1])):.1f}"
        for span, cost in zip(spans, sums, strict=True)
    )
    return (
        f"<details class=costs><summary>{describe.cost(sums[-1])} in {describe.duration(total)}</summary>"
        f'<svg viewBox="0 -4 {_WIDTH} {_HEIGHT + 8}" role="img" aria-label="Cost over time">'
        f'<path d="M0 {_HEIGHT}{line}"/></svg></details>\n'
    )


def _timeline(turn: Turn) -> str:
    spans = sorted(turn.spans, key=lambda span: span.start)
    if not spans:
        return ""
    more = len(spans) - _MAX_ROWS
    spans = spans[:_MAX_ROWS]
    total = max(turn.end - turn.start, 0.001)
    models = [span for span in turn.spans if span.kind == "model"]
    costs = [span.cost for span in models if span.cost is not None]
    facts = [
        describe.duration(total),
        describe.count(len(models), "step"),
        f"{describe.tokens(sum(span.tokens for span in models))} tokens",
        *([describe.cost(sum(costs, Decimal(0)))] if costs and len(costs) == len(models) else []),
        *([f"{more} more not drawn"] if more > 0 else []),
    ]
    rows = "".join(_bar(n, span, turn.start, total) for n, span in enumerate(spans))
    height = len(spans) * _ROW + 4
    return (
        f"<details class=timeline open><summary>{_text(' · '.join(facts))}</summary>"
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Timeline">{rows}</svg>'
        "</details>\n"
    )


def _bar(row: int, span: Span, start: float, total: float) -> str:
    scale = (_WIDTH - _LABEL - _VALUE) / total
    x = _LABEL + max(0.0, span.start - start) * scale
    width = max(2.0, (span.end - span.start) * scale)
    y = row * _ROW + 3
    facts = [describe.duration(span.end - span.start)]
    if span.tokens:
        facts.append(f"{describe.tokens(span.tokens)} tokens")
    if span.cost is not None:
        facts.append(describe.cost(span.cost))
    label = " · ".join(facts)
    state = span.kind if span.is_ok else "failed"
    name = cut_text(span.name, 26)
    return (
        f"<g><title>{_text(span.name)}: {_text(label)}</title>"
        f'<text x="0" y="{y + 12}">{_text(name)}</text>'
        f'<rect class="{state}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="15" rx="2"/>'
        f'<text class=value x="{min(x + width + 6, _WIDTH - _VALUE + 6):.1f}" y="{y + 12}">'
        f"{_text(label)}</text></g>"
    )


# Text


def _text(text: str) -> str:
    """Text of the session, escaped."""
    return escape(for_pipe(text).encode("utf-8", "replace").decode(), quote=True)


def _id(session: Exported, name: str) -> str:
    return _text(f"{session.id}-{name}")


def _markdown(text: str) -> str:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    # An image would be a request; its source is shown as text instead.
    parser.disable(["image", "html_block", "html_inline"])
    html = parser.render(for_pipe(text).encode("utf-8", "replace").decode())
    return html.replace("<a href=", '<a rel="noopener noreferrer" href=')
