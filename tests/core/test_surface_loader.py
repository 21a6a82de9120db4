"""Behaviour of the loader that hosts and published modules rely on, with real packages."""

import asyncio
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from amplifier_core import loader as loader_module
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.loader import (
    ModuleLoader,
    ModuleValidationError,
    import_from_path,
    module_failure_reason,
)
from amplifier_core.module_sources import ModuleLoadError, ModuleNotFoundError
from tests.core.module_folders import HOOK, TOOL, ModuleFolders


class Source:
    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder = folder
        self.__dict__.update(more)

    def resolve(self) -> Path:
        return self.folder


class Resolver:
    def __init__(self, sources: dict[str, Any]) -> None:
        self.sources = sources

    def resolve(self, module_id: str, source_hint: Any = None, profile_hint: Any = None) -> Any:
        if module_id not in self.sources:
            raise ModuleNotFoundError(f"no source for {module_id}")
        return self.sources[module_id]


def loader_of(**sources: Any) -> ModuleLoader:
    coordinator = ModuleCoordinator()
    named = {name.replace("_", "-"): source for name, source in sources.items()}
    coordinator.mount("module-source-resolver", Resolver(named))
    return ModuleLoader(coordinator)


@pytest.fixture(autouse=True)
def _paths_undone() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path


# Return values


async def test_a_loaded_module_is_an_async_function_of_one_argument(
    module_folders: ModuleFolders,
) -> None:
    module_folders.package(TOOL, name="amplifier_module_tool_shown")
    mount = await loader_of(tool_shown=Source(module_folders.root)).load("tool-shown")
    assert inspect.iscoroutinefunction(mount)
    assert list(inspect.signature(mount).parameters) == ["coordinator"]


async def test_a_module_loaded_again_is_the_same_function_with_its_own_config(
    module_folders: ModuleFolders,
) -> None:
    module_folders.package(
        """
        CALLS = []
        async def mount(coordinator, config=None):
            CALLS.append(config)
            coordinator.hooks.register("e", print)
        """,
        name="amplifier_module_hooks_counted",
    )
    loader = loader_of(hooks_counted=Source(module_folders.root))
    first = await loader.load("hooks-counted", {"n": 1})
    second = await loader.load("hooks-counted", {"n": 2})
    calls = sys.modules["amplifier_module_hooks_counted"].CALLS
    assert calls == []  # loading mounts nothing
    await first(ModuleCoordinator())
    await second(ModuleCoordinator())
    assert calls == [{"n": 1}, {"n": 2}]


async def test_load_uses_its_coordinator_if_the_loader_has_none(
    module_folders: ModuleFolders,
) -> None:
    module_folders.package(TOOL, name="amplifier_module_tool_late")
    coordinator = ModuleCoordinator()
    coordinator.mount(
        "module-source-resolver", Resolver({"tool-late": Source(module_folders.root)})
    )
    assert await ModuleLoader().load("tool-late", None, "hint", coordinator)
    assert ModuleLoader(coordinator).coordinator is coordinator


# Errors


