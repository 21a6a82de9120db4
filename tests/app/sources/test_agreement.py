"""Modules of one session that require the same package: a real uv, wheels in a folder."""

import sys
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import Location
from amplifier_app.base.outcome import to_outcome
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.lockfile import Lock, LockEntry
from amplifier_app.sources.requirements import dependencies
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_core import ModuleLoader
from amplifier_core.testing import MockCoordinator
from tests.support.module_repositories import write_files
from tests.support.packages import wheel

TOOL = """
import some_lib


class Tool:
    name = "{name}"
    description = "Returns the version it has."
    input_schema = {{"type": "object", "properties": {{}}}}

    async def execute(self, input):
        from amplifier_core.models import ToolResult

        return ToolResult(output=some_lib.VERSION)


async def mount(coordinator, config=None):
    await coordinator.mount("tools", Tool(), name="{name}")
"""


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place uv looks in."""
    folder = tmp_path / "wheels"
    for version in ("1.0", "1.5", "2.0"):
        wheel(folder, "some-lib", version)
    wheel(folder, "old-user", "1.0", ("some-lib<2",))
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return folder


def module(folder: Path, *requires: str) -> dict[str, Any]:
    name = folder.name
    listed = ", ".join(f'"{one}"' for one in requires)
    package = name.replace("-", "_")
    write_files(
        folder,
        {
            "pyproject.toml": f'[project]\nname = "{name}"\nversion = "1"\ndependencies = [{listed}]\n'
            f'[project.entry-points."amplifier.modules"]\n{name} = "{package}:mount"\n',
            f"{package}.py": TOOL.format(name=name),
        },
    )
    return {"module": name, "source": str(folder)}


def plan(*tools: dict[str, Any]) -> dict[str, Any]:
    session = {"orchestrator": "loop-basic", "context": "context-simple"}
    return {"session": session, "tools": list(tools)}


def resolver(**options: Any) -> AppModuleSourceResolver:
    def origin(module_id: str, source: str | None) -> Location:
        return Location("plan.yaml", 3 if module_id == "tool-a" else 4)

    return AppModuleSourceResolver(origin=origin, **options)


async def versions(ready: AppModuleSourceResolver, *tools: dict[str, Any]) -> list[str]:
    """Mount tools through the kernel, and what each of them has."""
    coordinator = MockCoordinator()
    await coordinator.mount("module-source-resolver", ready)
    loader = ModuleLoader(coordinator)
    for tool in tools:
        mount = await loader.load(tool["module"], {}, source_hint=tool["source"])
        await mount(coordinator)
    answers = [await tool.execute({}) for tool in coordinator.get("tools").values()]
    loader.cleanup()
    return [answer.output for answer in answers]


async def test_modules_get_a_version_that_suits_all_of_them_and_it_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = module(tmp_path / "tool-a", "some-lib>=1.2")
    b = module(tmp_path / "tool-b", "some-lib<2")
    alone = resolver()
    await alone.prefetch(plan(a))
    assert alone.resolve(**hint(a)).requirements == {"some-lib": "2.0"}
    together = resolver()
    site = Path(next(path for path in sys.path if path.endswith("site-packages")))
    before = sorted(path.name for path in site.iterdir())
    await together.prefetch(plan(a, b))
    assert sorted(path.name for path in site.iterdir()) == before
    assert together.resolve(**hint(a)).requirements == {"some-lib": "1.5"}

    def no_uv(*_: object, **__: object) -> None:
        raise AssertionError("uv was called")

    with monkeypatch.context() as patch:
        patch.setattr(dependencies, "run", no_uv)
        again = resolver(offline=True)
        await again.prefetch(plan(a, b))
    assert {again.resolve(**hint(one)).requirements["some-lib"] for one in (a, b)} == {"1.5"}
    assert await versions(together, a, b) == ["1.5", "1.5"]


def hint(tool: dict[str, Any]) -> dict[str, Any]:
    return {"module_id": tool["module"], "source_hint": tool["source"]}


async def test_locked_versions_are_not_changed(tmp_path: Path) -> None:
    tools = module(tmp_path / "tool-a", "some-lib>=1"), module(tmp_path / "tool-b", "some-lib>=1")

    def entry(version: str) -> LockEntry:
        return LockEntry(kind="folder", requirements={"some-lib": version})

    same = Lock(plan="p", modules={"tool-a": entry("1.0"), "tool-b": entry("1.0")})
    asked = [(tool["module"], tool["source"]) for tool in tools]
    ready = resolver(lock=same)
    await ready.prefetch_modules(asked)
    assert ready.resolve(**hint(tools[0])).requirements == {"some-lib": "1.0"}
    other = Lock(plan="p", modules={"tool-a": entry("1.0"), "tool-b": entry("2.0")})
    with pytest.raises(SourceError, match="some-lib is required in different versions"):
        await resolver(lock=other).prefetch_modules(asked)


async def test_a_missing_shared_version_is_reported_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = module(tmp_path / "tool-a", "some-lib>=1.2"), module(tmp_path / "tool-b", "some-lib<2")
    for tool in tools:
        await resolver().prefetch(plan(tool))
    for name in ("UV_FIND_LINKS", "UV_NO_INDEX"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://127.0.0.1:1/simple")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "another-uv-cache"))
    with pytest.raises(
        SourceError,
        match="cannot install the combined dependencies of the modules offline: not in the cache",
    ):
        await resolver(offline=True).prefetch(plan(*tools))


async def test_conflicting_modules_are_reported_before_anything_is_imported(
    tmp_path: Path,
) -> None:
    a = module(tmp_path / "tool-a", "some-lib>=2")
    b = module(tmp_path / "tool-b", "old-user")
    with pytest.raises(SourceError) as raised:
        await resolver().prefetch(plan(a, b))
    assert str(raised.value).splitlines() == [
        "some-lib is required in different versions, but a process can use only one:",
        "  tool-a (plan.yaml:3) requires some-lib>=2 (version 2.0)",
        "  tool-b (plan.yaml:4) requires old-user, which requires some-lib<2 (version 1.5)",
        "  Use compatible versions of the modules, or remove one of them",
    ]
    assert to_outcome(raised.value).exit_code == 3
    assert "tool_a" not in sys.modules
    assert "some_lib" not in sys.modules


async def test_the_distribution_of_a_module_counts_as_well(tmp_path: Path, wheels: Path) -> None:
    files = {"tool_w.py": TOOL.format(name="tool-w").replace("some_lib.VERSION", "'w'")}
    for version in ("1.0", "2.0"):
        points = {"tool-w": "tool_w:mount"}
        wheel(wheels, "tool-w", version, ("some-lib",), files=files, modules=points)
    w = {"module": "tool-w", "source": "tool-w==1.0"}
    a = module(tmp_path / "tool-a", "tool-w>=2", "some-lib")
    with pytest.raises(SourceError) as raised:
        await resolver().prefetch(plan(w, a))
    assert "tool-w (plan.yaml:4) is this distribution (version 1.0)" in str(raised.value)
    assert "tool-a (plan.yaml:3) requires tool-w>=2 (version 2.0)" in str(raised.value)


@pytest.mark.thorough
async def test_packages_imported_by_the_process_count(tmp_path: Path) -> None:
    first = module(tmp_path / "tool-a", "some-lib<2")
    ready = resolver()
    await ready.prefetch(plan(first))
    assert await versions(ready, first) == ["1.5"]
    # The session is closed, its folders are off the path; what it imported stays imported.
    assert not [path for path in sys.path if "dependencies" in path]
    free = module(tmp_path / "tool-b", "some-lib>=1")
    again = resolver()
    await again.prefetch(plan(free))
    assert await versions(again, free) == ["1.5"]
    other = module(tmp_path / "tool-c", "some-lib>=2")
    with pytest.raises(SourceError) as raised:
        await resolver().prefetch(plan(other))
    assert "this process has imported it already (version 1.5)" in str(raised.value)
    assert "tool-c (plan.yaml:4) requires some-lib>=2 (version 2.0)" in str(raised.value)


async def test_a_module_loaded_later_counts_as_well(tmp_path: Path) -> None:
    """As one of a sub-agent does, which no plan named before."""
    first = module(tmp_path / "tool-a", "some-lib<2")
    ready = resolver()
    await ready.prefetch(plan(first))
    assert await versions(ready, first) == ["1.5"]
    late = module(tmp_path / "tool-b", "some-lib")
    assert (await ready.async_resolve(**hint(late))).requirements == {"some-lib": "1.5"}
    other = module(tmp_path / "tool-c", "some-lib>=2")
    with pytest.raises(SourceError, match="this process has imported it already"):
        await ready.async_resolve(**hint(other))
    with pytest.raises(SourceError, match="this process has imported it already"):
        ready.resolve(**hint(other))


async def test_a_conflict_with_amplifier_reports_both_versions(tmp_path: Path) -> None:
    from importlib import metadata

    version = metadata.version("pydantic")
    a = module(tmp_path / "tool-a", "pydantic<2", "some-lib")
    with pytest.raises(SourceError) as raised:
        await resolver().prefetch(plan(a))
    assert f"requires pydantic<2, but Amplifier uses pydantic {version}" in str(raised.value)
    assert str(raised.value).startswith("plan.yaml:3: tool-a: ")


async def test_a_folder_of_another_session_is_not_the_environment(tmp_path: Path) -> None:
    """What lies on the path for one session goes with it; another must not count on it."""
    first = module(tmp_path / "tool-a", "some-lib")
    ready = resolver()
    await ready.prefetch(plan(first))
    coordinator = MockCoordinator()
    await coordinator.mount("module-source-resolver", ready)
    loader = ModuleLoader(coordinator)
    await loader.load("tool-a", {}, source_hint=first["source"])
    second = module(tmp_path / "tool-b", "some-lib")
    source = resolver().resolve(**hint(second))
    assert [path.parent.name for path in source.import_paths] == ["dependencies"]
    loader.cleanup()
