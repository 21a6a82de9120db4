"""`amplifier plan import`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.file_writing import write_whole
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.plan.documents.plan_files import MergedPlan
from amplifier_app.plan.documents.scopes import read_settings
from amplifier_app.plan.explain import yaml_text
from amplifier_app.plan.masking import open_tree
from amplifier_app.plan.resolution import with_sources
from amplifier_app.plan.source_spec import FolderSource, SourceSyntaxError, parse_source
from amplifier_app.plan.tree.entries import entry_keys
from amplifier_app.plan.tree.nodes import MapNode, Node, Scalar
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.sources.loading import read_source
from amplifier_app.trust import folder_if_trusted


def import_bundle(
    bundle: Annotated[str, argument("BUNDLE", "File, folder, source or name of a bundle.")],
    file: Annotated[
        Path | None, option("-o, --to FILE", "Write the plan to FILE.", dir_okay=False)
    ] = None,
    force: Annotated[bool, option("--force", "Overwrite FILE.")] = False,
) -> None:
    """Convert a bundle and everything it includes to one plan.

    \b
      amplifier plan import bundle.md -o plan.yaml

    The plan contains all their modules, agents and instructions, each with its origin in a
    comment. Variables are kept as written. Entries from a fetched bundle are pinned to the fetched
    commit.
    """
    if file is not None and file.exists() and not force:
        raise ConfigError(f"{file} already exists", hint="Pass --force to overwrite it.")
    settings, argument = read_settings(folder_if_trusted()), Location(bundle)
    try:
        merged = read_source(_as_path(bundle), argument, settings)
    except ConfigError as error:
        error.is_usage = error.location == argument
        raise
    text = _flat_plan(merged, Path.cwd() if file is None else file.absolute().parent)
    for warning in merged.warnings:
        to_stderr(f"amplifier: {one_line(warning, 1000)}")
    if file is None:
        print(for_terminal(text), end="")
        return
    write_whole(file, text)
    to_stderr(one_line(f"amplifier: wrote {file}", 1000))


def _flat_plan(merged: MergedPlan, folder: Path) -> str:
    """A plan with everything it extends and includes, as the text of one file.

    Args:
        merged: The plan.
        folder: The folder the text will be in; relative sources start there.
    """
    problems = Problems(merged.texts)

    def source(node: Scalar) -> str | None:
        text = str(node.value)
        # The values of variables are known only when the plan runs.
        return None if "${" in text else _from(folder, merged.source(text, node.at.file))

    tree = with_sources(merged.document, source, problems)
    problems.raise_if_any()
    head = [f"# {name}" for name in ("Imported with 'amplifier plan import' from:", *merged.chain)]
    if not entry_keys(tree, "providers"):
        head.append("# No provider is listed: choose one with '-p NAME', or add it.")
    name: Node = Scalar(merged.name, merged.document.at)
    named = MapNode({"name": name, **tree.items}, tree.at, tree.keys)
    return "\n".join([*head, "", yaml_text(open_tree(named, written=True), origins=True)])


def _as_path(bundle: str) -> str:
    """The bundle argument; an existing file or folder is always taken as a path."""
    path = Path(os.path.expanduser(bundle))
    is_path = not os.path.isabs(path) and path.exists()
    return f"./{bundle}" if is_path and not bundle.startswith((".", "~")) else bundle


def _from(folder: Path, source: str) -> str:
    """A source as a file in the folder would refer to it."""
    try:
        parsed = parse_source(source, folder)
    except SourceSyntaxError:
        return source
    if isinstance(parsed, FolderSource) and parsed.path.is_relative_to(folder):
        return f"./{parsed.path.relative_to(folder).as_posix()}"
    return source
