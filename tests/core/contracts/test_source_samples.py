"""Resolvers and sources as in the samples of the Module Source Protocol."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.loader import ModuleLoader
from amplifier_core.module_sources import ModuleNotFoundError, ModuleSource

CODE = """
from amplifier_core.models import ToolResult

class Tool:
    name = "sample"
    description = "A sample."
    input_schema = {"type": "object"}

    async def execute(self, input):
        return ToolResult(output="ok")

async def mount(coordinator, config):
    await coordinator.mount("tools", Tool(), name="sample")
"""


class FileSource:
    """Conforms by structure only."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resolve(self) -> Path:
        if not self.path.is_dir():
            raise ModuleNotFoundError(f"{self.path} does not exist")
        return self.path


class CustomResolver:
    def __init__(self, overrides: dict[str, Path]) -> None:
        self.overrides = overrides

    def resolve(self, module_id: str, profile_hint: Any = None) -> ModuleSource:
        if module_id in self.overrides:
            return FileSource(self.overrides[module_id])  # type: ignore[return-value]
        if profile_hint:
            return FileSource(Path(profile_hint))  # type: ignore[return-value]
        raise ModuleNotFoundError(f"{module_id}: no override and no hint")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = list(sys.path)
    package = tmp_path / "amplifier_module_tool_sample"
    package.mkdir()
    (package / "__init__.py").write_text(CODE)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("amplifier_module_tool_sample", None)


@pytest.mark.parametrize("by_hint", [True, False])
async def test_a_resolver_mounted_before_the_loader_is_used(folder: Path, by_hint: bool) -> None:
    coordinator = ModuleCoordinator()
    coordinator.mount(
        "module-source-resolver", CustomResolver({} if by_hint else {"tool-sample": folder})
    )
    loader = ModuleLoader(coordinator)
    mount = await loader.load("tool-sample", {}, str(folder) if by_hint else None)
    await mount(coordinator)
    assert (await coordinator.get("tools", "sample").execute({})).output == "ok"


async def test_a_module_no_resolver_finds_is_reported_with_the_places_searched(
    tmp_path: Path,
) -> None:
    coordinator = ModuleCoordinator()
    coordinator.mount("module-source-resolver", CustomResolver({"tool-b": tmp_path / "gone"}))
    loader = ModuleLoader(coordinator)
    with pytest.raises(ModuleNotFoundError, match="tool-a: no override and no hint"):
        await loader.load("tool-a")
    with pytest.raises(ModuleNotFoundError, match="does not exist"):
        await loader.load("tool-b")
