"""Installed packages: the running program among them, and the command that adds an optional part to it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoints

_DISTRIBUTION = "amplifier"
_UV_RECEIPT = "uv-receipt.toml"


class Installation(NamedTuple):
    """The installation of the running program.

    Attributes:
        tool: Name of the program that manages it: `uv tool`, `pipx`, `uv` or `pip`.
        source: Its origin as in `direct_url.json`; empty if it came from a package index.
    """

    tool: str
    source: Mapping[str, Any]

    @property
    def folder(self) -> Path | None:
        """The local folder that it was installed from, if any."""
        if "dir_info" not in self.source:
            return None
        # Its import takes ten milliseconds, and every start imports this file.
        from urllib.request import url2pathname

        return Path(url2pathname(urlsplit(self.source["url"]).path))

    @property
    def installer(self) -> list[str]:
        """The command that installs packages where it is installed, for `uv` and `pip`."""
        if self.tool == "uv":
            return ["uv", "pip", "install", "--python", sys.executable]
        return [sys.executable, "-m", "pip", "install"]

    def requirement(self, *extras: str) -> list[str]:
        """The arguments of an installer that stand for the program, with some extras."""
        name = f"[{','.join(extras)}]" if extras else ""
        if self.folder:
            options = ["-e"] if self.source["dir_info"].get("editable") else []
            return [*options, f"{self.folder}{name}"]
        if vcs := self.source.get("vcs_info"):
            revision = f"@{vcs['requested_revision']}" if "requested_revision" in vcs else ""
            return [f"{_DISTRIBUTION}{name} @ {vcs['vcs']}+{self.source['url']}{revision}"]
        if "archive_info" in self.source:
            return [f"{_DISTRIBUTION}{name} @ {self.source['url']}"]
        return [f"{_DISTRIBUTION}{name}"]


def find_distribution(name: str) -> Distribution | None:
    """Return an installed distribution; None if there is none of this name."""
    # Its import takes 15 ms, and bundled modules are found without it.
    from importlib import metadata

    return next(iter(metadata.distributions(name=name)), None)


def find_entry_points(group: str, **selection: Any) -> EntryPoints:
    """Return the entry points of a group, selected as by `importlib.metadata`."""
    from importlib.metadata import entry_points

    return entry_points(group=group, **selection)


def find_installation() -> Installation:
    """Find out how the running program was installed."""
    distribution = find_distribution(_DISTRIBUTION)
    if distribution is None:  # Run from its source.
        return Installation("pip", {})
    source = json.loads(distribution.read_text("direct_url.json") or "{}")
    for file, tool in ((_UV_RECEIPT, "uv tool"), ("pipx_metadata.json", "pipx")):
        if (Path(sys.prefix) / file).is_file():
            return Installation(tool, source)
    is_uv = (distribution.read_text("INSTALLER") or "").strip() == "uv"
    return Installation("uv" if is_uv else "pip", source)


def install_words(extra: str) -> list[str]:
    """The command line that adds the packages of an extra to the running program, and keeps those it has.

    The program itself is not named where that is not needed: its name may mean another project on an index.
    """
    installation, packages = find_installation(), read_requirements(extra)
    if installation.tool == "pipx":
        return ["pipx", "inject", _DISTRIBUTION, *packages]
    if installation.tool != "uv tool":
        return [*installation.installer, *packages]
    # An upgrade removes packages that are not in the receipt.
    extras, others = _read_receipt()
    added = [word for package in (*others, *packages) for word in ("--with", package)]
    return ["uv", "tool", "install", *added, *installation.requirement(*extras)]


def install_command(extra: str) -> str:
    """The same as `install_words`, for a hint."""
    return shlex.join(install_words(extra))


def read_requirements(extra: str) -> list[str]:
    """The packages of an extra, with their versions; the extra itself if they are unknown."""
    distribution = find_distribution(_DISTRIBUTION)
    lines = (distribution.requires if distribution else None) or ()
    marks = (f"extra == '{extra}'", f'extra == "{extra}"')
    parts = (line.partition(";") for line in lines)
    packages = [name.strip() for name, _, marker in parts if marker.strip() in marks]
    return packages or [f"{_DISTRIBUTION}[{extra}]"]


def _read_receipt() -> tuple[list[str], list[str]]:
    """The extras of the program that uv has installed, and the packages that were added to it."""
    import tomllib

    receipt = tomllib.loads((Path(sys.prefix) / _UV_RECEIPT).read_text(encoding="utf-8"))
    requirements = to_mapping(receipt.get("tool")).get("requirements") or []
    extras: list[str] = []
    others: list[str] = []
    for each in requirements:
        extra_names = each.get("extras") or []
        if each["name"] == _DISTRIBUTION:
            extras += extra_names
        else:
            suffix = f"[{','.join(extra_names)}]" if extra_names else ""
            others.append(f"{each['name']}{suffix}{each.get('specifier') or ''}")
    return extras, others
