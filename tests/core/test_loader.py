"""How a module's mount function is found, validated, bound and isolated from others."""

import asyncio
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from amplifier_core import loader as loader_module
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.loader import (
    MODULE_FAILURE_REASONS,
    AmplifierModuleLoader,
    ModuleLoader,
    ModuleValidationError,
    find_kind,
    find_package,
    import_from_path,
    module_failure_reason,
)
from amplifier_core.module_sources import ModuleLoadError, ModuleNotFoundError, ModuleSource
from tests.core.module_folders import HOOK, ModuleFolders
from tests.core.module_folders import TOOL as SHOUT

TOOL = """
    from amplifier_core.models import ToolResult
    MOUNTS = []
    class Tool:
        name = "{name}"
        description = "A tool"
        input_schema = {{"type": "object"}}
        def __init__(self, config): self.config = config
        async def execute(self, input): return ToolResult(output=self.config)
    async def mount(coordinator, config=None):
        MOUNTS.append(config)
        await coordinator.mount("tools", Tool(config), name="{name}")
"""


class Folder(ModuleSource):
    installed = False
    import_paths: Sequence[Path] = ()

    def __init__(self, path: Path, entry_point: str | None = None) -> None:
        self.path = path
        if entry_point:
            self.entry_point = entry_point

    def resolve(self) -> Path:
        return self.path


