"""What modules require, installed by a real uv from a folder of wheels."""

import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.requirements import dependencies
from amplifier_app.sources.requirements.dependencies import DependencyCache
from amplifier_app.sources.requirements.layout import Layout, find_layout
from tests.support.git_http import GitServer
from tests.support.module_repositories import Repository, write_files
from tests.support.packages import wheel


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place uv looks in."""
    folder = tmp_path / "wheels"
    wheel(folder, "some-lib", "1.0")
    wheel(folder, "some-lib", "2.0")
    wheel(folder, "kernel-user", "1.0", ("amplifier-core>=99", "some-lib<2"))
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> DependencyCache:
    return DependencyCache(tmp_path / "cache")


def project(folder: Path, *requires: str, extra: str = "", more: str = "") -> Layout:
    listed = ", ".join(f'"{one}"' for one in requires)
    fixed = f"dependencies = [{listed}]\n" if "dynamic" not in extra else ""
    write_files(
        folder,
        {
            "pyproject.toml": f'[project]\nname = "m"\nversion = "1"\n{fixed}{extra}\n{more}',
            "m.py": "async def mount(coordinator, config):\n    return None\n",
        },
    )
    return find_layout(folder, "m")


def version_in(folder: Path | None) -> str:
    assert folder is not None
    code = "import sys; sys.path.append(sys.argv[1]); import some_lib; print(some_lib.VERSION)"
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    ).stdout.strip()


def no_uv(*_: object, **__: object) -> None:
    raise AssertionError("uv was called")


@pytest.mark.parametrize(
    "requires",
    [
        (),
        ("amplifier-core",),
        ("amplifier_core>=99.0", "Amplifier.Core @ git+https://127.0.0.1:1/core"),
        ("pydantic>=2", "httpx"),
        ("nothing-like-it; python_version < '3'",),
    ],
)
def test_requirements_met_by_the_environment_need_no_uv(
    requires: tuple[str, ...],
    cache: DependencyCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dependencies, "run", no_uv)
    assert cache.folder_for(project(tmp_path / "m", *requires)) is None


def test_a_folder_without_a_project_needs_nothing(cache: DependencyCache, tmp_path: Path) -> None:
    write_files(tmp_path / "m", {"m.py": "def mount(): ..."})
    assert cache.folder_for(find_layout(tmp_path / "m")) is None


def test_requirements_are_installed_once_into_a_folder_of_their_own(
    wheels: Path, cache: DependencyCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {dist.name for dist in metadata.distributions()}
    folder = cache.folder_for(project(tmp_path / "one", "some-lib", "amplifier-core"))
    assert version_in(folder) == "2.0"
    assert {dist.name for dist in metadata.distributions()} == before
    monkeypatch.setattr(dependencies, "run", no_uv)
    assert cache.folder_for(project(tmp_path / "two", "some-lib")) == folder
    assert not list((tmp_path / "cache").glob(".stage-*"))


def test_different_requirements_get_different_folders(
    wheels: Path, cache: DependencyCache, tmp_path: Path
) -> None:
    new = cache.folder_for(project(tmp_path / "one", "some-lib"))
    old = cache.folder_for(project(tmp_path / "two", "some-lib<2"))
    assert (version_in(new), version_in(old)) == ("2.0", "1.0")


def test_transitive_requirements_use_the_running_kernel(
    wheels: Path, cache: DependencyCache, tmp_path: Path
) -> None:
    folder = cache.folder_for(project(tmp_path / "m", "kernel-user"))
    assert version_in(folder) == "1.0"
    assert folder is not None
    assert not list(folder.glob("amplifier*"))


def test_the_kernel_is_not_fetched_from_the_projects_source(
    wheels: Path, cache: DependencyCache, tmp_path: Path
) -> None:
    other = Repository(tmp_path / "lib")
    other.commit(
        {
            "pyproject.toml": '[project]\nname = "some-lib"\nversion = "3.0"\n'
            '[build-system]\nrequires = []\nbuild-backend = "back"\nbackend-path = ["."]\n',
            "back.py": BACKEND,
            "some_lib.py": 'VERSION = "3.0"\n',
        }
    )
    layout = project(
        tmp_path / "m",
        "amplifier-core",
        "some-lib",
        more="[tool.uv.sources]\n"
        'amplifier-core = {git = "https://127.0.0.1:1/amplifier-core"}\n'
        f'some-lib = {{git = "file://{other.folder}"}}\n',
    )
    assert version_in(cache.folder_for(layout)) == "3.0"


BACKEND = """
import zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "some_lib-3.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{wheel_directory}/{name}", "w") as archive:
        archive.write("some_lib.py")
        info = "some_lib-3.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: some-lib\\nVersion: 3.0\\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(f"{info}/RECORD", "")
    return name
