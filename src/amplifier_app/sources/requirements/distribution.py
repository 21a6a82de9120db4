"""Reads the metadata of a distribution in a folder: name, version, modules, requirements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution as Metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from amplifier_app.sources.errors import SourceError
from amplifier_core.module_sources import ENTRY_POINT_GROUP
from amplifier_support.named_tuple import NamedTuple


class Distribution(NamedTuple):
    """An unpacked or installed wheel.

    Attributes:
        name: Its name.
        version: Its version.
        modules: Module id → entry point.
        requirements: What it requires in this environment.
        requires_python: The Python versions it supports, if given.
    """

    name: str
    version: str
    modules: Mapping[str, str]
    requirements: tuple[str, ...]
    requires_python: str | None = None


def find_distribution(root: Path, extras: Iterable[str] = ()) -> Distribution | None:
    """The distribution at the top of a folder; None if there is none, or more than one.

    Args:
        root: The folder.
        extras: The requested extras.

    Raises:
        SourceError: Its metadata is invalid.
    """
    found = sorted(root.glob("*.dist-info"))
    if len(found) != 1 or not (found[0] / "METADATA").is_file():
        return None
    metadata = Metadata.at(found[0])
    facts = {name: metadata.metadata[name] for name in metadata.metadata}
    if not facts.get("Name") or not facts.get("Version"):
        raise SourceError(f"{found[0].name} has no name and version")
    modules = {
        point.name: point.value for point in metadata.entry_points.select(group=ENTRY_POINT_GROUP)
    }
    return Distribution(
        facts["Name"],
        facts["Version"],
        modules,
        tuple(_needed_requirements(metadata.requires or (), tuple(extras), found[0].name)),
        facts.get("Requires-Python"),
    )


def _needed_requirements(
    requires: Iterable[str], extras: tuple[str, ...], where: str
) -> Iterable[str]:
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise SourceError(f"{where} has an invalid requirement: {text!r}") from error
        marker, requirement.marker = requirement.marker, None
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield str(requirement)
