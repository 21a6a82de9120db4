"""The resolver, alone and under the kernel's own loader."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.outcome import Ending, to_outcome
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.loading import load_plan
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_core import ModuleLoader
from amplifier_core.module_sources import ModuleNotFoundError, ModuleSourceResolver
from amplifier_core.testing import MockCoordinator
from tests.app.sources.test_git import is_running
from tests.app.sources.test_installed import install
from tests.support.module_repositories import SEED_TOOL, Repository, write_files
from tests.support.packages import wheel
from tests.support.waiting import eventually


async def greeting(
    source: str | None, config: dict[str, Any] | None = None, module_id: str = "my-tool"
) -> str:
    """Load the seed's tool through the kernel and use it."""
    coordinator = MockCoordinator()
    await coordinator.mount("module-source-resolver", AppModuleSourceResolver())
    loader = ModuleLoader(coordinator)
    mount = await loader.load(module_id, config, source_hint=source)
    await mount(coordinator)
    tool = next(iter(coordinator.get("tools").values()))
    result = await tool.execute({"who": "world"})
    loader.cleanup()
    return result.output


def test_it_is_a_resolver_for_the_kernel() -> None:
    assert isinstance(AppModuleSourceResolver(), ModuleSourceResolver)


# -- a module written from the contracts alone -------------------------------------------


async def test_a_folder_with_src_and_config_is_mounted(tmp_path: Path) -> None:
    files = {k.replace("my_tool/", "src/my_tool/"): v for k, v in SEED_TOOL.items()}
    folder = write_files(tmp_path / "m", files)
    assert await greeting(f"file://{folder}", {"greeting": "Hi"}) == "Hi, world!"


async def test_a_file_with_a_helper_next_to_it_is_mounted(tmp_path: Path) -> None:
    write_files(
        tmp_path / "m",
        {
            "my_tool.py": SEED_TOOL["my_tool/__init__.py"].replace("my_tool.greeter", "greeter"),
            "greeter.py": SEED_TOOL["my_tool/greeter.py"],
        },
    )
    assert await greeting(str(tmp_path / "m")) == "Hello, world!"


async def test_a_folder_that_is_itself_the_package_is_mounted(tmp_path: Path) -> None:
    text = SEED_TOOL["my_tool/__init__.py"].replace("from my_tool.greeter", "from .greeter")
    files = {"__init__.py": text, "greeter.py": SEED_TOOL["my_tool/greeter.py"]}
    assert await greeting(str(write_files(tmp_path / "my-tool", files))) == "Hello, world!"


async def test_a_subdirectory_of_a_repository_is_mounted(repository: Repository) -> None:
    repository.commit({f"modules/mine/{name}": text for name, text in SEED_TOOL.items()})
    assert await greeting(f"{repository.url}@main#subdirectory=modules/mine") == "Hello, world!"


@pytest.mark.parametrize("source", [None, "my-distribution", "My_Distribution"])
async def test_an_installed_package_is_mounted(
    source: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path / "site", SEED_TOOL)
    install(tmp_path / "site", "my-distribution", {"my-tool": "my_tool:mount"})
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert await greeting(source) == "Hello, world!"


async def test_a_package_is_mounted_by_its_import_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path / "site", SEED_TOOL)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert await greeting("my_tool") == "Hello, world!"


async def test_a_bundled_module_is_mounted_without_a_trial_and_leaves_the_path_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import amplifier_modules.hooks_logging as package

    mounts: list[Any] = []

    async def mount(coordinator: Any, config: Any) -> None:
        mounts.append(config)

    monkeypatch.setattr(package, "mount", mount)
    resolver = AppModuleSourceResolver()
    source = resolver.resolve("hooks-logging")
    assert (source.kind, source.installed) == ("bundled", True)
    assert source.entry_point == "amplifier_modules.hooks_logging:mount"
    coordinator = MockCoordinator()
    await coordinator.mount("module-source-resolver", resolver)
    path = list(sys.path)
    mounted = await ModuleLoader(coordinator).load("hooks-logging", {"a": 1})
    await mounted(coordinator)
    assert mounts == [{"a": 1}]
    assert sys.path == path


async def test_requirements_are_installed_and_never_precede_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path / "wheels", "some-lib", "1.5")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    project = SEED_TOOL["pyproject.toml"].replace('core>=1.6"', 'core>=1.6", "some-lib>=1"')
    init = SEED_TOOL["my_tool/__init__.py"].replace(
        "config=config", "config={'greeting': some_lib.VERSION}"
    )
    files = {"pyproject.toml": project, "my_tool/__init__.py": f"import some_lib\n{init}"}
    folder = write_files(tmp_path / "m", {**SEED_TOOL, **files})
    before = list(sys.path)
    assert await greeting(str(folder)) == "1.5, world!"
    assert sys.path == before
    source = AppModuleSourceResolver().resolve("my-tool", str(folder))
    assert [path.parent.name for path in source.import_paths] == ["dependencies"]


async def test_a_source_in_the_plan_takes_precedence_over_a_bundled_module(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "m", SEED_TOOL)
    assert await greeting(str(folder), module_id="tool-bash") == "Hello, world!"


async def test_a_source_that_fails_never_falls_back_to_a_bundled_module(tmp_path: Path) -> None:
    coordinator = MockCoordinator()
    await coordinator.mount("module-source-resolver", AppModuleSourceResolver())
    for source in (str(tmp_path / "gone"), f"git+file://{tmp_path}/gone", "not-installed"):
        with pytest.raises(SourceError):
            await ModuleLoader(coordinator).load("tool-bash", source_hint=source)


