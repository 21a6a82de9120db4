"""`amplifier module new`: create the package of a new, working module."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.installed import bundled_modules
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.plan.tree.entries import ModuleKind
from amplifier_core.module_sources import PARTS, conventional_name
from amplifier_support.named_tuple import NamedTuple

_ENDING = ".tmpl"
_NAME = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*"
_LONGEST = 50


class Sample(NamedTuple):
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


TEMPLATES: dict[ModuleKind, Sample] = {
    "tool": Sample(
        "Tool",
        ("tool",),
        "Counts the characters, words and lines of a text.",
        "tools",
        "How many words does this have?",
        "a scripted provider calls the tool",
    ),
    "provider": Sample(
        "Provider",
        ("provider",),
        "Repeats the prompt, word by word.",
        "providers",
        "Is anyone there?",
        "the answer repeats the prompt",
    ),
    "hook": Sample(
        "Hook",
        ("hooks", "hook"),
        "Counts tool calls and denies some of them.",
        "hooks",
        "Run a command.",
        "a scripted provider calls a tool, and the hook denies it",
    ),
    "orchestrator": Sample(
        "Orchestrator",
        ("loop", "orchestrator"),
        "Runs the tools the model calls until there is an answer.",
        "orchestrator",
        "Say hello.",
        "a scripted provider calls a tool, then answers",
    ),
    "context": Sample(
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


def generate(kind: ModuleKind, module_id: str, parent: Path) -> Path:
    """Write the package of a new module, completely or not at all.

    Args:
        kind: Its kind.
        module_id: Its id.
        parent: The parent folder of the new folder; created if necessary.

    Returns:
        The new folder.

    Raises:
        UsageError: The id is invalid, the folder exists, or it cannot be written.
    """
    check_name(module_id)
    target = parent / module_id
    if os.path.lexists(target):
        raise UsageError(
            f"{target} already exists",
            hint="Choose another name, or another folder with --dir.",
        )
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{module_id}-", dir=parent) as name:
            staged = Path(name) / module_id
            _write(kind, module_id, staged)
            # The rename fails if the folder was created in the meantime.
            staged.rename(target)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot write {target}: {reason}") from error
    return target


def _write(kind: ModuleKind, module_id: str, target: Path) -> None:
    values = substitutions(kind, module_id)
    root = files("amplifier_kit.scaffold") / "templates"
    for path, template in [*_templates(root / "common"), *_templates(root / kind)]:
        parts = [values["package"] if part == "package" else part for part in path]
        file = target.joinpath(*parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        text = Template(template.read_text(encoding="utf-8")).substitute(values)
        file.write_text(text, encoding="utf-8")
    (target / values["package"] / "py.typed").touch()


def _templates(
    folder: Traversable, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Traversable]]:
    """The templates below a folder, each with the path of its file."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _templates(entry, (*path, entry.name))
        elif entry.name.endswith(_ENDING):
            yield (*path, entry.name.removesuffix(_ENDING)), entry


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def new(
    kind: Annotated[ModuleKind, argument("KIND", "Kind of the module.")],
    name: Annotated[str, argument("NAME", "Its id, for example my-tool.")],
    folder: Annotated[Path, option("--dir DIR", "Parent folder of the new package.")] = Path(),
) -> None:
    """Create a package for a new module: tool, provider, hook, orchestrator or context.

    \b
      amplifier module new tool my-tool
      amplifier module new provider my-provider --dir modules

    The package works as created and passes its tests. Prints the path of the new folder.
    """
    created = generate(kind, name, folder)
    print(one_line(str(created), 10_000))
    to_stderr("Next:")
    steps = (
        (f"cd {shlex.quote(str(created))}", ""),
        ("pytest", "run its tests (needs pytest and pytest-asyncio next to Amplifier)"),
        ("amplifier module validate . --behavioral", "check the contract of its kind"),
        (f'amplifier run --plan plan.yaml "{TEMPLATES[kind].prompt}"', "try it"),
    )
    for command, what in steps:
        to_stderr(f"  {command}  {'# ' + what if what else ''}".rstrip())
    if name in bundled_modules():
        to_stderr(
            f"A bundled module is also called {name}: to use this one, a plan needs a 'source'."
        )
