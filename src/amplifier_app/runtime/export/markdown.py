"""A conversation as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from amplifier_app.base.sanitize import for_pipe, one_line
from amplifier_app.runtime.export.content import Exported
from amplifier_app.runtime.export.parts import Heading, Part, heading_of, parts_of
from amplifier_app.runtime.observers.visibility import Visibility


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


def session_markdown(session: Exported) -> str:
    """A session and its sub-sessions as Markdown."""
    texts: list[str] = []
    for one in (session, *session.sub_sessions):
        conversation = one.conversation
        heading = heading_of(one.id, one.metadata, conversation, age=False)
        agent = one.metadata.get("agent")
        if one is not session:
            heading = heading._replace(title=f"Sub-agent {agent or ''}: {heading.title}")
        texts.append(as_markdown(heading, list(parts_of(conversation.items, Visibility()))))
    return "\n".join(texts)
