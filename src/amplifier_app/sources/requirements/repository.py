"""The package at the root of a repository, for the modules in it that import it.

Published bundles keep code that their modules share at the root, and the modules do not require it: other
programs install it with the bundle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from amplifier_app.base.errors import Location
from amplifier_app.base.installed import normalised
from amplifier_app.plan.requirements import PlanRequirement, check_requirement
from amplifier_app.plan.source_spec import GitSource, SourceSyntaxError, without_password
from amplifier_app.sources.requirements.layout import Layout, read_project
from amplifier_app.sources.requirements.names import requirement_name

if TYPE_CHECKING:
    from amplifier_app.sources.fetch.git import Checkout

_MOST_FILES = 500
_MOST_BYTES = 1 << 20


def package_of_repository(
    source: GitSource, checkout: Checkout, layout: Layout
) -> PlanRequirement | None:
    """Return the requirement of the package at the root, at the same commit; None if it is not imported.

    Args:
        source: The source of the module.
        checkout: The repository.
        layout: How to import the module.

    Raises:
        SourceError: The `pyproject.toml` at the root is invalid.
    """
    file = checkout.root / "pyproject.toml"
    if checkout.folder == checkout.root or not file.is_file():
        return None
    name = read_project(file).get("name")
    if not isinstance(name, str) or normalised(name) in map(requirement_name, layout.dependencies):
        return None
    # The checkout has only the files at the root and the module's folder.
    if not _imports(layout.package, normalised(name).replace("-", "_")):
        return None
    text = f"{name} @ git+{source.url}@{checkout.commit}"
    try:
        check_requirement(text)
    except SourceSyntaxError:  # A name that cannot be required, such as one of Amplifier's own.
        return None
    return PlanRequirement(text, without_password(text), Location(source.shown))


def without_unused(requires: Sequence[PlanRequirement], layout: Layout) -> list[PlanRequirement]:
    """Leave out packages of bundles that a module does not import, or that it requires itself."""
    others = {requirement_name(one.text) for one in requires if not one.if_imported}
    others |= set(map(requirement_name, layout.dependencies))
    return [
        one
        for one in requires
        if not one.if_imported
        or (
            (name := requirement_name(one.text)) not in others
            and _imports(layout.package, name.replace("-", "_"))
        )
    ]


def _imports(module: Path, package: str) -> bool:
    pattern = re.compile(rf"^\s*(?:from|import)\s+{package}\b", re.MULTILINE)
    return any(pattern.search(text) for text in _texts(module))


def _texts(module: Path) -> Iterator[str]:
    files = module.rglob("*.py") if module.is_dir() else [module]
    for file in islice(files, _MOST_FILES):
        if file.is_file() and file.stat().st_size <= _MOST_BYTES:
            yield file.read_text(encoding="utf-8", errors="replace")
