"""A saved conversation as Markdown, or drawn for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from amplifier_app.base.sanitize import for_pipe, for_terminal, one_line
from amplifier_app.render.ansi import clip, paint
from amplifier_app.render.table import wrapped
from amplifier_app.runtime import describe
from amplifier_app.runtime.visibility import Visibility, mark_of, shown_blocks
from amplifier_app.sessions.conversation import Call, Conversation, Item, Note, Prompt, Step
from amplifier_app.sessions.search_text import as_text
from amplifier_app.sessions.summary import cost_in


class Part(NamedTuple):
    """A piece of a conversation as it is shown."""

    kind: Literal["prompt", "answer", "thinking", "call", "note"]
    text: str


class Heading(NamedTuple):
    """What is shown above a conversation: its title and facts about it."""

    title: str
    facts: Sequence[str] = ()
    lines: Sequence[str] = ()


def heading_of(
    session_id: str, metadata: Mapping[str, Any], conversation: Conversation, *, age: bool
) -> Heading:
    """The heading of a session, with its `age` or else the time of its last use."""

    def text(key: str) -> str:
        value = metadata.get(key)
        return one_line(value) if isinstance(value, str) else ""

    usage = metadata.get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    cost = cost_in(metadata)
    facts = (
        session_id,
        describe.count(len(conversation.prompts), "prompt"),
        describe.count(len(conversation.steps), "step"),
        f"{describe.tokens(total)} tokens" if isinstance(total, int) else "",
        "" if cost is None else describe.cost(cost),
        text("model"),
        text("project"),
        describe.age(text("updated")) if age else text("updated"),
    )
    return Heading(text("title") or session_id, [fact for fact in facts if fact])


def parts_of(items: Sequence[Item], visibility: Visibility) -> Iterator[Part]:
    """The parts of a conversation that are shown at a level of visibility."""
    for item in items:
        if isinstance(item, Prompt):
            yield Part("prompt", item.text)
        elif isinstance(item, Step):
            yield from _answer(item, visibility)
            for call in item.calls:
                yield Part("call", call_line(call))
        else:
            yield Part("note", _note(item, whole=visibility.level == "internal"))


def last_prompts(conversation: Conversation, count: int) -> list[Item]:
    """The items from the beginning of the last `count` prompts; all with 0."""
    prompts = [n for n, item in enumerate(conversation.items) if isinstance(item, Prompt)]
    return (
        conversation.items[prompts[-count] :] if 0 < count <= len(prompts) else conversation.items
    )


def _answer(step: Step, visibility: Visibility) -> Iterator[Part]:
    content = step.message.get("content")
    if isinstance(content, str):
        yield Part("answer", content)
        return
    blocks: list[Any] = shown_blocks(content, visibility) if isinstance(content, list) else []
    thought = step.message.get("thinking_block")
    if isinstance(thought, dict) and visibility.shows("thinking", mark_of(thought)):
        blocks = [thought, *blocks]
    seen: set[str] = set()
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "thinking":
            text = str(block.get("thinking") or "")
            if text and text not in seen:
                yield Part("thinking", text)
            seen.add(text)
        elif kind == "text":
            yield Part("answer", str(block.get("text", "")))
        elif kind not in ("tool_call", "tool_result"):
            yield Part("note", f"({one_line(str(kind), 40)})")


def _note(note: Note, *, whole: bool) -> str:
    if note.kind == "cleared":
        return "The context was cleared here."
    if note.kind == "replaced":
        return "The context was replaced here, for example by a summary."
    text = as_text(note.message.get("content"))
    name = "system prompt" if note.kind in ("system", "developer") else "added by a hook"
    if whole:
        return f"{name}:\n{text}"
    return f"{name}: {len(text):,} characters"


def call_line(call: Call) -> str:
    """A tool call in one line: `7 bash pytest -q · 12 lines`."""
    about = describe.tool_input({"tool_input": call.input})
    if call.result is None:
        size = "no result"
    else:
        count = len(call.result.splitlines())
        size = one_line(call.result, 60) if count == 1 else f"{count:,} lines"
    words = " ".join(filter(None, (str(call.number), one_line(call.name, 60), about)))
    return f"{words} · {size}" if size else words


def call_text(call: Call) -> str:
    """A tool call with its whole input and result, as text."""
    lines = [f"{call.number} {call.name}", ""]
    if isinstance(call.input, dict):
        for name, value in call.input.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            below = "\n" in text
            lines += [f"{name}:", *text.splitlines(), ""] if below else [f"{name}: {text}"]
    elif call.input is not None:
        lines.append(as_text(call.input))
    lines += ["", "result:" if call.result is not None else "no result was recorded"]
    return "\n".join([*lines, *(call.result or "").splitlines()])


# Markdown


def as_markdown(heading: Heading, parts: Sequence[Part]) -> str:
    """The conversation as Markdown for a file or another program."""
    texts = [f"# {one_line(heading.title)}"]
    if heading.facts:
        texts.append(" · ".join(heading.facts))
    texts += heading.lines
    number = 0
    for n, part in enumerate(parts):
        text = for_pipe(part.text)
        if part.kind == "prompt":
            number += 1
            texts.append(f"## › {one_line(text, 80)}" if "\n" not in text.strip() else "## ›")
            if "\n" in text.strip() or len(text) > 80:
                texts.append(text)
        elif part.kind == "call":
            line = "- `" + text.replace("`", "'") + "`"
            follows = n > 0 and parts[n - 1].kind == "call"
            texts[-1:] = [f"{texts[-1]}\n{line}"] if follows else [texts[-1], line]
        elif part.kind == "answer":
            texts.append(text)
        else:
            texts.append("\n".join(f"> {line}".rstrip() for line in text.splitlines()))
    return "\n\n".join(text.strip("\n") for text in texts if text.strip()) + "\n"


# Terminal


def as_ansi(heading: Heading, parts: Sequence[Part], width: int) -> str:
    """The conversation with colours, in lines of at most `width` cells."""
    # The Markdown parser is loaded for a terminal only.
    from amplifier_app.render.markdown import markdown_lines

    lines = [paint(clip(for_terminal(heading.title), width), "bold")]
    facts = " · ".join(heading.facts)
    for line in [*([facts] if facts else []), *heading.lines]:
        lines += [paint(one, "dim") for one in wrapped(for_terminal(line), width)]
    before = ""
    for part in parts:
        text = for_terminal(part.text).strip("\n")
        if not text.strip():
            continue
        if part.kind != "call" or before != "call":
            lines.append("")
        before = part.kind
        if part.kind == "answer":
            lines += markdown_lines(text, width)
        elif part.kind == "call":
            number, _, rest = text.partition(" ")
            lines.append(clip(f"{paint(f'{number:>4}', 'dim')} {rest}", width))
        elif part.kind == "prompt":
            styled = [paint(one, "bold") for one in _wrapped_lines(text, width - 2)]
            lines += [f"{paint('›', 'bold')} {styled[0]}", *(f"  {one}" for one in styled[1:])]
        else:
            style = "dim italic" if part.kind == "thinking" else "dim"
            lines += [paint(one, style) for one in _wrapped_lines(text, width)]
    return "\n".join([*lines, ""])


def _wrapped_lines(text: str, width: int) -> list[str]:
    return [row for line in text.split("\n") for row in wrapped(line, width)]
