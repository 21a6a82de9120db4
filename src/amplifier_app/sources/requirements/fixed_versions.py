"""Which installed distributions keep their version, because code of this process imports them.

Held are the requirements of Amplifier, including transitive ones, and those of the modules that a
plan uses from the environment. Any other installed distribution may be replaced by another
version that a module of the plan requires.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from amplifier_app.base.installed import DISTRIBUTION, normalised
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.requirements.layout import read_name, required_by
from amplifier_app.sources.requirements.names import requirement_name

if TYPE_CHECKING:
    from amplifier_app.base.errors import Location
    from amplifier_app.sources.requirements.layout import Layout

AMPLIFIER = "Amplifier"

MODULE_PACKAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "hooks-otel": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
        "provider-anthropic": ("anthropic", "boto3", "google-auth"),
        "provider-local": ("xllamacpp",),
        "tool-mcp": ("mcp",),
        "tool-search": ("pathspec",),
        "tool-web": ("beautifulsoup4", "markdownify"),
    }
)
"""Bundled module → the distributions that only it imports; some are optional."""

_OPTIONAL = ("keyring",)
"""Packages that Amplifier itself imports if they are installed."""


def fixed_by(modules: Mapping[str, str]) -> dict[str, str]:
    """Name of a distribution → what imports it: `"Amplifier"` or a module id.

    Args:
        modules: Module id → distribution, for modules from the environment.
    """
    own = {name for names in MODULE_PACKAGES.values() for name in names}
    held: dict[str, str] = {}
    direct = [name for name in requirement_names(DISTRIBUTION) if name not in own]
    _hold(held, (*direct, *_OPTIONAL), AMPLIFIER)
    for module_id, distribution in modules.items():
        if normalised(distribution) == DISTRIBUTION:
            _hold(held, MODULE_PACKAGES.get(module_id, ()), module_id)
        else:
            _hold(held, (normalised(distribution),), module_id)
    return held


def own_requirements() -> Collection[str]:
    """The names of everything that Amplifier requires here, and so every installation of it has."""
    held: dict[str, str] = {}
    _hold(held, requirement_names(DISTRIBUTION), AMPLIFIER)
    return held.keys()


def _hold(held: dict[str, str], names: Iterable[str], holder: str) -> None:
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in held:
            held[name] = holder
            waiting += requirement_names(name)


def read_requirements(distribution: str) -> list[str]:
    """The requirements of an installed distribution, without extras; empty if it is missing."""
    try:
        listed = metadata.requires(distribution) or ()
    except metadata.PackageNotFoundError:
        return []
    requirements: list[str] = []
    for text in listed:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            # Metadata older than PEP 508, which cannot be compared.
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            requirement.marker = None
            requirements.append(str(requirement))
    return requirements


def requirement_names(distribution: str) -> list[str]:
    """The names of the distributions that an installed one requires here."""
    return [requirement_name(text) for text in read_requirements(distribution)]


def other_versions(layout: Layout, present: Mapping[str, str]) -> list[tuple[str, Location | None]]:
    """Requirements that the environment has in another version, with their location in a plan."""
    listed: list[tuple[str, Location | None]] = [(text, None) for text in required_by(layout)]
    versions: list[tuple[str, Location | None]] = []
    for text, at in [*listed, *((addition.written, addition.at) for addition in layout.added)]:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            # Reported when it is installed.
            continue
        version = present.get(normalised(requirement.name))
        applies = requirement.marker is None or requirement.marker.evaluate()
        if version and applies and not requirement.specifier.contains(version, prereleases=True):
            versions.append((f"{requirement.name}{requirement.specifier}", at))
    return versions


def refuse_held(
    layout: Layout,
    differing: Iterable[tuple[str, Location | None]],
    holders: Mapping[str, str],
    present: Mapping[str, str],
) -> None:
    """
    Raises:
        SourceError: This process itself imports one of the requirements.
    """
    wrong: list[str] = []
    modules: set[str] = set()
    at = None
    for text, place in differing:
        name = requirement_name(text)
        if name not in holders:
            continue
        at = at or place
        if holders[name] == AMPLIFIER:
            wrong.append(f"{text}, but Amplifier uses {name} {present[name]}")
        else:
            modules.add(holders[name])
            also = f"{holders[name]}, which the plan uses from the environment,"
            wrong.append(f"{text}, but {also} uses {name} {present[name]}")
    if wrong:
        advice = (
            f"remove {' and '.join(sorted(modules))}, or use the modules in separate plans"
            if modules
            else "use a version of the module that is compatible with the environment, or change "
            "the environment"
        )
        raise SourceError(
            f"{read_name(layout)} requires {'; '.join(wrong)}",
            hint=f"A process can use only one version of a package: {advice}",
            location=at,
        )