async def test_not_found_raises_both_error_types_of_the_contracts() -> None:
    for error in (ValueError, ModuleNotFoundError):
        with pytest.raises(error, match="not found via entry points or filesystem") as caught:
            await ModuleLoader().load("tool-nowhere")
        assert module_failure_reason(caught.value) == "missing_source"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import surely_missing", "No module named 'surely_missing'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def mount(:", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
async def test_import_errors_name_the_module(
    module_folders: ModuleFolders, code: str, text: str
) -> None:
    module_folders.package(code, name="amplifier_module_tool_bad")
    loader = loader_of(tool_bad=Source(module_folders.root))
    for error in (ImportError, ModuleLoadError):
        with pytest.raises(error, match="Module 'tool-bad' cannot be imported") as caught:
            await loader.load("tool-bad")
        assert text in str(caught.value)


async def test_an_entry_point_without_its_function_has_a_reason_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(module_id: str) -> Any:
        raise AttributeError("module 'm' has no attribute 'mount'")

    monkeypatch.setattr(loader_module, "installed_mount", broken)
    with pytest.raises(ImportError, match="has no attribute 'mount'") as caught:
        await ModuleLoader().load("tool-x")
    assert module_failure_reason(caught.value) == "invalid_entry_point"
    assert module_failure_reason(loader_module.ModuleImportError("m")) == "unknown"


async def test_installed_modules_are_imported_unchanged(module_folders: ModuleFolders) -> None:
    module_folders.package(
        "async def mount(c, config=None): return 'plain'\nnothing = None", name="installed_here"
    )
    sys.path.insert(0, str(module_folders.root))
    installed = SimpleNamespace(installed=True, entry_point="installed_here:mount")
    loader = loader_of(
        tool_a=installed, tool_b=Source(Path(), installed=True, entry_point="json:x")
    )
    assert await (await loader.load("tool-a"))(None) == "plain"
    assert await (await loader.load("tool-a"))(None) == "plain"
    with pytest.raises(ModuleValidationError, match="has no mount function 'json:x'"):
        await loader.load("tool-b")
    loader.coordinator.get("module-source-resolver").sources["tool-a"] = Source(Path())
    with pytest.raises(ImportError, match="loaded from the environment"):
        await loader.load("tool-a")


async def test_a_mount_function_that_disappears_after_its_checks_is_reported(
    module_folders: ModuleFolders,
) -> None:
    module_folders.package(
        """
        __amplifier_module_type__ = "resolver"
        """,
        name="amplifier_module_resolver_none",
    )
    with pytest.raises(ModuleValidationError, match="has no mount function") as caught:
        await loader_of(resolver_none=Source(module_folders.root)).load("resolver-none")
    assert caught.value.reason_code == "invalid_entry_point"


# Sources and folders


@pytest.mark.parametrize("kind", [Mock, MagicMock])
async def test_only_the_folder_of_a_mock_source_is_used(
    kind: type[Mock], module_folders: ModuleFolders
) -> None:
    module_folders.package(TOOL, name="amplifier_module_tool_mocked")
    source = kind()
    source.resolve.return_value = module_folders.root
    assert await loader_of(tool_mocked=source).load("tool-mocked")


async def test_two_paths_to_one_folder_are_the_same_source(module_folders: ModuleFolders) -> None:
    module_folders.package(TOOL, name="real/amplifier_module_tool_linked")
    link = module_folders.root / "link"
    link.symlink_to(module_folders.root / "real")
    source = Source(module_folders.root / "real")
    loader = loader_of(tool_linked=source)
    await loader.load("tool-linked")
    source.folder = link
    assert await loader.load("tool-linked")


def test_a_package_behind_a_symlink_is_named_after_the_link(module_folders: ModuleFolders) -> None:
    store = module_folders.package("", name="store_0123")
    link = module_folders.root / "linked_package"
    link.symlink_to(store)
    assert import_from_path(link).__name__ == "linked_package"


async def test_folders_for_dependencies_are_appended_to_sys_path(
    module_folders: ModuleFolders,
) -> None:
    module_folders.package(TOOL, name="own/amplifier_module_tool_needy")
    required = module_folders.root / "required"
    source = Source(module_folders.root / "own", import_paths=(required,))
    loader = loader_of(tool_needy=source)
    await loader.load("tool-needy")
    assert sys.path[0] == str(module_folders.root / "own")
    assert sys.path[-1] == str(required)
    loader.cleanup()
    assert str(required) not in sys.path


async def test_a_folder_stays_importable_while_any_loader_needs_it(
    module_folders: ModuleFolders,
) -> None:
    module_folders.package(TOOL, name="amplifier_module_tool_shared")
    folder = str(module_folders.root)
    first, second = (loader_of(tool_shared=Source(module_folders.root)) for _ in range(2))
    await first.load("tool-shared")
    await second.load("tool-shared")
    assert sys.path.count(folder) == 1
    first.cleanup()
    first.cleanup()
    assert folder in sys.path
    second.cleanup()
    assert folder not in sys.path


async def test_a_folder_already_on_sys_path_is_not_removed(module_folders: ModuleFolders) -> None:
    module_folders.package(TOOL, name="amplifier_module_tool_there")
    folder = str(module_folders.root)
    sys.path.append(folder)
    loader = loader_of(tool_there=Source(module_folders.root))
    await loader.load("tool-there")
    loader.cleanup()
    assert folder in sys.path


async def test_a_folder_already_removed_from_sys_path_is_not_an_error(
    module_folders: ModuleFolders,
) -> None:
    module_folders.package(TOOL, name="amplifier_module_tool_gone")
    loader = loader_of(tool_gone=Source(module_folders.root))
    await loader.load("tool-gone")
    sys.path.remove(str(module_folders.root))
    loader.cleanup()


# on_session_ready


async def test_on_session_ready_of_the_package_is_found_for_a_mount_in_a_submodule(
    module_folders: ModuleFolders,
) -> None:
    module_folders.package(
        """
        from .part import mount
        __amplifier_module_type__ = "hook"
        async def on_session_ready(coordinator): ...
        """,
        name="amplifier_module_hooks_split",
        part="async def mount(coordinator, config=None): ...",
    )
    mount = await loader_of(hooks_split=Source(module_folders.root)).load("hooks-split")
    module_id, ready = mount.__on_session_ready__  # type: ignore[attr-defined]
    assert (module_id, ready.__module__) == ("hooks-split", "amplifier_module_hooks_split")


async def test_a_module_without_on_session_ready_has_no_attribute_for_it(
    module_folders: ModuleFolders,
) -> None:
    module_folders.package(HOOK, name="amplifier_module_hooks_bare")
    loader = loader_of(hooks_bare=Source(module_folders.root))
    assert not hasattr(await loader.load("hooks-bare"), "__on_session_ready__")
    assert loader.get_on_session_ready_queue() == []


# Concurrency


async def test_modules_may_be_loaded_concurrently(module_folders: ModuleFolders) -> None:
    for index in range(4):
        code = TOOL.replace('"shout"', f'"shout{index}"')
        module_folders.package(code, name=f"{index}/amplifier_module_tool_par{index}")
    loader = loader_of(
        **{f"tool_par{index}": Source(module_folders.root / str(index)) for index in range(4)}
    )
    coordinator = ModuleCoordinator()
    for mount in await asyncio.gather(*(loader.load(f"tool-par{index}") for index in range(4))):
        await mount(coordinator)
    assert sorted(coordinator.get("tools")) == ["shout0", "shout1", "shout2", "shout3"]