class Source:
    """A source by its structure only."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder = folder
        self.__dict__.update(more)

    def resolve(self) -> Path:
        return self.folder


class Resolver:
    """Resolves the modules it was given and records the requests."""

    def __init__(self, **sources: Any) -> None:
        self.sources = {name.replace("_", "-"): source for name, source in sources.items()}
        self.asked: list[tuple[str, Any, Any]] = []

    def resolve(self, module_id: str, source_hint: Any = None, profile_hint: Any = None) -> Any:
        self.asked.append((module_id, source_hint, profile_hint))
        if module_id not in self.sources:
            raise ModuleNotFoundError(f"no source for {module_id}")
        return self.sources[module_id]


@pytest.fixture(autouse=True)
def _imports_undone() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith(("amplifier_module_", "own_", "plain_")):
            del sys.modules[name]
    sys.path[:] = path


def package(folder: Path, name: str, code: str = TOOL, **files: str) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    text = dedent(code)
    (path / "__init__.py").write_text(
        text.format(name=name.removeprefix("amplifier_module_")) if code is TOOL else text
    )
    for file, content in files.items():
        (path / f"{file}.py").write_text(dedent(content))
    return folder


def loader_with(resolver: Any) -> ModuleLoader:
    coordinator = ModuleCoordinator()
    coordinator.mount("module-source-resolver", resolver)
    return ModuleLoader(coordinator)


def loader_of(**sources: Any) -> ModuleLoader:
    return loader_with(Resolver(**sources))


async def mounted(mount: Any) -> dict[str, Any]:
    coordinator = ModuleCoordinator()
    await mount(coordinator)
    return coordinator.get("tools")


# Without a resolver


async def test_a_package_named_by_convention_is_found_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "amplifier_module_tool_one")
    monkeypatch.syspath_prepend(tmp_path)
    loader = ModuleLoader()
    first = await loader.load("tool-one", {"a": 1})
    second = await loader.load("tool-one", {"a": 2})
    third = await loader.load("tool-one")
    assert (await mounted(first))["tool_one"].config == {"a": 1}
    assert (await mounted(second))["tool_one"].config == {"a": 2}
    assert (await mounted(third))["tool_one"].config == {}


async def test_an_installed_entry_point_comes_first() -> None:
    mount = await ModuleLoader().load("provider-mock", {})
    coordinator = ModuleCoordinator()
    await mount(coordinator)
    assert list(coordinator.get("providers")) == ["mock"]


@pytest.mark.parametrize("given", ["argument", "variable"])
async def test_projects_in_search_folders_are_found_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    package(tmp_path / "second" / "amplifier-module-tool-one", "amplifier_module_tool_one")
    folders = [tmp_path / "first", tmp_path / "second"]
    monkeypatch.setenv("AMPLIFIER_MODULES", os.pathsep.join(map(str, folders)))
    loader = ModuleLoader(search_paths=folders) if given == "argument" else AmplifierModuleLoader()
    assert "tool-one" in {info.id for info in await loader.discover()}
    mount = await loader.load("tool-one", {"a": 1})
    assert (await mounted(mount))["tool_one"].config == {"a": 1}
    assert sys.path[0] == str(folders[1] / "amplifier-module-tool-one")
    loader.cleanup()
    assert sys.path[0] != str(folders[1] / "amplifier-module-tool-one")
    with pytest.raises(ValueError, match=f"no project in {folders[0]}, no project in {folders[1]}"):
        await loader.load("tool-two")


async def test_a_project_in_a_search_folder_must_be_a_module(tmp_path: Path) -> None:
    (tmp_path / "amplifier-module-tool-empty").mkdir()
    package(tmp_path / "amplifier-module-tool-broken", "amplifier_module_tool_broken", "1 / 0")
    package(tmp_path / "amplifier-module-tool-plain", "amplifier_module_tool_plain", "mount = 1")
    loader = ModuleLoader(search_paths=[tmp_path])
    with pytest.raises(ModuleValidationError, match="no package in"):
        await loader.load("tool-empty")
    with pytest.raises(ImportError, match="'tool-broken' cannot be imported: ZeroDivisionError"):
        await loader.load("tool-broken")
    with pytest.raises(ModuleValidationError, match="has no mount function"):
        await loader.load("tool-plain")


async def test_a_package_that_fails_to_import_is_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "amplifier_module_tool_broken", "import surely_not_installed")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="surely_not_installed"):
        await ModuleLoader().load("tool-broken")


async def test_a_coordinator_without_that_mount_point_has_no_resolver() -> None:
    class Bare:
        def get(self, point: str) -> Any:
            raise ValueError(point)

    assert await ModuleLoader().load("provider-mock", coordinator=Bare())


# With a resolver


async def test_a_resolved_folder_is_validated_imported_and_mounted(tmp_path: Path) -> None:
    resolver = Resolver(tool_two=Folder(package(tmp_path, "amplifier_module_tool_two")))
    loader = loader_with(resolver)
    mount = await loader.load("tool-two", {"a": 1}, source_hint="hint")
    assert (await mounted(mount))["tool_two"].config == {"a": 1}
    assert resolver.asked == [("tool-two", "hint", "hint")]
    assert sys.path[0] == str(tmp_path)
    loader.cleanup()
    loader.cleanup()
    assert str(tmp_path) not in sys.path


async def test_resolvers_of_every_version_are_called_with_their_parameters(tmp_path: Path) -> None:
    source = Folder(package(tmp_path, "amplifier_module_tool_three"))
    asked: list[Any] = []

    class Oldest:
        def resolve(self, module_id: str, profile_hint: Any = None) -> Any:
            asked.append(profile_hint)
            return source

    class Positional:
        def resolve(self, module_id: str, hint: Any) -> Any:
            asked.append(hint)
            return source

    class OnlyId:
        def resolve(self, module_id: str) -> Any:
            asked.append(module_id)
            return source

    class Asynchronous:
        async def async_resolve(self, module_id: str, **hints: Any) -> Any:
            asked.append(hints)
            return source

        def resolve(self, module_id: str, **hints: Any) -> Any:
            raise AssertionError("async_resolve comes first")

    for resolver in (Oldest(), Positional(), OnlyId(), Asynchronous()):
        await loader_with(resolver).load("tool-three", profile_source="h")
    assert asked == ["h", "h", "tool-three", {"source_hint": "h", "profile_hint": "h"}]


async def test_a_module_unknown_to_the_resolver_may_be_installed(tmp_path: Path) -> None:
    loader = loader_with(Resolver())
    assert await loader.load("provider-mock")
    with pytest.raises(ModuleNotFoundError, match="no source for tool-nowhere"):
        await loader.load("tool-nowhere")


async def test_a_source_whose_folder_is_missing_is_reported(tmp_path: Path) -> None:
    class Gone(Folder):
        def resolve(self) -> Path:
            raise ModuleNotFoundError(f"{self.path} does not exist")

    with pytest.raises(ModuleNotFoundError, match="does not exist"):
        await loader_of(tool_gone=Gone(tmp_path)).load("tool-gone")


async def test_an_id_cannot_be_loaded_from_two_folders(tmp_path: Path) -> None:
    resolver = Resolver(tool_four=Folder(package(tmp_path / "a", "amplifier_module_tool_four")))
    loader = loader_with(resolver)
    await loader.load("tool-four")
    assert await loader.load("tool-four")
    resolver.sources["tool-four"] = Folder(package(tmp_path / "b", "amplifier_module_tool_four"))
    with pytest.raises(ImportError, match="already loaded from"):
        await loader.load("tool-four")
    with pytest.raises(ImportError, match="already loaded from"):
        await loader_with(resolver).load("tool-four")


async def test_the_entry_point_of_a_source_is_imported(tmp_path: Path) -> None:
    package(tmp_path, "own_name", "", plugin=dedent(TOOL).format(name="own"))
    source = Folder(tmp_path, "own_name.plugin:mount")
    mount = await loader_of(my_tool=source).load("my-tool", {"a": 1})
    assert (await mounted(mount))["own"].config == {"a": 1}


async def test_an_entry_point_without_its_function_is_invalid(tmp_path: Path) -> None:
    package(tmp_path, "own_other")
    source = Folder(tmp_path, "own_other:missing")
    with pytest.raises(ModuleLoadError, match=r"mount_exists: own_other\.missing is missing"):
        await loader_of(my_tool=source).load("my-tool")


async def test_an_entry_point_from_another_location_is_rejected(tmp_path: Path) -> None:
    source = Folder(tmp_path, "json:loads")
    with pytest.raises(ImportError, match="already loaded from"):
        await loader_of(my_tool=source).load("my-tool")


@pytest.mark.parametrize(
    ("signature", "found"),
    [("def mount(c, config=None)", "is not async"), ("async def mount(c)", "takes 1 arguments")],
)
async def test_an_invalid_mount_function_is_not_loaded(
    signature: str, found: str, tmp_path: Path
) -> None:
    source = Folder(package(tmp_path, "amplifier_module_tool_five", f"{signature}: ..."))
    with pytest.raises(
        ModuleValidationError, match=f"failed validation: mount_signature: .*{found}"
    ):
        await loader_of(tool_five=source).load("tool-five")


async def test_the_current_directory_does_not_affect_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path / "source", "own_tool")
    (tmp_path / "work" / "own_tool").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    source = Folder(tmp_path / "source", "own_tool:mount")
    assert await loader_of(my_tool=source).load("my-tool")


async def test_a_resolver_module_is_not_validated(tmp_path: Path) -> None:
    code = """
        __amplifier_module_type__ = "resolver"
        async def mount(coordinator, config=None):
            await coordinator.mount("module-source-resolver", "it")
    """
    source = Folder(package(tmp_path, "amplifier_module_resolver_x", code))
    mount = await loader_of(resolver_x=source).load("resolver-x")
    coordinator = ModuleCoordinator()
    await mount(coordinator)
    assert coordinator.get("module-source-resolver") == "it"


# on_session_ready


READY = """
    __amplifier_module_type__ = "hook"
    async def mount(coordinator, config=None): ...
    {ready} on_session_ready(coordinator): ...
