"""A conversation as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from amplifier_app.base.sanitize import for_pipe, one_line
from amplifier_app.runtime.export.content import Exported
from amplifier_app.runtime.export.parts import Heading, Part, heading_of, parts_of
from amplifier_app.runtime.observers.visibility import Visibility


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
    for one in (session, *session.sub_sessions):
        conversation = one.conversation
        heading = heading_of(one.id, one.metadata, conversation, age=False)
        agent = one.metadata.get("agent")
        if one is not session:
            heading = heading._replace(title=f"Sub-agent {agent or ''}: {heading.title}")
            yield "\n"
        yield from as_markdown(heading, parts_of(conversation, Visibility()))
