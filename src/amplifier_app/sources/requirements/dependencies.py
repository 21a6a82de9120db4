"""Install the requirements of a module, and packages that are modules, with uv into folders of their own.

    cache/dependencies/<hash of the requirements>/             at the end of `sys.path`
    cache/dependencies/<hash of the requirements>/.preferred/  before the environment
    cache/dependencies/agreed-<hash>.json            versions that several modules can share
    cache/packages/<name>/<version>-<Python and machine>/      a package from uv's configured index

The running environment comes first on `sys.path` and is never written to, so its versions
constrain the resolution. Only packages that this process does not import from the environment
(`amplifier_app.sources.requirements.fixed_versions`) may be installed in another version; these distributions, and
nothing else in the folder, precede the environment. A module that needs another version of
something Amplifier runs on is refused with the reason. `amplifier-core` is always the running one.

A module may also have its requirements in its own folder, for machines without a network:

    my-tool/.dependencies/               the installed requirements
    my-tool/.dependencies/made-for.json  the requirements, and the Python and machine they fit

A package that is installed alongside Amplifier is used if it satisfies the source, then a cached version
that does. Otherwise uv picks a version that is compatible with the running environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
import threading
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from amplifier_app.base.installed import OURS, normalised
from amplifier_app.base.locks import hold_lock
from amplifier_app.base.slow_steps import slow_step
from amplifier_app.plan.source_spec import PackageSource
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetch.staging import staging
from amplifier_app.sources.requirements.fixed_versions import fixed_by, other_versions, refuse_held
from amplifier_app.sources.requirements.layout import (
    VENDORED,
    Addition,
    Layout,
    read_name,
    required_by,
    requires_nothing,
    vendored_in,
)
from amplifier_app.sources.requirements.names import distributions, preferred_in, separate
from amplifier_app.sources.stopping import stop_event
from amplifier_support.environment import without_model_keys
from amplifier_support.files import make_private_folder, make_tree_private, write_private
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.programs import TimedOut, run, search_path

_SECONDS = 900.0
_SHOWN_LINES = 12
_NO_CONNECTION = re.compile(r"\(Connect\)|dns error|timed out|connection (?:reset|closed)", re.I)
_finding = threading.Lock()


class Uv:
    """Runs uv in one folder.

    Args:
        stage: An empty folder for its files.
        constraints: Name → the only acceptable version.
        offline: Use only what is on this machine.
    """

    def __init__(
        self, stage: Path, constraints: Mapping[str, str], *, offline: bool = False
    ) -> None:
        self._stage = stage
        self._offline = offline
        # uv uses the nearest configuration, and the cache may be inside another project.
        (stage / "uv.toml").touch()
        pinned = (f"{name}=={version}\n" for name, version in constraints.items())
        (stage / "constraints.txt").write_text("".join(pinned), encoding="utf-8")
        (stage / "overrides.txt").write_text(
            "".join(f"{ours} ; python_version < '0'\n" for ours in OURS), encoding="utf-8"
        )

    def install(self, target: Path, listed: Iterable[Path], what: str) -> None:
        """Install requirements, including transitive ones, into a folder.

        Args:
            target: The folder; created if missing.
            listed: Requirements files or project files.
            what: What is being installed, for error messages.

        Raises:
            SourceError: uv failed; the message has its reason.
            Stopped: The caller was cancelled.
        """
        self._run("install", "--target", str(target), listed=listed, what=what)
        _clean(target)

    def compile(self, listed: Iterable[Path], what: str) -> dict[str, str]:
        """Resolve requirements: name → version of everything that would be installed.

        Raises:
            SourceError: There is no solution; the message has uv's reason.
            Stopped: The caller was cancelled.
        """
        options = ("--no-header", "--no-annotate", "--quiet")
        text = self._run("compile", *options, listed=listed, what=what)
        versions: dict[str, str] = {}
        for line in text.splitlines():
            match = re.match(r"([A-Za-z0-9][\w.-]*)==([^\s;]+)", line)
            if match:
                versions[normalised(match[1])] = match[2]
        return versions

    def install_one(self, target: Path, name: str, version: str, what: str) -> None:
        """Install one distribution into a folder, without its requirements.

        Raises:
            SourceError: uv failed; the message has its reason.
            Stopped: The caller was cancelled.
        """
        requirement = f"{name}=={version}"
        self._run("install", "--no-deps", "--target", str(target), requirement, what=what)
        _clean(target)

    def _run(self, verb: str, *arguments: str, listed: Iterable[Path] = (), what: str) -> str:
        files = [str(file) for file in listed]
        if verb == "install":
            files = [part for file in files for part in ("-r", file)]
        command = [
            *(find_uv(), "pip", verb, *arguments, "--python", sys.executable),
            *("--override", str(self._stage / "overrides.txt")),
            *("--constraint", str(self._stage / "constraints.txt")),
            *(("--offline",) if self._offline else ()),
            *files,
        ]
        # Build backends and programs such as git run in it, and they need no keys.
        env = {
            **without_model_keys(os.environ),
            **{"PATH": search_path(), "UV_NO_PROGRESS": "1", "NO_COLOR": "1"},
        }
        try:
            with slow_step(f"installing {what}"):
                done = run(command, cwd=self._stage, env=env, seconds=_SECONDS, stop=stop_event())
        except TimedOut as error:
            raise SourceError(f"cannot install {what}: {error}") from error
        if done.code != 0:
            raise self._failure(what, done.stderr)
        return done.stdout

    def _failure(self, what: str, stderr: str) -> SourceError:
        # "Using …" names the interpreter, which is never the cause.
        lines = [line for line in stderr.splitlines() if line.strip()[:6] not in ("", "Using ")]
        if self._offline and "network was disabled" in stderr:
            return SourceError(
                f"cannot install {what} offline: not in the cache",
                hint="Run once without --offline",
            )
        fetched = re.search(r"Failed to fetch: `?([^\s`]+)", stderr)
        if fetched and _NO_CONNECTION.search(stderr):
            address = urlsplit(fetched[1])
            host = address.netloc.rpartition("@")[2]
            # The files of packages need not be where the index is.
            where = host if "Failed to download" in stderr else f"the package index at {host}"
            # uv's own hints name options of its command line.
            last = next(line for line in reversed(lines) if not line.startswith("hint: "))
            reason = last.strip().removeprefix("cause: ").removeprefix("Caused by: ")
            check = "Check the network connection and the package index that uv is set to use"
            if "certificate" in reason:
                check = "To trust the system's certificates, set UV_NATIVE_TLS=1"
            return SourceError(
                f"cannot install {what}: {where} cannot be reached: {reason}", hint=check
            )
        hint = None
        if "No solution found" in stderr and "was not found" not in stderr:
            hint = "requirements must be compatible with the environment Amplifier runs in"
        reason = "\n".join(lines[-_SHOWN_LINES:])
        return SourceError(f"cannot install {what}:\n{reason}", hint=hint)


def find_uv() -> str:
    """Return the path of uv, which is installed with the program.

    Raises:
        SourceError: It is missing.
    """
    import uv  # Nodes of a Ray cluster do not have it.

    try:
        # It calls `sysconfig`, whose first call is not thread-safe before Python 3.12.
        with _finding:
            return os.fsdecode(uv.find_uv_bin())
    except FileNotFoundError as error:
        raise SourceError(
            f"uv, which installs the dependencies of modules, is missing: {error}",
            hint="Reinstall Amplifier with its dependencies",
        ) from error


def _clean(target: Path) -> None:
    """Remove scripts, which contain the path of this machine's Python, and uv's lock."""
    (target / ".lock").unlink(missing_ok=True)
    for scripts in ("bin", "Scripts"):
        shutil.rmtree(target / scripts, ignore_errors=True)


_UNPINNED: Mapping[str, str] = {}

_OF_MODULES = ("archives", "git", "packages")
"""Folders next to the dependency cache that may be on `sys.path` for the modules of a session."""


class DependencyCache:
    """Folders of installed requirements, shared by all processes.

    Args:
        root: The cache folder; created when first needed.
        offline: Use only what is on this machine.
        mounted: Returns module id → distribution, for modules this process uses from the
            environment.

    Attributes:
        root: The cache folder.
    """

    def __init__(
        self, root: Path, *, offline: bool = False, mounted: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self.root = root
        self._offline = offline
        self._mounted = mounted

    def folder_for(
        self,
        layout: Layout,
        *,
        root: Path | None = None,
        pins: Mapping[str, str] = _UNPINNED,
        complete: bool = False,
    ) -> Path | None:
        """Install what a module requires; None if the environment already has all of it.

        Args:
            layout: The module's layout.
            root: The module's folder, which may contain vendored requirements.
            pins: Name → the only acceptable version.
            complete: Include what the environment already has.

        Raises:
            SourceError: The environment has another version, or uv cannot install it.
            Stopped: The caller was cancelled.
        """
        if requires_nothing(layout, root):
            return None
        own = required_by(layout)
        required = [*own, *(addition.written for addition in layout.added)]
        copied = vendored_in(root)
        present = self.environment()
        if (
            copied is not None
            and _vendored_fits(copied, required, {**pins, **present})
            and not self._holders(layout).keys() & distributions(map(str, preferred_in(copied)))
        ):
            return copied
        satisfied = all(_is_satisfied(text, present) for text in required)
        if satisfied and not layout.dynamic and not complete:
            return None
        required = [*own, *(addition.exact for addition in layout.added)]
        settings = _uv_settings(layout.project_file)
        home = self.root / _key(required, settings, layout, pins)
        if _fits(home, present):
            return home
        differing = other_versions(layout, present)
        holders = self._holders(layout) if differing or not _agree(pins, present) else None
        if holders is not None:
            refuse_held(layout, differing, holders, present)
        else:
            try:
                self._make(home, layout, pins, present, present)
                return home
            except SourceError as error:
                holders = self._holders(layout)
                if "No solution found" not in error.message or holders.keys() >= present.keys():
                    raise
        held = {name: version for name, version in present.items() if name in holders}
        home = self.root / _key(
            [*required, json.dumps(sorted(held.items()))], settings, layout, pins
        )
        self._make(home, layout, pins, held, present)
        return home

    def _make(
        self,
        home: Path,
        layout: Layout,
        pins: Mapping[str, str],
        held: Mapping[str, str],
        present: Mapping[str, str],
    ) -> None:
        """Install requirements into a folder that does not exist yet or no longer fits."""
        if not _fits(home, present):
            with hold_lock(home.with_suffix(".lock"), stop_event()):
                if not _fits(home, present):
                    self._fill(home, layout, {**pins, **held}, present)

    def _holders(self, *layouts: Layout) -> Mapping[str, str]:
        """Distribution → what imports it from the environment, other than these modules."""
        own = {layout.module_id for layout in layouts if layout.installed}
        mounted = self._mounted()
        return fixed_by(
            {module_id: mounted[module_id] for module_id in mounted if module_id not in own}
        )

    def agree(
        self, layouts: list[Layout], *, fixed: Mapping[str, str] = _UNPINNED
    ) -> dict[str, str]:
        """Find versions that satisfy the requirements of several modules: name → version.

        Args:
            layouts: The modules' layouts.
            fixed: Name → the only acceptable version.

        Raises:
            SourceError: No such versions exist; the message has uv's reason.
            Stopped: The caller was cancelled.
        """
        present = self.environment()
        keys = [
            _key(
                [*required_by(layout), *(added.exact for added in layout.added)],
                _uv_settings(layout.project_file),
                layout,
                {},
            )
            for layout in layouts
        ]
        holders = self._holders(*layouts)
        held = {name: version for name, version in present.items() if name in holders}
        constraints = [sorted({**fixed, **present}.items()), sorted(held)]
        text = json.dumps([sorted(keys), *constraints])
        note = self.root / f"agreed-{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
        try:
            return json.loads(note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            # Missing or damaged: resolve again.
            pass
        try:
            agreed = self._compile(layouts, {**fixed, **present})
        except SourceError as error:
            if "No solution found" not in error.message or held.keys() >= present.keys():
                raise
            agreed = self._compile(layouts, {**fixed, **held})
        make_private_folder(note.parent)
        write_private(note, json.dumps(agreed).encode())
        return agreed

    def _compile(self, layouts: list[Layout], constraints: Mapping[str, str]) -> dict[str, str]:
        with staging(self.root) as stage:
            uv = Uv(stage, constraints, offline=self._offline)
            return uv.compile(
                _write_requirement_files(stage, layouts), "the combined dependencies of the modules"
            )

    def environment(self) -> dict[str, str]:
        """Name → version of what is installed in the environment, without our own caches."""
        ours = [self.root, *(self.root.parent / name for name in _OF_MODULES)]
        return distributions(
            folder
            for folder in sys.path
            if Path(folder).name != VENDORED
            and not any(Path(folder).absolute().is_relative_to(our.absolute()) for our in ours)
        )

    def versions_in_use(self) -> dict[str, str]:
        """Name → version of what this process itself imports from the environment."""
        holders = self._holders()
        return {name: version for name, version in self.environment().items() if name in holders}

    def _fill(
        self, home: Path, layout: Layout, constraints: Mapping[str, str], present: Mapping[str, str]
    ) -> None:
        with staging(self.root) as stage:
            uv = Uv(stage, constraints, offline=self._offline)
            what = f"the dependencies of {read_name(layout)}"
            uv.install(stage / "target", _write_requirement_files(stage, [layout]), what)
            separate(stage / "target", present)
            if home.exists():
                # The old one was installed for another state of the environment.
                shutil.move(home, stage / "old")
            make_tree_private(stage / "target")
            (stage / "target").rename(home)


def _write_requirement_files(stage: Path, layouts: list[Layout]) -> list[Path]:
    """Requirement files of modules, for uv."""
    files: list[Path] = []
    for number, layout in enumerate(layouts):
        # `tool.uv.sources` and computed requirements need the project file itself.
        if layout.project_file and (layout.dynamic or _uv_settings(layout.project_file)):
            files.append(layout.project_file)
        else:
            files.append(stage / f"requirements-{number}.txt")
            required = required_by(layout)
            _refuse_options(layout, required)
            files[-1].write_text("\n".join(required), encoding="utf-8")
        if layout.added:
            files.append(stage / f"added-{number}.txt")
            lines = [
                addition.line(_copy_repository(addition, stage / f"repository-{number}-{index}"))
                for index, addition in enumerate(layout.added)
            ]
            files[-1].write_text("\n".join(lines), encoding="utf-8")
    return files


def _copy_repository(added: Addition, target: Path) -> str:
    """The URL of a copy of a requirement's repository, as a build may write into it."""
    checkout = added.checkout
    if checkout is None:
        return ""
    shutil.copytree(checkout.root, target, symlinks=True)
    return (target / checkout.folder.relative_to(checkout.root)).as_uri()


