"""A resolver that is held to a lock gives what is locked, or nothing."""

from pathlib import Path
from typing import Any

import pytest

from amplifier_app.sources.errors import DriftError, SourceError
from amplifier_app.sources.lockfile import Lock, LockEntry
from amplifier_app.sources.resolved import ResolvedSource
from amplifier_app.sources.resolver import AppModuleSourceResolver
from tests.app.sources.test_packages import tool_wheel
from tests.support.module_repositories import SEED_TOOL, Repository, write_files
from tests.support.packages import wheel


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    wheel(folder, "some-lib", "1.0")
    tool_wheel(folder, "1.0")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return folder


def entry(found: ResolvedSource) -> LockEntry:
    return LockEntry(
        kind=found.kind,
        commit=found.commit,
        content=found.content_hash,
        archive=found.archive,
        distribution=found.distribution,
        version=found.version,
        requirements=dict(found.requirements),
    )


def locked(source: str | None, to: LockEntry, **options: Any) -> ResolvedSource:
    lock = Lock(plan="p", modules={"my-tool": to})
    return AppModuleSourceResolver(lock=lock, **options).resolve("my-tool", source)


def now(source: str) -> LockEntry:
    return entry(AppModuleSourceResolver().resolve("my-tool", source))


def test_a_branch_stays_at_its_commit(repository: Repository, tmp_path: Path) -> None:
    first = repository.commit(SEED_TOOL)
    lock = now(repository.url)
    second = repository.commit({"README.md": "more"})
    assert AppModuleSourceResolver().resolve("my-tool", repository.url).commit == second
    assert locked(repository.url, lock).commit == first
    elsewhere = tmp_path / "another-cache"
    assert locked(repository.url, lock, cache=elsewhere).commit == first
    with pytest.raises(DriftError, match=f"locked {first}, found {second}"):
        locked(f"{repository.url}@{second}", lock)


def test_a_package_and_its_requirements_stay_at_their_versions(wheels: Path) -> None:
    tool_wheel(wheels, "1.1", "some-lib")
    lock = now("my-mod>=1")
    assert (lock.version, lock.requirements) == ("1.1", {"some-lib": "1.0"})
    tool_wheel(wheels, "1.2", "some-lib")
    wheel(wheels, "some-lib", "2.0")
    found = locked("my-mod>=1", lock, renew=True)
    assert (found.version, found.requirements) == ("1.1", {"some-lib": "1.0"})


def test_requirements_of_a_folder_stay_at_their_versions(wheels: Path, tmp_path: Path) -> None:
    project = SEED_TOOL["pyproject.toml"].replace('core>=1.6"', 'core>=1.6", "some-lib"')
    folder = write_files(tmp_path / "m", {**SEED_TOOL, "pyproject.toml": project})
    lock = now(str(folder))
    wheel(wheels, "some-lib", "2.0")
    other = tmp_path / "another-cache"
    newer = AppModuleSourceResolver(cache=other).resolve("my-tool", str(folder))
    assert newer.requirements == {"some-lib": "2.0"}
    assert locked(str(folder), lock, cache=other).requirements == {"some-lib": "1.0"}


def test_a_requirement_moved_into_the_environment_is_not_drift(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool_wheel(wheels, "1.1", "some-lib")
    lock = now("my-mod>=1")
    site = tmp_path / "site"
    write_files(site / "some_lib-1.0.dist-info", {"METADATA": "Name: some-lib\n"})
    monkeypatch.syspath_prepend(site)
    assert locked("my-mod>=1", lock).requirements == {}
    (site / "some_lib-1.0.dist-info").rename(site / "some_lib-1.5.dist-info")
    with pytest.raises(DriftError, match=r"requirement some-lib .* locked 1\.0, found 1\.5"):
        locked("my-mod>=1", lock)


def changed(folder: Path) -> str:
    write_files(folder, {"my_tool/greeter.py": "evil = 1\n"})
    return str(folder)


def test_other_content_is_refused(seed_tool: Path) -> None:
    lock = now(str(seed_tool))
    assert locked(str(seed_tool), lock).kind == "folder"
    changed(seed_tool)
    with pytest.raises(DriftError, match="content differs from the lock") as raised:
        locked(str(seed_tool), lock)
    assert "amplifier plan lock" in (raised.value.hint or "")


def test_another_archive_is_refused(wheels: Path) -> None:
    file = str(next(wheels.glob("my_mod-1.0*")))
    lock = now(file)
    assert locked(file, lock).archive == lock.archive
    wheel(wheels, "my-mod", "1.0", files={"my_mod.py": "evil = 1\n"})
    with pytest.raises(SourceError, match="does not match its hash"):
        AppModuleSourceResolver(
            cache=wheels / "new", lock=Lock(plan="p", modules={"my-tool": lock})
        ).resolve("my-tool", file)


def test_a_commit_whose_files_were_tampered_with_in_the_cache_is_refused(
    repository: Repository,
) -> None:
    repository.commit(SEED_TOOL)
    lock = now(repository.url)
    root = AppModuleSourceResolver().resolve("my-tool", repository.url).root
    assert root is not None
    changed(root)
    with pytest.raises(DriftError, match="content differs from the lock"):
        locked(repository.url, lock)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "git"}, "kind of source .* locked git, found folder"),
        ({"distribution": "x", "version": "1"}, "distribution .* locked x, found none"),
        ({"requirements": {"some-lib": "1.0"}}, "requirement some-lib .* found none"),
    ],
)
def test_every_difference_is_reported(
    change: dict[str, Any], message: str, seed_tool: Path
) -> None:
    lock = now(str(seed_tool)).model_copy(update=change)
    with pytest.raises(DriftError, match=message):
        locked(str(seed_tool), lock)


def test_a_bundled_module_must_match_its_locked_version() -> None:
    source = AppModuleSourceResolver().resolve("tool-bash")
    to = LockEntry(kind="bundled", distribution="amplifier", version=source.version)
    lock = Lock(plan="p", modules={"tool-bash": to})
    assert AppModuleSourceResolver(lock=lock).resolve("tool-bash").kind == "bundled"
    old = Lock(plan="p", modules={"tool-bash": to.model_copy(update={"version": "0.0.1"})})
    with pytest.raises(DriftError, match=r"version .* locked 0\.0\.1"):
        AppModuleSourceResolver(lock=old).resolve("tool-bash")


def test_a_module_that_is_not_in_the_lock_is_refused(seed_tool: Path) -> None:
    lock = Lock(plan="p", modules={})
    with pytest.raises(DriftError, match="this module is not in the lock"):
        AppModuleSourceResolver(lock=lock).resolve("my-tool", str(seed_tool))
    found = AppModuleSourceResolver(lock=lock, partial=True).resolve("my-tool", str(seed_tool))
    assert found.kind == "folder"


def test_offline_a_locked_commit_comes_from_the_cache(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit(SEED_TOOL)
    lock = now(repository.url)
    repository.folder.rename(tmp_path / "moved")
    assert locked(repository.url, lock, offline=True).commit == lock.commit
