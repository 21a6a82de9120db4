"""Packages from uv's configured index, each in a folder of its own.

    cache/packages/<name>/<version>-<Python and machine>/

A package installed alongside Amplifier is used if it satisfies the source, then a cached version
that does. Otherwise uv picks one that is compatible with the running environment, which is never
written to.
"""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from amplifier_app.base.installed import normalised
from amplifier_app.base.locks import hold_lock
from amplifier_app.plan.source_spec import PackageSource
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetch.staging import staging
from amplifier_app.sources.requirements.names import distributions
from amplifier_app.sources.requirements.uv import Uv
from amplifier_support.private_files import make_tree_private


class InstalledPackage(NamedTuple):
    """A distribution in the cache: its folder and its version."""

    folder: Path
    version: str


class PackageCache:
    """A user's packages, shared by all processes.

    Args:
        root: The cache folder; created when first needed.
        offline: Use only what is on this machine.
    """

    def __init__(self, root: Path, *, offline: bool = False) -> None:
        self._root = root
        self._offline = offline

    def fetch(
        self,
        source: PackageSource,
        environment: Mapping[str, str],
        *,
        version: str | None = None,
        renew: bool = False,
        stop: threading.Event | None = None,
    ) -> InstalledPackage:
        """Install a version of a package that satisfies the source.

        Args:
            source: The package and its versions.
            environment: Name → version of what Amplifier runs on.
            version: The only acceptable version.
            renew: Query the index even if a cached version satisfies the source.
            stop: Set it to cancel.

        Raises:
            SourceError: No version is compatible with the environment.
            Stopped: `stop` was set.
        """
        home = self._root / normalised(source.name)
        if version is None and not renew:
            version = self.last_used(source)
        with hold_lock(home / ".lock", stop):
            if version is None:
                version = self.newest(source, environment, stop=stop)
            folder = home / f"{version}-{_machine()}"
            if not folder.is_dir():
                self._fill(folder, source, version, stop)
        return InstalledPackage(folder, version)

    def last_used(self, source: PackageSource) -> str | None:
        """The newest cached version that satisfies the source; None if there is none."""
        return _newest(self._root / normalised(source.name), source)

    def newest(
        self,
        source: PackageSource,
        environment: Mapping[str, str],
        *,
        stop: threading.Event | None = None,
    ) -> str:
        """The version from the index that satisfies the source and fits the environment.

        Raises:
            SourceError: There is none.
            Stopped: `stop` was set.
        """
        home = self._root / normalised(source.name)
        with staging(home) as stage:
            wanted = stage / "requirements.txt"
            wanted.write_text(source.text, encoding="utf-8")
            uv = Uv(stage, environment, offline=self._offline, stop=stop)
            try:
                return uv.compile([wanted], source.text)[normalised(source.name)]
            except SourceError as error:
                hint = "Check the module's 'source', and the package index that uv is set to use"
                raise SourceError(error.message, hint=error.hint or hint) from error

    def _fill(
        self, folder: Path, source: PackageSource, version: str, stop: threading.Event | None
    ) -> None:
        with staging(folder.parent) as stage:
            uv = Uv(stage, {}, offline=self._offline, stop=stop)
            target = stage / "target"
            uv.install_one(target, source.name, version, f"{source.name} {version}")
            make_tree_private(target)
            target.rename(folder)


def _newest(home: Path, source: PackageSource) -> str | None:
    """The newest cached version that satisfies the source."""
    machine = _machine()
    versions = [
        path.name.removesuffix(f"-{machine}")
        for path in home.glob(f"*-{machine}")
        if normalised(source.name) in distributions([str(path)])
    ]
    fitting = SpecifierSet(source.versions).filter(versions)
    return max(fitting, key=Version, default=None)


def _machine() -> str:
    return f"{sys.implementation.cache_tag}-{sys.platform}-{platform.machine()}"


def refuse_without_versions(source: PackageSource) -> None:
    """Refuse to fetch a bare name, which only refers to installed packages.

    A forgotten `./` or a typo must not fetch and run a stranger's package of that name.

    Raises:
        SourceError: The source has no version specifier.
    """
    if not source.versions:
        raise SourceError(
            f"package {source.name!r} is not installed",
            hint=f"To fetch it from the package index, specify versions, as in "
            f"'{source.text}>=1.0'; for a folder, write './{source.name}'",
        )
