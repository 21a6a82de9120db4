"""Vendors modules: copies them with their requirements into a folder that can be committed.

    DIR/vendor.json        the manifest, with the Python and machine it was made for
    DIR/<id>/              the module's files
    DIR/<id>/.dependencies its requirements, installed

A folder that was changed since it was copied is only overwritten on request.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.installed import normalised
from amplifier_app.base.locks import changing_settings
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetch.staging import content_files, content_hash, links_out, staging
from amplifier_app.sources.lockfile import Lock, LockEntry
from amplifier_app.sources.plan_lock import Wanted, lock_entry, resolve_all
from amplifier_app.sources.requirements.dependencies import (
    DependencyCache,
    describe_vendored,
    this_machine,
)
from amplifier_app.sources.requirements.fixed_versions import own_requirements
from amplifier_app.sources.requirements.layout import VENDORED, required_by
from amplifier_app.sources.requirements.names import installed_files, requirement_name
from amplifier_app.sources.resolved import ResolvedSource
from amplifier_support.named_tuple import NamedTuple

MANIFEST = "vendor.json"

State = Literal["copied", "unchanged", "not copied"]


class Manifest(Lock):
    """The manifest of a folder of vendored modules; an entry's `content` is that of the copy.

    Attributes:
        made_for: The Python and the machine that the requirements were installed for.
    """

    FORMAT: ClassVar[str] = "amplifier-vendor"
    WHAT: ClassVar[str] = "manifest"
    WRITTEN_BY: ClassVar[str] = "amplifier module vendor"

    made_for: Mapping[str, str]


class Vendored(NamedTuple):
    """The result for one module.

    Attributes:
        module: Its id.
        state: Whether it was copied.
        source: Its new source folder; if it was not copied, its distribution and version.
        entry: Its lock entry.
    """

    module: str
    state: State
    source: str
    entry: LockEntry


async def vendor(
    plan: ResolvedPlan, lock: Lock | None, folder: Path, cache: Path, *, force: bool = False
) -> list[Vendored]:
    """Copy the modules of a plan that are not bundled.

    Args:
        plan: The plan.
        lock: Its lock, used where it still fits.
        folder: The target folder; created if missing.
        cache: The cache folder.
        force: Overwrite copies that were changed.

    Raises:
        ConfigError: A copy was changed since it was made, or the folder cannot be written.
        SourceError: Modules are unavailable or cannot be copied.
    """
    resolved = await resolve_all(_without_overrides(plan, folder), lock)
    chosen = {
        wanted.module: (wanted, source)
        for wanted, source in resolved
        if source.kind != "bundled" and not _is_in(source.root, folder)
    }
    dependencies = DependencyCache(cache / "dependencies")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with staging(folder) as stage:
            copies = {
                module: await asyncio.to_thread(_copy, source, stage / module, dependencies)
                for module, (_, source) in chosen.items()
                if source.root is not None and not source.installed
            }
            with changing_settings():
                return _write_vendored(plan, chosen, copies, folder, stage, force=force)
    except OSError as error:
        where = error.filename or folder
        raise ConfigError(
            f"cannot write {where}: {(error.strerror or str(error)).lower()}"
        ) from error


def _without_overrides(plan: ResolvedPlan, folder: Path) -> ResolvedPlan:
    """The plan without settings that point into the folder, whose modules are copied again."""
    sources = {
        module: written
        for module, written in plan.merged.sources.items()
        if module not in plan.sources
        or not Path(plan.sources[module].source).resolve().is_relative_to(folder.resolve())
    }
    merged = plan.merged._replace(sources=sources)
    return ResolvedPlan(merged, plan.chosen, plan.environ, keep_unset=plan.keep_unset)


def _is_in(root: Path | None, folder: Path) -> bool:
    return root is not None and root.resolve().is_relative_to(folder.resolve())


# -- copying -----------------------------------------------------------------------------


def _copy(source: ResolvedSource, target: Path, dependencies: DependencyCache) -> Path:
    """Copy a module with its requirements and return the folder to use as its source."""
    root, layout = source.root, source.layout
    assert root is not None
    assert layout is not None
    home = target
    if root.is_file():
        home.mkdir(parents=True)
        _copy_file(root, home / root.name)
        return home
    if layout.entry_point is None:
        # The folder is the package itself, so its name must stay the same.
        home = target / root.name
    outside = sorted(links_out(root))
    if outside:
        raise SourceError(
            f"{root} has a link that points outside it: {outside[0]}",
            hint="Replace the link with its target; it would be broken on another machine.",
        )
    _copy_files(root, home)
    required = [*required_by(layout), *(addition.written for addition in layout.added)]
    if required or layout.dynamic:
        complete = layout.dynamic or any(
            requirement_name(text) not in own_requirements() for text in required
        )
        installed = next(iter(source.import_paths), None)
        if installed is None and complete:
            installed = dependencies.folder_for(layout, complete=True)
        if installed is not None:
            _copy_files(installed, home / VENDORED)
            _remove_own_requirements(home / VENDORED, installed)
            describe_vendored(home / VENDORED, required)
    return home


def _copy_files(root: Path, target: Path) -> None:
    for name, path in content_files(root):
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        _copy_file(path, copy)


def _copy_file(path: Path, copy: Path) -> None:
    """Copy a file or a link. What is private in the cache is for others in the project."""
    shutil.copyfile(path, copy, follow_symlinks=False)
    if not path.is_symlink() and path.stat().st_mode & stat.S_IXUSR:
        mode = copy.stat().st_mode
        copy.chmod(mode | (mode & 0o444) >> 2)


def _remove_own_requirements(folder: Path, installed: Path) -> None:
    """Remove what Amplifier itself requires from a copy of a folder of installed packages.

    Every installation has these packages, so they need not be copied, and would conflict with an
    installation that has another version.
    """
    names = own_requirements()
    for info in sorted(folder.glob("*.dist-info")):
        metadata_folder = installed / info.name
        if normalised(info.name.partition("-")[0]) not in names:
            continue
        if not (metadata_folder / "RECORD").is_file():
            continue
        for file in installed_files(metadata_folder, folder):
            file.unlink()
        shutil.rmtree(info)
    for below, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            # Fails for folders that are not empty, as intended.
            Path(below).rmdir()
    folder.mkdir(exist_ok=True)


# -- putting in place --------------------------------------------------------------------


def _write_vendored(
    plan: ResolvedPlan,
    chosen: Mapping[str, tuple[Wanted, ResolvedSource]],
    copies: Mapping[str, Path],
    folder: Path,
    stage: Path,
    *,
    force: bool,
) -> list[Vendored]:
    manifest = folder / MANIFEST
    before = Manifest.read(manifest) if manifest.exists() else None
    entries = {
        module: lock_entry(module_source, source)
        for module, (module_source, source) in chosen.items()
    }
    contents = {module: content_hash(stage / module) for module in copies}
    if not force:
        _refuse_changed(folder, before, contents)
    done: list[Vendored] = []
    kept = dict(before.modules) if before is not None else {}
    for module, entry in entries.items():
        if module not in copies:
            shown = f"{entry.distribution} {entry.version}"
            done.append(Vendored(module, "not copied", shown, entry))
            continue
        kept[module] = entry.model_copy(update={"content": contents[module]})
        state = _replace(stage / module, folder / module, contents[module], stage)
        source = folder / copies[module].relative_to(stage)
        done.append(Vendored(module, state, str(source), entry))
    machine = this_machine()
    Manifest(plan=plan.name, modules=kept, made_for=machine).write(manifest)
    return done


def _refuse_changed(folder: Path, before: Manifest | None, contents: Mapping[str, str]) -> None:
    changed: list[str] = []
    for module, content in contents.items():
        target = folder / module
        if not os.path.lexists(target) or (present := content_hash(target)) == content:
            continue
        entry = before.entry(module) if before is not None else None
        if entry is None or entry.content != present:
            changed.append(str(target))
    if changed:
        raise ConfigError(
            "these folders were changed since they were copied:\n" + "\n".join(changed),
            hint="Overwrite them with --force, or specify another folder.",
        )


def _replace(copy: Path, target: Path, content: str, stage: Path) -> State:
    if os.path.lexists(target):
        if content_hash(target) == content:
            return "unchanged"
        target.rename(stage / f".old-{copy.name}")
    copy.rename(target)
    return "copied"