async def test_a_plan_can_use_a_module_next_to_it(
    seed_tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        "tools: [{module: my-tool, source: ./my-tool, config: {greeting: Hey}}]\n"
    )
    monkeypatch.chdir("/")
    entry = load_plan(plan).mount_plan()["tools"][0]
    assert await greeting(entry["source"], entry["config"]) == "Hey, world!"


# -- the protocol ------------------------------------------------------------------------


def test_every_form_of_the_call_gives_the_same_result(seed_tool: Path) -> None:
    resolver = AppModuleSourceResolver()
    text = str(seed_tool)
    found = [
        resolver.resolve("my-tool", text),
        resolver.resolve("my-tool", source_hint=text),
        resolver.resolve("my-tool", profile_hint=text),
        resolver.resolve("my-tool", source_hint=text, profile_hint=text),
    ]
    assert len({id(one) for one in found}) == 1
    assert found[0].resolve() == seed_tool


def test_relative_sources_are_relative_to_the_given_folder(seed_tool: Path) -> None:
    resolver = AppModuleSourceResolver(folder=seed_tool.parent)
    assert resolver.resolve("my-tool", "./my-tool").resolve() == seed_tool


def test_an_unknown_module_suggests_the_nearest() -> None:
    with pytest.raises(ModuleNotFoundError, match="neither bundled nor installed") as raised:
        AppModuleSourceResolver().resolve("tool-bahs")
    assert "did you mean 'tool-bash'?" in str(raised.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"git": "x"}, "the source of 'm' must be a string, not dict"),
        ("git+ext::sh", "over 'ext' are not allowed"),
        ("not-installed", "package 'not-installed' is not installed"),
        ("pydantic", "package 'pydantic' provides no modules, not 'm'"),
        ("amplifier", "package 'amplifier' provides only .*tool-bash.*, not 'm'"),
    ],
)
async def test_an_invalid_source_is_reported(source: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message) as raised:
        AppModuleSourceResolver().resolve("m", source)
    assert to_outcome(raised.value).ending is Ending.MODULE
    with pytest.raises(SourceError, match=message):
        await AppModuleSourceResolver().async_resolve("m", source)


def test_an_installed_source_knows_its_folder() -> None:
    import amplifier_modules.hooks_logging

    folder = AppModuleSourceResolver().resolve("hooks-logging").resolve()
    assert folder == Path(amplifier_modules.hooks_logging.__file__ or "").parent


def test_modules_of_one_repository_share_one_lookup(repository: Repository) -> None:
    first = repository.commit({f"a/{k}": v for k, v in SEED_TOOL.items()})
    repository.commit({f"b/{k}": v for k, v in SEED_TOOL.items()})
    resolver = AppModuleSourceResolver()
    one = resolver.resolve("my-tool", f"{repository.url}@main#subdirectory=a")
    repository.commit({"b/x": "moved meanwhile"})
    two = resolver.resolve("other", f"{repository.url}@main#subdirectory=b")
    assert one.commit == two.commit != first


async def test_prefetch_reports_all_failures_together(tmp_path: Path, seed_tool: Path) -> None:
    plan = {
        "session": {"orchestrator": "loop-basic", "context": {"module": "context-simple"}},
        "tools": [
            {"module": "my-tool", "source": str(seed_tool)},
            {"module": "a", "source": str(tmp_path / "gone")},
            {"module": "b"},
            {"module": "tool-bash"},
        ],
    }
    resolver = AppModuleSourceResolver()
    with pytest.raises(SourceError, match="2 modules are unavailable") as raised:
        await resolver.prefetch(plan)
    assert f"a: folder {tmp_path}/gone does not exist" in str(raised.value)
    assert "b: unknown module 'b'" in str(raised.value)
    assert to_outcome(raised.value).exit_code == 3
    plan["tools"] = plan["tools"][:1]
    await resolver.prefetch(plan)


async def test_the_event_loop_is_not_blocked_while_git_runs(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A git that waits for the loop to do something would wait for ever if it were blocked."""
    repository.commit(SEED_TOOL)
    go = tmp_path / "go"
    slow_git(tmp_path, f"while [ ! -e {go} ]; do sleep 0.02; done", monkeypatch)
    resolving = asyncio.create_task(
        AppModuleSourceResolver().async_resolve("my-tool", repository.url)
    )
    await asyncio.sleep(0.05)
    assert not resolving.done()
    go.touch()
    assert (await resolving).kind == "git"


async def test_cancelling_ends_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    slow_git(tmp_path, f"echo $$ > {pid_file}.part; mv {pid_file}.part {pid_file}; sleep 600",
             monkeypatch)  # fmt: skip
    resolving = asyncio.create_task(
        AppModuleSourceResolver().async_resolve("my-tool", "git+https://127.0.0.1:1/r")
    )
    await eventually(pid_file.exists)
    resolving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resolving
    assert not await asyncio.to_thread(is_running, int(pid_file.read_text()))


def slow_git(tmp_path: Path, before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a git on the path that does something first."""
    import os
    import shutil

    real = shutil.which("git")
    script = write_files(tmp_path / "bin", {"git": f'#!/bin/sh\n{before}\nexec {real} "$@"\n'})
    (script / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{script}{os.pathsep}{os.environ['PATH']}")
