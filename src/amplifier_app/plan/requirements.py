"""The key `requires` of a plan's entries, checked, by module."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from amplifier_app.base.errors import Location
from amplifier_app.plan.source_spec import SourceSyntaxError, check_requirement, without_password
from amplifier_app.plan.tree.nodes import MapNode, Scalar, read_text
from amplifier_app.plan.tree.problems import Problems
from amplifier_support.named_tuple import NamedTuple


class PlanRequirement(NamedTuple):
    """One entry of `requires`.

    Attributes:
        text: The complete requirement.
        written: The requirement without passwords, as written to locks.
        at: Where it is written.
        if_imported: True for the package of a bundle's repository: only modules that import it need it.
    """

    text: str
    written: str
    at: Location
    if_imported: bool = False


def package_of_bundle(source: str, folder: Path, at: Location) -> PlanRequirement | None:
    """Return the package that the repository of a fetched bundle is; None if it is none.

    Published bundles list modules of other repositories that import it, and do not require it: other
    programs install it with the bundle.

    Args:
        source: The source of the repository, at a commit.
        folder: Its files.
        at: Where the bundle lists a module.
    """
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        name = project["project"]["name"]
        text = f"{name} @ {source}"
        if check_requirement(text) is None:
            return None
    except (OSError, ValueError, LookupError, TypeError, SourceSyntaxError):
        # Not a package, or one that cannot be required, such as Amplifier's own.
        return None
    return PlanRequirement(text, without_password(text), at, if_imported=True)


def parse_requirements(
    entries: Iterable[MapNode], problems: Problems
) -> dict[str, tuple[PlanRequirement, ...]]:
    """Module id → requirements added by its entries.

    A process loads a module once, so all entries of a module share their requirements.

    Args:
        entries: The entries, with variables expanded.
        problems: Collects invalid requirements.
    """
    by_module: dict[str, dict[str, PlanRequirement]] = {}
    for entry in entries:
        module = entry.text("module")
        for node in entry.listed("requires"):
            text = read_text(node)
            if not isinstance(node, Scalar) or text is None or node.unset:
                continue
            try:
                check_requirement(text)
            except SourceSyntaxError as error:
                if not problems.any_at(node.at):
                    problems.add(error.message, node.at, error.hint)
                continue
            raw = node.expression if node.secret else None
            written = without_password(raw or text)
            requirement = PlanRequirement(text, written, node.at)
            by_module.setdefault(module or "", {}).setdefault(written, requirement)
    return {module: tuple(by_text.values()) for module, by_text in by_module.items()}
