"""Templates → the files of a new module."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from amplifier_app.base.errors import UsageError
from amplifier_app.plan.tree.entries import ModuleKind
from amplifier_kit.scaffold.kinds import check_name, substitutions

_ENDING = ".tmpl"


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
