"""Pack what a node of a cluster needs to run rows: the program, the plan with its modules, and the rows' folder.

    amplifier_…/, …       the program and what it requires
    batch/plan.yaml       the plan with everything it extends, without secrets
    batch/schema.json     the schema of the answers, if there is one
    batch/modules/ID/     modules that are not bundled
    batch/home/           the user's prices, instructions and skills
    batch/folder/         the folder that all rows run in, with --workdir same

The same content makes the same archive, so that a node that has it need not get it again.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from amplifier_app.base import keys, paths
from amplifier_app.base.errors import AppError, ConfigError
from amplifier_app.base.installed import DISTRIBUTION
from amplifier_app.base.own_packages import OWN_PACKAGES
from amplifier_app.commands.run.choose import Chosen, open_sources
from amplifier_app.commands.run.one_shot import read_schema
from amplifier_app.commands.run.request import Request
from amplifier_app.plan.masking import MASK
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.tree.interpolation import names_in
from amplifier_app.runtime.provider_access import Provider, describe
from amplifier_app.sources.fetch.staging import content_files
from amplifier_app.sources.lockfile import Lock, lock_path_for
from amplifier_app.sources.requirements.fixed_versions import own_requirements, requirement_names
from amplifier_app.sources.resolver import AppModuleSourceResolver, name_variable
from amplifier_app.sources.vendor import vendor
from amplifier_app.trust import trusted_dir
from amplifier_support.files import is_below, system_errors_as
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.programs import find_program, git_environment, run

FOLDER = "batch"
"""The folder of the archive with all but the program."""

_NOT_PACKED = {"uv"}
"""Of the requirements: nothing is installed on a node."""

_OF_THE_USER = ("AGENTS.md", "skills", "prices.json")
_FIRST_DATE = (1980, 1, 1, 0, 0, 0)
_MAX_BYTES = 250_000_000
_LIST_SECONDS = 60.0
_REPLACED = "\N{REPLACEMENT CHARACTER}"
"""In the names that git lists, in place of bytes that are not UTF-8."""


class Package(NamedTuple):
    """The facts that a worker needs besides the archive.

    Attributes:
        request: The plan and the options of every row; its paths are relative to the archive.
        digest: The digest of the plan.
        modules: The sources of modules, relative to the archive, by the variables that set them.
        keys: The names of the variables with the plan's secrets, and their values here, if they have one.
    """

    request: dict[str, Any]
    digest: str
    modules: dict[str, str]
    keys: dict[str, str | None]


async def pack(
    archive: Path, request: Request, chosen: Chosen, folder: Path | None, left_out: Path
) -> Package:
    """Write the archive of a batch.

    Args:
        archive: Its file.
        request: The plan and the options of every row.
        chosen: What the request resolves to.
        folder: The folder that all rows run in; None if each has its own.
        left_out: The folder of the batch, which is not packed.

    Raises:
        ConfigError: The plan contains secrets, or the folder is too large.
        AppError: Modules are unavailable, or something cannot be read or written.
    """
    plan = chosen.plan
    text = plan.to_yaml()
    if text.count(MASK) > plan.to_yaml(masked=False).count(MASK):
        raise ConfigError(
            "the plan contains secrets, which are not packed for the nodes of a cluster",
            hint="Write ${VARIABLE} in place of the secret; the workers get its value.",
        )
    lock = lock_path_for(plan) if request.lock is None else request.lock
    with (
        system_errors_as(AppError, "cannot pack the plan"),
        tempfile.TemporaryDirectory() as copies,
        zipfile.ZipFile(archive, "w") as packed,
    ):
        vendored = await vendor(
            plan, Lock.read(lock) if lock.exists() else None, Path(copies), paths.cache_dir()
        )
        installed = [
            module.entry.distribution for module in vendored if module.state == "not copied"
        ]
        _add(packed, {**_own_files(), **_distribution_files(filter(None, installed))})
        _add(packed, {f"{FOLDER}/modules/{name}": file for name, file in _files(Path(copies))})
        _add(packed, {f"{FOLDER}/home/{name}": file for name, file in _user_files()})
        if folder is not None:
            files = _folder_files(folder, left_out)
            _add(packed, {f"{FOLDER}/folder/{name}": file for name, file in files})
        _write(packed, f"{FOLDER}/plan.yaml", text.encode(), 0o600)
        if request.schema is not None:
            schema = json.dumps(read_schema(request)).encode()
            _write(packed, f"{FOLDER}/schema.json", schema, 0o600)
        sources = {
            name_variable(module.module): f"{FOLDER}/modules/"
            + Path(module.source).relative_to(copies).as_posix()
            for module in vendored
            if module.state != "not copied"
        }
    return Package(
        _request_of_nodes(request).as_data(),
        plan.digest,
        sources,
        await _find_keys(plan, text, await open_sources(request, chosen)),
    )


def _request_of_nodes(request: Request) -> Request:
    """The request for the packed plan, which has what the options and settings changed, and is locked by its digest."""
    is_trusted = not request.no_project and (
        request.trust or trusted_dir(paths.working_dir()) is not None
    )
    return request._replace(
        plan=Path(FOLDER, "plan.yaml"),
        schema=None if request.schema is None else Path(FOLDER, "schema.json"),
        profile=None,
        sets=None,
        folder=None,
        max_steps=None,
        locked=False,
        lock=None,
        offline=True,
        trust=is_trusted,
        no_project=not is_trusted,
    )


async def _find_keys(
    plan: ResolvedPlan, text: str, sources: AppModuleSourceResolver
) -> dict[str, str | None]:
    """The variables that the plan names, and those from which its providers take keys."""
    names = dict.fromkeys(names_in(text))
    mounted = plan.mount_plan()
    agents = (mounted.get("agents") or {}).values()
    for owner in (mounted, *(agent for agent in agents if isinstance(agent, dict))):
        for entry in owner.get("providers") or ():
            provider = Provider(entry["module"], entry.get("config") or {}, entry.get("source"))
            try:
                described = await describe(provider, sources)
            # A provider may raise anything; a row reports what it lacks.
            except Exception:
                continue
            names.update(dict.fromkeys(described.info.credential_env_vars))
    environment = keys.environment()
    return {name: environment.get(name) for name in names}


# -- the archive -------------------------------------------------------------------------


def _add(packed: zipfile.ZipFile, files: dict[str, Path]) -> None:
    for name, file in sorted(files.items()):
        _write(packed, name, file.read_bytes(), file.stat().st_mode & 0o777)


def _write(packed: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    info = zipfile.ZipInfo(name, _FIRST_DATE)
    info.external_attr = mode << 16
    packed.writestr(info, data)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    return ((name, file) for name, file in content_files(folder, whole=True) if file.is_file())


def _own_files() -> dict[str, Path]:
    """The program, and its metadata, which names the bundled modules."""
    files: dict[str, Path] = {}
    for package in OWN_PACKAGES:
        root = Path(next(iter(import_module(package).__path__)))
        files |= {f"{package}/{name}": file for name, file in _files(root)}
    return {**files, **_distribution_files([DISTRIBUTION])}


def _distribution_files(names: Iterable[str]) -> dict[str, Path]:
    """The files of distributions and of all that they require."""
    files: dict[str, Path] = {}
    waiting, known = list(names), set(_NOT_PACKED)
    if DISTRIBUTION in waiting:
        waiting += own_requirements()
    while waiting:
        name = waiting.pop()
        if name in known:
            continue
        known.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # Needed on other platforms only.
        waiting += requirement_names(name)
        for entry in distribution.files or ():
            file = Path(str(distribution.locate_file(entry)))
            is_packed = ".." not in entry.parts and "__pycache__" not in entry.parts
            if is_packed and entry.suffix != ".pth" and file.is_file():
                files[entry.as_posix()] = file
    return files


def _user_files() -> Iterator[tuple[str, Path]]:
    for name in _OF_THE_USER:
        place = (
            paths.state_dir() if name == paths.prices_file().name else paths.config_dir()
        ) / name
        if place.is_file():
            yield name, place
        elif place.is_dir():
            yield from ((f"{name}/{inner}", file) for inner, file in _files(place))


def _folder_files(folder: Path, left_out: Path) -> Iterator[tuple[str, Path]]:
    """The files of a folder, without those that git ignores, links to others than these, and the batch itself.

    Raises:
        ConfigError: They are too large, or one has a name that no archive can have.
    """
    size, root = 0, folder.resolve()
    listed = _listed_by_git(folder)
    names = [name for name, _ in content_files(folder)] if listed is None else listed
    real_files = {str(root / name) for name in names}
    for name in names:
        file = folder / name
        if is_below(str(file), str(left_out)):
            continue
        if not _is_text(name) or (_REPLACED in name and not os.path.lexists(file)):
            raise ConfigError(
                f"cannot pack {str(file)!r} for the nodes of a cluster: its name is not UTF-8",
                hint="Rename it, or use --workdir fresh, copy or clone.",
            )
        # A link to a file that git ignores would bring it in.
        if str(file.resolve()) in real_files and file.is_file():
            size += file.stat().st_size
            if size > _MAX_BYTES:
                raise ConfigError(
                    f"cannot pack {folder} for the nodes of a cluster: it has more than "
                    f"{_MAX_BYTES // 1_000_000} MB",
                    hint="Use --workdir fresh, copy or clone, or a folder that all nodes share.",
                )
            yield name, file


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _listed_by_git(folder: Path) -> list[str] | None:
    git = find_program("git", str(folder))
    if git is None:
        return None
    argv = (git, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    env = git_environment(folder=str(folder))
    done = run(argv, cwd=folder, env=env, seconds=_LIST_SECONDS)
    return None if done.code else [name for name in done.stdout.split("\0") if name]
