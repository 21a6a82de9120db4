"""Packages from an index in a folder, fetched by a real uv."""

import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.requirements import dependencies
from amplifier_app.sources.resolved import ResolvedSource
from amplifier_app.sources.resolver import AppModuleSourceResolver
from tests.app.sources.test_installed import install
from tests.app.sources.test_resolver import greeting
from tests.support.cli import start_python
from tests.support.module_repositories import SEED_TOOL
from tests.support.packages import index, wheel

TOOL = {name: text for name, text in SEED_TOOL.items() if name.endswith(".py")}
POINTS = {"my-tool": "my_tool:mount"}


def tool_wheel(folder: Path, version: str, *requires: str, **more: str) -> Path:
    return wheel(
        folder,
        "my-mod",
        version,
        ("amplifier-core>=99", *requires),
        files={**TOOL, "my_tool/version.txt": version},
        modules=POINTS,
        **more,
    )


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place uv looks in."""
    folder = tmp_path / "wheels"
    for version in ("1.0", "1.5", "2.0"):
        tool_wheel(folder, version)
    monkeypatch.setenv("UV_DEFAULT_INDEX", index(tmp_path / "simple", folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return folder


def publish(tmp_path: Path, wheels: Path) -> None:
    for page in (tmp_path / "simple").glob("*/index.html"):
        page.unlink()
    index(tmp_path / "simple", wheels)


def resolve(source: str, **options: Any) -> ResolvedSource:
    return AppModuleSourceResolver(**options).resolve("my-tool", source)


def no_uv(*_: object, **__: object) -> None:
    raise AssertionError("uv was called")


async def test_fetching_and_mounting_a_version_leaves_the_environment_unchanged(
    wheels: Path, tmp_path: Path
) -> None:
    before = {(dist.name, dist.version) for dist in metadata.distributions()}
    assert await greeting("my-mod>=1,<2") == "Hello, world!"
    assert {(dist.name, dist.version) for dist in metadata.distributions()} == before
    source = resolve("my-mod>=1,<2")
    assert (source.kind, source.text) == ("package", "my-mod 1.5")
    assert (source.distribution, source.version) == ("my-mod", "1.5")
    assert source.resolve().is_relative_to(tmp_path / "home" / "cache" / "packages")
    assert source.import_paths == ()


def test_a_cached_version_is_used_until_newer_ones_are_requested(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolve("my-mod>=1,<2").version == "1.5"
    tool_wheel(wheels, "1.9")
    publish(tmp_path, wheels)
    with monkeypatch.context() as patch:
        patch.setattr(dependencies, "run", no_uv)
        assert resolve("my-mod<2").version == "1.5"
        assert resolve("my-mod<2", offline=True).version == "1.5"
    assert resolve("my-mod<2", renew=True).version == "1.9"
    assert resolve("my-mod<2").version == "1.9"
    assert resolve("my-mod<1.9").version == "1.5"


def test_an_installed_version_that_satisfies_the_source_is_used(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", "my-mod", POINTS, version="1.2")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(dependencies, "run", no_uv)
    source = resolve("my-mod>=1,<2")
    assert (source.kind, source.installed, source.version) == ("package", True, "1.2")
    with pytest.raises(SourceError, match=r"is installed as 1\.2, which does not satisfy >=1\.5"):
        resolve("my-mod>=1.5")


def test_a_bare_name_is_never_fetched(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "run", no_uv)
    for source in ("my-mod", "my-mod[fast]"):
        with pytest.raises(SourceError, match="package 'my-mod' is not installed") as raised:
            resolve(source)
        assert f"'{source}>=1.0'" in (raised.value.hint or "")
        assert "write './my-mod'" in (raised.value.hint or "")


def test_the_newest_version_compatible_with_the_environment_is_used(
    wheels: Path, tmp_path: Path
) -> None:
    tool_wheel(wheels, "3.0", "pydantic<2")
    publish(tmp_path, wheels)
    assert resolve("my-mod>=1").version == "2.0"
    with pytest.raises(SourceError, match=r"cannot install my-mod>=3") as raised:
        resolve("my-mod>=3")
    assert f"pydantic=={metadata.version('pydantic')}" in str(raised.value)


def test_requirements_are_installed_separately_and_extras_count(
    wheels: Path, tmp_path: Path
) -> None:
    wheel(wheels, "some-lib", "1.0")
    wheel(wheels, "fast-lib", "1.0")
    more = "Provides-Extra: fast\nRequires-Dist: fast-lib; extra == 'fast'\n"
    tool_wheel(wheels, "4.0", "some-lib", metadata=more)
    publish(tmp_path, wheels)
    plain, fast = resolve("my-mod==4.0"), resolve("my-mod[fast]==4.0")
    assert plain.requirements == {"some-lib": "1.0"}
    assert fast.requirements == {"some-lib": "1.0", "fast-lib": "1.0"}
    assert plain.resolve() == fast.resolve()
    assert not list(plain.resolve().glob("some_lib*"))


def test_the_content_hash_does_not_depend_on_the_folder(wheels: Path, tmp_path: Path) -> None:
    wheel(
        wheels,
        "my-mod",
        "5.0",
        files={**TOOL, "my_mod-5.0.data/scripts/tool": "#!python\n"},
        modules=POINTS,
    )
    publish(tmp_path, wheels)
    hashes = {
        AppModuleSourceResolver(cache=tmp_path / name)
        .resolve("my-tool", "my-mod==5.0")
        .content_hash
        for name in ("one", "two")
    }
    assert len(hashes) == 1
    folder = AppModuleSourceResolver(cache=tmp_path / "one").resolve("my-tool", "my-mod==5.0")
    assert sorted(path.name for path in folder.resolve().iterdir()) == [
        "my_mod-5.0.dist-info",
        "my_tool",
    ]


def test_a_missing_package_is_reported(wheels: Path) -> None:
    with pytest.raises(SourceError, match=r"cannot install my-mod==9") as raised:
        resolve("my-mod==9")
    assert "9" in str(raised.value)
    with pytest.raises(SourceError, match="cannot install not-anywhere>=1") as raised:
        resolve("not-anywhere>=1")
    assert "Check the module's 'source'" in (raised.value.hint or "")
    with pytest.raises(SourceError, match="cannot install"):
        resolve("my-mod<1", offline=True)


def test_a_package_without_the_module_is_reported(wheels: Path, tmp_path: Path) -> None:
    wheel(wheels, "no-module", "1.0")
    publish(tmp_path, wheels)
    with pytest.raises(SourceError, match="no module in"):
        resolve("no-module==1.0")


def test_the_configuration_of_a_project_around_the_cache_is_ignored(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache below a folder with a `uv.toml` must not let that folder choose the index."""
    evil = tmp_path / "evil"
    wheel(evil / "wheels", "my-mod", "9.9", files=TOOL, modules=POINTS)
    (evil / "repo").mkdir()
    (evil / "repo" / "uv.toml").write_text(f'find-links = ["{evil / "wheels"}"]\nno-index = true\n')
    monkeypatch.chdir(evil / "repo")
    resolver = AppModuleSourceResolver(cache=evil / "repo" / "cache")
    assert resolver.resolve("my-tool", "my-mod>=1").version == "2.0"


def test_processes_can_install_the_same_version_concurrently(wheels: Path, tmp_path: Path) -> None:
    code = (
        "from amplifier_app.sources.resolver import AppModuleSourceResolver\n"
        "source = AppModuleSourceResolver().resolve('my-tool', 'my-mod>=1')\n"
        "print(source.version, source.resolve(), source.content_hash)\n"
    )
    running = [start_python(code, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {process.communicate()[0].strip() for process in running}
    assert len(answers) == 1
    assert answers.pop().startswith("2.0 ")
    left = (tmp_path / "home" / "cache" / "packages" / "my-mod").iterdir()
    assert [path.name for path in left if path.name.startswith(".stage")] == []