"""


async def test_on_session_ready_must_be_async(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code = READY.format(ready="def")
    source = Folder(package(tmp_path, "amplifier_module_hooks_sync", code))
    with pytest.raises(ModuleValidationError, match="on_session_ready"):
        await loader_of(hooks_sync=source).load("hooks-sync")
    monkeypatch.syspath_prepend(tmp_path)
    with caplog.at_level(logging.WARNING):
        mount = await ModuleLoader().load("hooks-sync")
    assert not hasattr(mount, "__on_session_ready__")
    assert "is not async" in caplog.text


def test_the_queue_of_on_session_ready_functions() -> None:
    loader = ModuleLoader()
    loader.enqueue_on_session_ready("a", print)
    loader.get_on_session_ready_queue().clear()
    assert loader.get_on_session_ready_queue() == [("a", print)]
    loader.clear_on_session_ready_queue()
    assert loader.get_on_session_ready_queue() == []


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


# Discovery


async def test_discovery_lists_installed_modules_and_search_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "amplifier-module-loop-own").mkdir()
    (tmp_path / "amplifier-module-file").write_text("")
    found = {info.id: info for info in await ModuleLoader(search_paths=[tmp_path]).discover()}
    assert (found["loop-own"].type, found["loop-own"].mount_point) == (
        "orchestrator",
        "orchestrator",
    )
    assert found["provider-mock"].version
    assert "file" not in found
    monkeypatch.setenv("AMPLIFIER_MODULES", f"{tmp_path}:{tmp_path / 'missing'}")
    assert "loop-own" in {info.id for info in await ModuleLoader().discover()}


async def test_initialize_mounts_what_was_loaded() -> None:
    async def mount(coordinator: Any) -> str:
        return coordinator

    assert await ModuleLoader().initialize(mount, "c") == "c"


# Kinds, folders, reasons


@pytest.mark.parametrize(
    ("module_id", "kind"),
    [
        ("tool-orchestrator", "orchestrator"),
        ("hooks-loop-guard", "hook"),
        ("tool-loop-finder", "tool"),
        ("context-for-tools", "context"),
        ("loop-basic", "orchestrator"),
        ("provider-x", "provider"),
        ("tool-x", "tool"),
        ("hooks-x", "hook"),
        ("context-x", "context"),
        ("anything", "tool"),
    ],
)
def test_a_kind_is_guessed_from_the_id(module_id: str, kind: str) -> None:
    assert find_kind(module_id) == kind


def test_a_declared_kind_takes_precedence_and_must_exist() -> None:
    declared = ModuleType("m")
    declared.__amplifier_module_type__ = "hook"  # type: ignore[attr-defined]
    assert find_kind("tool-x", declared) == "hook"
    declared.__amplifier_module_type__ = "gadget"  # type: ignore[attr-defined]
    with pytest.raises(ModuleValidationError, match="gadget") as caught:
        find_kind("tool-x", declared)
    assert caught.value.reason_code == "invalid_module_metadata"


def test_the_package_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModuleValidationError, match="no package") as caught:
        find_package("tool-x", tmp_path)
    assert caught.value.reason_code == "invalid_package_layout"
    package(tmp_path, "amplifier_module_other")
    assert find_package("tool-x", tmp_path).name == "amplifier_module_other"
    package(tmp_path, "amplifier_module_tool_x")
    assert find_package("tool-x", tmp_path).name == "amplifier_module_tool_x"
    (tmp_path / "__init__.py").write_text("")
    assert find_package("tool-x", tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleValidationError("m"), "validation_failed"),
        (
            ModuleValidationError("m", reason_code="invalid_package_layout"),
            "invalid_package_layout",
        ),
        (ModuleNotFoundError("m"), "missing_source"),
        (FileNotFoundError("m"), "missing_source"),
        (AttributeError("no attribute 'mount'"), "invalid_entry_point"),
        (AttributeError("other"), "unknown"),
        (RuntimeError("m"), "unknown"),
    ],
)
def test_exceptions_have_reason_codes(error: Exception, reason: str) -> None:
    assert module_failure_reason(error) == reason
    assert reason in MODULE_FAILURE_REASONS


# Importing from a path


def test_a_path_that_is_not_a_package_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"__init__\.py is missing"):
        import_from_path(tmp_path)
    (tmp_path / "plain_text.txt").write_text("")
    with pytest.raises(ImportError, match="cannot be imported as Python"):
        import_from_path(tmp_path / "plain_text.txt")


def test_a_failing_import_leaves_nothing_in_sys_modules(tmp_path: Path) -> None:
    (tmp_path / "plain_broken.py").write_text("raise RuntimeError('boom')")
    with pytest.raises(RuntimeError, match="boom"):
        import_from_path(tmp_path / "plain_broken.py")
    assert "plain_broken" not in sys.modules
    (tmp_path / "plain_broken.py").write_text("X = 1")
    assert import_from_path(tmp_path / "plain_broken.py").X == 1


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import no_such_sdk"])
async def test_what_a_package_raises_while_it_provides_mount_is_its_own_failure(
    tmp_path: Path, code: str
) -> None:
    package(tmp_path, "own_lazy", f"def __getattr__(name):\n    {code}\n")
    source = Folder(tmp_path, "own_lazy:mount")
    source.installed = True
    source.import_paths = [tmp_path]
    with pytest.raises(ModuleLoadError, match="Module 'my-tool' cannot be imported"):
        await loader_of(my_tool=source).load("my-tool")


# Return values


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
    module_folders.package(SHOUT, name="amplifier_module_tool_mocked")
    source = kind()
    source.resolve.return_value = module_folders.root
    assert await loader_of(tool_mocked=source).load("tool-mocked")


def test_a_package_behind_a_symlink_is_named_after_the_link(module_folders: ModuleFolders) -> None:
    store = module_folders.package("", name="store_0123")
    link = module_folders.root / "linked_package"
    link.symlink_to(store)
    assert import_from_path(link).__name__ == "linked_package"


async def test_folders_for_dependencies_are_appended_to_sys_path(
    module_folders: ModuleFolders,
) -> None:
    module_folders.package(SHOUT, name="own/amplifier_module_tool_needy")
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
    module_folders.package(SHOUT, name="amplifier_module_tool_shared")
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
    module_folders.package(SHOUT, name="amplifier_module_tool_there")
    folder = str(module_folders.root)
    sys.path.append(folder)
    loader = loader_of(tool_there=Source(module_folders.root))
    await loader.load("tool-there")
    loader.cleanup()
    assert folder in sys.path


async def test_a_folder_already_removed_from_sys_path_is_not_an_error(
    module_folders: ModuleFolders,
) -> None:
    module_folders.package(SHOUT, name="amplifier_module_tool_gone")
    loader = loader_of(tool_gone=Source(module_folders.root))
    await loader.load("tool-gone")
    sys.path.remove(str(module_folders.root))
    loader.cleanup()


# Concurrency


async def test_modules_may_be_loaded_concurrently(module_folders: ModuleFolders) -> None:
    for index in range(4):
        code = SHOUT.replace('"shout"', f'"shout{index}"')
        module_folders.package(code, name=f"{index}/amplifier_module_tool_par{index}")
    loader = loader_of(
        **{f"tool_par{index}": Source(module_folders.root / str(index)) for index in range(4)}
    )
    coordinator = ModuleCoordinator()
    for mount in await asyncio.gather(*(loader.load(f"tool-par{index}") for index in range(4))):
        await mount(coordinator)
    assert sorted(coordinator.get("tools")) == ["shout0", "shout1", "shout2", "shout3"]