def _refuse_options(layout: Layout, required: Iterable[str]) -> None:
    """Refuse options and paths: uv would act on `-e ../x` or `-r FILE` in a requirements file."""
    for text in required:
        try:
            Requirement(text)
            valid = text.isprintable()
        except InvalidRequirement:
            valid = False
        if not valid:
            raise SourceError(
                f"cannot install the dependencies of {read_name(layout)}: {text!r} is not a package",
                hint="Write 'package', 'package>=1.2,<2' or 'package @ URL'",
            )


def _key(
    required: Iterable[str], settings: dict[str, Any], layout: Layout, pins: Mapping[str, str]
) -> str:
    parts: list[Any] = [sorted(required), settings, sys.implementation.cache_tag]
    parts += [sys.platform, platform.machine(), sorted(pins.items())]
    if settings or layout.dynamic:
        # Such requirements may refer to other files in the project.
        parts.append(str(layout.project_file))
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _uv_settings(project_file: Path | None) -> dict[str, Any]:
    if project_file is None:
        return {}
    with project_file.open("rb") as stream:
        settings = tomllib.load(stream).get("tool", {}).get("uv", {})
    return settings if isinstance(settings, dict) else {}


def _is_satisfied(requirement: str, present: Mapping[str, str]) -> bool:
    """Return True if the running environment is known to satisfy a requirement."""
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement:
        # Reported when it is installed.
        return False
    if parsed.marker is not None and not parsed.marker.evaluate():
        return True
    if parsed.url or parsed.extras:
        return False
    version = present.get(normalised(parsed.name))
    return version is not None and parsed.specifier.contains(version, prereleases=True)


