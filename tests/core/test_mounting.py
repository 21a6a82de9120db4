"""A module is checked against its plan entry while it is mounted, once."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.loader import ModuleLoader
from amplifier_core.module_sources import (
    ModuleMountError,
    ModuleNotFoundError,
    ModuleSource,
    ModuleValidationError,
    NothingMountedError,
    RequiredModuleError,
    module_failure_reason,
)
from amplifier_core.mounting import ModuleSpec, initialize_session, mount_module
from tests.core.module_folders import CONTEXT, HOOK, ORCHESTRATOR, SAMPLES, TOOL, ModuleFolders


class Source(ModuleSource):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resolve(self) -> Path:
        return self.folder


class Sources:
    """Resolves every id to the package folder created for it."""

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}

    def resolve(self, module_id: str, source_hint: Any = None) -> ModuleSource:
        if module_id not in self.folders:
            raise ModuleNotFoundError(f"no source for {module_id}")
        return Source(self.folders[module_id])


class Bench:
    """A coordinator with a real loader, and modules whose ids do not indicate their kind."""

    def __init__(self, folders: ModuleFolders) -> None:
        self._folders = folders
        self._sources = Sources()
        self.coordinator = ModuleCoordinator()
        self.coordinator.loader = ModuleLoader(self.coordinator)
        self.coordinator.mount("module-source-resolver", self._sources)

    def module(self, code: str, module_id: str = "acme") -> str:
        self._sources.folders[module_id] = self._folders.package(code)
        return module_id

    async def mount(self, kind: str, code: str) -> None:
        module_id = self.module(code, "acme" * (len(self._sources.folders) + 1))
        await mount_module(ModuleSpec(kind, module_id, None, {}), self.coordinator)


@pytest.fixture
def bench(module_folders: ModuleFolders) -> Iterator[Bench]:
    bench = Bench(module_folders)
    yield bench
    bench.coordinator.loader.cleanup()


def mounted(coordinator: ModuleCoordinator, kind: str) -> Any:
    point = {"provider": "providers", "tool": "tools"}.get(kind, kind)
    return coordinator.get(point)


# The section of the plan


@pytest.mark.parametrize("kind", SAMPLES)
async def test_the_section_determines_the_kind_not_the_id(kind: str, bench: Bench) -> None:
    await bench.mount(kind, SAMPLES[kind])
    if kind == "hook":
        assert bench.coordinator.hooks.list_handlers("tool:pre") != {"tool:pre": []}
    else:
        assert mounted(bench.coordinator, kind)


@pytest.mark.parametrize(
    ("kind", "declared", "sections"),
    [
        ("tool", "hook", ("'tools'", "'hooks'")),
        ("orchestrator", "context", ("'session.orchestrator'", "'session.context'")),
        ("hook", "provider", ("'hooks'", "'providers'")),
    ],
)
async def test_a_declared_kind_that_contradicts_the_section_is_an_error_that_names_both(
    kind: str, declared: str, sections: tuple[str, str], bench: Bench
) -> None:
    code = f'__amplifier_module_type__ = "{declared}"\nMOUNTED = []\n'
    code += "async def mount(coordinator, config=None):\n    MOUNTED.append(1)\n"
    with pytest.raises(ModuleValidationError) as caught:
        await bench.mount(kind, code)
    for section in sections:
        assert section in str(caught.value)
    assert f"__amplifier_module_type__ = '{declared}'" in str(caught.value)
    assert module_failure_reason(caught.value) == "invalid_module_metadata"


@pytest.mark.parametrize("kind", ["tool", "provider", "context", "hook"])
async def test_a_module_of_another_kind_is_named_with_its_section_and_unmounted(
    kind: str, bench: Bench
) -> None:
    original = object()
    bench.coordinator.mount("orchestrator", original)
    with pytest.raises(ModuleValidationError, match=r"list it under 'session\.orchestrator'"):
        await bench.mount(kind, ORCHESTRATOR)
    assert bench.coordinator.get("orchestrator") is original


async def test_a_mount_function_runs_once(bench: Bench) -> None:
    code = (
        TOOL
        + "        import sys\n        sys.mounted_here = getattr(sys, 'mounted_here', 0) + 1\n"
    )
    try:
        await bench.mount("tool", code)
        assert sys.mounted_here == 1  # type: ignore[attr-defined]
    finally:
        del sys.mounted_here  # type: ignore[attr-defined]


# A module that mounts nothing


DECLINES = """
    import logging

    async def mount(coordinator, config=None):
        logging.getLogger("acme").warning("docker is missing")
