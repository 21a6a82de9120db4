"""The kinds of modules with templates, and the names in a new module."""

from __future__ import annotations

import re

from amplifier_app.base.errors import UsageError
from amplifier_app.plan.tree.entries import ModuleKind
from amplifier_core.module_sources import PARTS, conventional_name
from amplifier_support.named_tuple import NamedTuple

_NAME = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*"
_LONGEST = 50


class Template(NamedTuple):
    """The values of a kind for its templates.

    Attributes:
        suffix: The end of its class name.
        words: Conventional first words of ids of this kind.
        summary: What the module does, as a sentence.
        section: Where a plan lists it: a list, or a part of the session.
        prompt: The prompt of the demonstration.
        demonstration: What the demonstration shows.
    """

    suffix: str
    words: tuple[str, ...]
    summary: str
    section: str
    prompt: str
    demonstration: str


TEMPLATES: dict[ModuleKind, Template] = {
    "tool": Template(
        "Tool",
        ("tool",),
        "Counts the characters, words and lines of a text.",
        "tools",
        "How many words does this have?",
        "a scripted provider calls the tool",
    ),
    "provider": Template(
        "Provider",
        ("provider",),
        "Repeats the prompt, word by word.",
        "providers",
        "Is anyone there?",
        "the answer repeats the prompt",
    ),
    "hook": Template(
        "Hook",
        ("hooks", "hook"),
        "Counts tool calls and denies some of them.",
        "hooks",
        "Run a command.",
        "a scripted provider calls a tool, and the hook denies it",
    ),
    "orchestrator": Template(
        "Orchestrator",
        ("loop", "orchestrator"),
        "Runs the tools the model calls until there is an answer.",
        "orchestrator",
        "Say hello.",
        "a scripted provider calls a tool, then answers",
    ),
    "context": Template(
        "Context",
        ("context",),
        "Keeps the conversation and shows the latest turns that fit.",
        "context",
        "Is anyone there?",
        "a scripted provider repeats what the context contains",
    ),
}


def check_name(name: str) -> None:
    """Check the id of a new module.

    Raises:
        UsageError: It is not a valid id.
    """
    if re.fullmatch(_NAME, name) and len(name) <= _LONGEST:
        return
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower())
    proposed = "-".join(words).lstrip("0123456789-")[:_LONGEST].rstrip("-")
    hint = f"Use '{proposed}'." if proposed else "Use a name such as 'my-tool'."
    raise UsageError(
        f"invalid module name {name!r}: expected words of lower-case letters and digits joined by "
        f"'-', at most {_LONGEST} characters",
        hint=hint,
    )


def substitutions(kind: ModuleKind, module_id: str) -> dict[str, str]:
    """The placeholders of the templates of a kind, with their values."""
    template = TEMPLATES[kind]
    words = module_id.split("-")
    # Ids conventionally start with their kind, which names in the code need not repeat.
    own = words[1:] if words[0] in template.words and len(words) > 1 else words
    own = words if own[0][0].isdigit() else own
    described = own[:-1] if own[-1] in template.words and len(own) > 1 else own
    return {
        "module_id": module_id,
        "kind": kind,
        "suite": kind.capitalize(),
        "distribution": f"amplifier-module-{module_id}",
        "package": conventional_name(module_id),
        "name": "_".join(own) if kind == "tool" else "-".join(own),
        "cls": "".join(word.capitalize() for word in described) + template.suffix,
        "title": " ".join(own).capitalize(),
        "summary": template.summary,
        "usage": _usage(template.section, module_id),
        "prompt": template.prompt,
        "demonstration": template.demonstration,
    }


def _usage(section: str, module_id: str) -> str:
    source = f"git+https://example.com/me/{module_id}@v0.1.0"
    if section in PARTS:
        return f"session:\n  {section}:\n    module: {module_id}\n    source: {source}"
    return f"{section}:\n  - module: {module_id}\n    source: {source}"