"""


def test_computed_requirements_are_read_from_the_project(
    wheels: Path, cache: DependencyCache, tmp_path: Path
) -> None:
    backend = (
        BACKEND.replace("some_lib-3.0", "m-1")
        .replace('archive.write("some_lib.py")', "pass")
        .replace(
            "Name: some-lib\\nVersion: 3.0\\n",
            "Name: m\\nVersion: 1\\nRequires-Dist: some-lib<2\\n",
        )
    )
    write_files(tmp_path / "m", {"back.py": backend})
    layout = project(
        tmp_path / "m",
        extra='dynamic = ["dependencies"]\n',
        more='[build-system]\nrequires = []\nbuild-backend = "back"\nbackend-path = ["."]\n',
    )
    assert version_in(cache.folder_for(layout)) == "1.0"


def test_a_conflict_with_the_environment_shows_uvs_message(
    wheels: Path, cache: DependencyCache, tmp_path: Path
) -> None:
    wheel(wheels, "old-user", "1.0", ("pydantic<2",))
    with pytest.raises(SourceError, match="cannot install") as raised:
        cache.folder_for(project(tmp_path / "m", "old-user"))
    assert f"pydantic=={metadata.version('pydantic')}" in str(raised.value)
    assert "compatible with the environment" in (raised.value.hint or "")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_a_missing_package_is_reported(
    wheels: Path, cache: DependencyCache, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match="not-anywhere was not found"):
        cache.folder_for(project(tmp_path / "m", "not-anywhere"))
    with pytest.raises(SourceError, match="cannot install"):
        cache.folder_for(project(tmp_path / "m", "!!"))


def test_an_unreachable_index_is_not_a_fault_of_the_module(
    wheels: Path, cache: DependencyCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with socket.socket() as refuses:
        refuses.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{refuses.getsockname()[1]}"
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://user:pass-word@{host}/simple")
        with pytest.raises(SourceError) as raised:
            cache.folder_for(project(tmp_path / "m", "not-anywhere"))
        of_url = project(tmp_path / "n", f"a @ http://{host}/a-1-py3-none-any.whl")
        with pytest.raises(SourceError) as of_file:
            cache.folder_for(of_url)
    assert f": the package index at {host} cannot be reached: Connection refused" in str(
        raised.value
    )
    assert "pass-word" not in str(raised.value)
    assert "Check the network connection" in (raised.value.hint or "")
    assert f": {host} cannot be reached: Connection refused" in str(of_file.value)

    server = GitServer(tmp_path)
    try:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple")
        with pytest.raises(
            SourceError, match="cannot be reached: invalid peer certificate"
        ) as unknown:
            cache.folder_for(project(tmp_path / "o", "not-anywhere"))
    finally:
        server.close()
    assert "UV_NATIVE_TLS=1" in (unknown.value.hint or "")


def test_a_folder_that_no_longer_fits_the_environment_is_recreated(
    wheels: Path, cache: DependencyCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The environment's metadata does not show whether an extra is satisfied, so uv is asked.
    layout = project(tmp_path / "m", "some-lib[fast]>=1")
    assert version_in(cache.folder_for(layout)) == "2.0"
    # The environment gets the older version, which satisfies the requirement as well.
    write_files(tmp_path / "site" / "some_lib-1.0.dist-info", {"METADATA": "Name: x\n"})
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert version_in(cache.folder_for(layout)) == "1.0"


@pytest.mark.parametrize(
    "text", ["-e ./beside", "-r /etc/passwd", "./beside", "beside/x", "a\\n-e b"]
)
def test_options_and_paths_among_requirements_are_refused(
    text: str, cache: DependencyCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amplifier_app.sources.requirements.dependencies.run", no_uv)
    layout = project(tmp_path / "module", text)
    with pytest.raises(SourceError, match="is not a package"):
        cache.folder_for(layout)