"""


@pytest.mark.parametrize("kind", ["tool", "provider", "hook"])
async def test_a_module_that_mounts_nothing_is_skipped_with_its_logged_reason(
    kind: str, bench: Bench
) -> None:
    with pytest.raises(NothingMountedError, match=r"^docker is missing$"):
        await bench.mount(kind, DECLINES)


@pytest.mark.parametrize("kind", ["orchestrator", "context"])
async def test_an_orchestrator_or_context_that_mounts_nothing_is_an_error(
    kind: str, bench: Bench
) -> None:
    with pytest.raises(
        ModuleValidationError, match=rf"no {kind} .*\(it logged: docker is missing\)"
    ):
        await bench.mount(kind, DECLINES)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("tool", "mounted no tool and returned None"), ("hook", "registered nothing")],
)
async def test_a_module_that_mounts_nothing_without_a_reason_is_skipped(
    kind: str, text: str, bench: Bench
) -> None:
    with pytest.raises(NothingMountedError, match=text):
        await bench.mount(kind, "async def mount(coordinator, config=None): ...")


async def test_a_tool_that_only_returns_a_cleanup_is_skipped_and_cleaned_up(bench: Bench) -> None:
    code = """
        closed = []

        async def mount(coordinator, config=None):
            return lambda: closed.append(1)
    """
    with pytest.raises(
        NothingMountedError, match="mounted no tool and returned a cleanup; it may need settings"
    ):
        await bench.mount("tool", code)
    await bench.coordinator.cleanup()
    samples = [module for name, module in sys.modules.items() if name.startswith("sample_module_")]
    assert [sample.closed for sample in samples] == [[1]]


async def test_a_tool_that_mounts_later_is_not_a_failure(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.mount("tool", '__amplifier_module_type__ = "tool"\n' + dedent(HOOK))
    assert not caplog.records
    await bench.mount("tool", HOOK)
    assert "mounted no tool, registered a handler of tool:pre" in caplog.text


async def test_a_hook_may_register_anything_that_others_use(bench: Bench) -> None:
    for body in (
        'coordinator.register_capability("x", 1)',
        'coordinator.register_contributor("c", "x", list)',
        "return lambda: None",
    ):
        await bench.mount("hook", f"async def mount(coordinator, config=None): {body}")


# Checks of mounted modules


@pytest.mark.parametrize(
    ("kind", "old", "new", "text"),
    [
        (
            "tool",
            "async def execute",
            "def execute",
            "tool_execute: tool 'shout': execute is not async",
        ),
        ("tool", '("tools", Shout())', '("tools", Shout)', "is the class Shout, not an instance"),
        ("context", "async def clear", "async def clean", "context_clear: .*clear is missing"),
    ],
)
async def test_a_mounted_object_that_violates_the_protocol_is_unmounted(
    kind: str, old: str, new: str, text: str, bench: Bench
) -> None:
    code = SAMPLES[kind]
    assert old in code
    with pytest.raises(ModuleValidationError, match=f"'acme' failed validation: .*{text}"):
        await bench.mount(kind, code.replace(old, new))
    assert not mounted(bench.coordinator, kind)


async def test_a_returned_instance_is_mounted(bench: Bench) -> None:
    await bench.mount(
        "tool", TOOL.replace('await coordinator.mount("tools", Shout())', "return Shout()")
    )
    assert list(bench.coordinator.get("tools")) == ["shout"]


async def test_a_returned_object_of_the_wrong_kind_is_an_error(bench: Bench) -> None:
    code = CONTEXT.replace('await coordinator.mount("context", Notebook())', "return Notebook()")
    with pytest.raises(ModuleValidationError, match=r"tool_execute: .*execute is missing"):
        await bench.mount("tool", code)


async def test_a_cleanup_that_requires_arguments_is_named_and_not_called(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    code = TOOL + "        def close(loop): raise AssertionError\n        return close\n"
    await bench.mount("tool", code)
    assert (
        "'acme': mount() returned a function that is not a cleanup, because it requires 'loop'"
        in caplog.text
    )
    assert "line 18, in close" in caplog.text
    caplog.clear()
    await bench.coordinator.cleanup()
    assert not caplog.records


async def test_a_tool_that_replaces_another_is_named(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.mount("tool", TOOL)
    assert not caplog.records
    first = dict(mounted(bench.coordinator, "tool"))
    await bench.mount("tool", TOOL)
    (name,) = first
    assert mounted(bench.coordinator, "tool")[name] is not first[name]
    assert f"it replaces {name!r} of a module mounted before it" in caplog.text


# A mount function that raises


@pytest.mark.parametrize("error", ["RuntimeError('no luck')", "SystemExit('no luck')"])
async def test_an_exception_of_a_mount_function_is_reported_with_its_line(
    error: str, bench: Bench
) -> None:
    code = f"async def mount(coordinator, config=None):\n    raise {error}\n"
    with pytest.raises(ModuleMountError) as caught:
        await bench.mount("tool", code)
    text = str(caught.value)
    assert text.startswith("Module 'acme' cannot be mounted: mount() raised ")
    assert "no luck (sample_module_" in text
    assert text.endswith("__init__.py, line 2, in mount)")


async def test_an_invalid_configuration_is_reported_in_the_words_of_the_module(
    bench: Bench,
) -> None:
    code = (
        "from amplifier_core.llm_errors import ConfigurationError\n"
        "async def mount(coordinator, config=None):\n"
        "    raise ConfigurationError('set ACME_URL')\n"
    )
    with pytest.raises(ModuleMountError) as caught:
        await bench.mount("tool", code)
    assert str(caught.value) == "Module 'acme' is not configured correctly: set ACME_URL"


async def test_a_mount_function_that_cancels_itself_has_failed(bench: Bench) -> None:
    code = "import asyncio\nasync def mount(c, config=None):\n    raise asyncio.CancelledError\n"
    with pytest.raises(ModuleMountError, match="CancelledError"):
        await bench.mount("tool", code)


async def test_a_cancelled_session_stops_mounting(bench: Bench) -> None:
    code = "import asyncio\nasync def mount(c, config=None):\n    await asyncio.sleep(60)\n"
    task = asyncio.create_task(bench.mount("tool", code))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_event_of_a_failure_has_the_type_of_the_exception(bench: Bench) -> None:
    plan = {
        "session": {
            "orchestrator": bench.module(ORCHESTRATOR, "one"),
            "context": bench.module(CONTEXT, "two"),
        },
        "tools": [{"module": bench.module("async def mount(c, config=None): 1 / 0", "three")}],
    }
    failures: list[dict[str, Any]] = []
    bench.coordinator.hooks.register(
        "module:load_failed", lambda event, data: failures.append(dict(data))
    )
    await initialize_session(plan, bench.coordinator)
    [failure] = failures
    assert (failure["module_id"], failure["error_type"]) == ("three", "ZeroDivisionError")
    assert failure["degraded"] is False


async def test_the_error_of_a_required_module_names_it(bench: Bench) -> None:
    plan = {"session": {"orchestrator": bench.module(TOOL), "context": "unknown"}}
    with pytest.raises(RequiredModuleError, match="without orchestrator: Module 'acme' is listed"):
        await initialize_session(plan, bench.coordinator)