def _agree(versions: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Return True if nothing has one version here and another one there."""
    return all(others.get(name, version) == version for name, version in versions.items())


def _fits(home: Path, present: Mapping[str, str]) -> bool:
    """Return True if a folder exists and has no other versions than the environment."""
    return home.is_dir() and _agree(distributions([str(home)]), present)


_NOTE = "made-for.json"


def this_machine() -> dict[str, str]:
    """Return the properties of the machine that installed packages depend on besides names and
    versions.
    """
    tag = sys.implementation.cache_tag or sys.implementation.name
    return {"python": tag, "platform": sys.platform, "machine": platform.machine()}


def describe_vendored(folder: Path, required: Iterable[str]) -> None:
    """Record what a folder of vendored requirements was made for.

    Raises:
        OSError: It cannot be written.
    """
    note = {"requirements": sorted(required), **this_machine()}
    (folder / _NOTE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")


def _vendored_fits(folder: Path, required: Iterable[str], wanted: Mapping[str, str]) -> bool:
    """Return True if a folder of vendored requirements can be used here.

    Args:
        folder: The folder.
        required: The module's requirements.
        wanted: Name → the only acceptable version.
    """
    try:
        note = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        # Not written by us, or damaged: install again.
        return False
    if not isinstance(note, dict) or not this_machine().items() <= note.items():
        return False
    return set(required) <= set(note.get("requirements", ())) and _fits(folder, wanted)


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
    ) -> InstalledPackage:
        """Install a version of a package that satisfies the source.

        Args:
            source: The package and its versions.
            environment: Name → version of what Amplifier runs on.
            version: The only acceptable version.
            renew: Query the index even if a cached version satisfies the source.

        Raises:
            SourceError: No version is compatible with the environment.
            Stopped: The caller was cancelled.
        """
        home = self._root / normalised(source.name)
        if version is None and not renew:
            version = self.last_used(source)
        with hold_lock(home / ".lock", stop_event()):
            if version is None:
                version = self.newest(source, environment)
            folder = home / f"{version}-{_machine()}"
            if not folder.is_dir():
                self._fill(folder, source, version)
        return InstalledPackage(folder, version)

    def last_used(self, source: PackageSource) -> str | None:
        """The newest cached version that satisfies the source; None if there is none."""
        suffix = f"-{_machine()}"
        versions = [
            path.name.removesuffix(suffix)
            for path in (self._root / normalised(source.name)).glob(f"*{suffix}")
            if normalised(source.name) in distributions([str(path)])
        ]
        fitting = SpecifierSet(source.versions).filter(versions)
        return max(fitting, key=Version, default=None)

    def newest(self, source: PackageSource, environment: Mapping[str, str]) -> str:
        """The version from the index that satisfies the source and fits the environment.

        Raises:
            SourceError: There is none.
            Stopped: The caller was cancelled.
        """
        home = self._root / normalised(source.name)
        with staging(home) as stage:
            path = stage / "requirements.txt"
            path.write_text(source.text, encoding="utf-8")
            uv = Uv(stage, environment, offline=self._offline)
            try:
                return uv.compile([path], source.text)[normalised(source.name)]
            except SourceError as error:
                hint = "Check the module's 'source', and the package index that uv is set to use"
                raise SourceError(error.message, hint=error.hint or hint) from error

    def _fill(self, folder: Path, source: PackageSource, version: str) -> None:
        with staging(folder.parent) as stage:
            uv = Uv(stage, {}, offline=self._offline)
            target = stage / "target"
            uv.install_one(target, source.name, version, f"{source.name} {version}")
            make_tree_private(target)
            target.rename(folder)


def _machine() -> str:
    return "-".join(this_machine().values())


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
