"""A session from its mount plan to its end."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

import amplifier_core
from amplifier_core.loader import ModuleLoader
from amplifier_core.message_models import ChatResponse, TextBlock
from amplifier_core.models import ProviderInfo, SessionStatus, ToolResult
from amplifier_core.module_sources import RequiredModuleError
from amplifier_core.session import AmplifierSession
from amplifier_core.testing import MockContextManager

Mount = Callable[[Any, dict[str, Any]], Any]


class Orchestrator:
    """Returns the given answer, or fails."""

    def __init__(self, answer: Any = "answer") -> None:
        self.answer = answer
        self.given: dict[str, Any] = {}

    async def execute(self, prompt: str, context: Any, **given: Any) -> str:
        self.given = {"prompt": prompt, "context": context, **given}
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Provider:
    def __init__(self, name: str = "p") -> None:
        self.name = name

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id=self.name, display_name=self.name)

    async def list_models(self) -> list[Any]:
        return []

    async def complete(self, request: Any, **kwargs: Any) -> ChatResponse:
        return ChatResponse(content=[TextBlock(text="x")])

    def parse_tool_calls(self, response: Any) -> list[Any]:
        return []


class Tool:
    name = "t"
    description = "d"

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        return ToolResult()


class Loader(ModuleLoader):
    """Loads from a table of mount functions and records the order."""

    def __init__(self, **modules: Mount) -> None:
        super().__init__()
        self.modules = {name.replace("_", "-"): mount for name, mount in modules.items()}
        self.loaded: list[tuple[str, Any, dict[str, Any]]] = []
        self.cleaned = 0

    async def load(
        self, module_id: str, config: Any = None, source_hint: Any = None, *_: Any, **__: Any
    ) -> Any:
        self.loaded.append((module_id, source_hint, config))
        if module_id not in self.modules:
            raise ValueError(f"{module_id} not found")
        mount = self.modules[module_id]

        async def bound(coordinator: Any) -> Any:
            result = mount(coordinator, config)
            return await result if asyncio.iscoroutine(result) else result

        ready = getattr(mount, "ready", None)
        if ready:
            bound.__on_session_ready__ = (module_id, ready)  # type: ignore[attr-defined]
        return bound

    def cleanup(self) -> None:
        self.cleaned += 1


def at(point: str, module: Any, name: str | None = None, then: Any = None) -> Mount:
    """A mount function that mounts `module` and returns `then`."""

    async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
        await coordinator.mount(point, module, name=name)
        return then

    return mount


def plan(**more: Any) -> dict[str, Any]:
    return {
        "session": {"orchestrator": "loop", "context": {"module": "memory", "config": {"c": 1}}},
        "providers": [{"module": "provider-p", "config": {"k": 1}}],
        **more,
    }


def modules(**more: Mount) -> dict[str, Mount]:
    return {
        "loop": at("orchestrator", Orchestrator()),
        "memory": at("context", MockContextManager()),
        "provider_p": at("providers", Provider(), "p"),
        **more,
    }


def session(config: dict[str, Any] | None = None, /, **more: Mount) -> AmplifierSession:
    return AmplifierSession(config or plan(), loader=Loader(**modules(**more)), session_id="s")


def record(target: AmplifierSession, *names: str) -> list[tuple[str, dict[str, Any]]]:
    seen: list[tuple[str, dict[str, Any]]] = []
    for name in names:
        target.coordinator.hooks.register(name, lambda e, d: seen.append((e, dict(d))))
    return seen


# Construction


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "Configuration is required"),
        (None, "Configuration is required"),
        ({"session": {"context": "c"}}, "session.orchestrator"),
        ({"session": {"orchestrator": "o"}}, "session.context"),
        ({"session": {"orchestrator": "", "context": "c"}}, "session.orchestrator"),
        ({"providers": []}, "session.orchestrator"),
    ],
)
def test_a_plan_must_name_orchestrator_and_context(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AmplifierSession(config)


def test_a_plan_must_be_a_mapping() -> None:
    with pytest.raises(TypeError, match="list"):
        AmplifierSession([1])  # type: ignore[arg-type]


def test_facts_of_a_new_session() -> None:
    config = plan()
    new = AmplifierSession(config, parent_id="p", is_resumed=True)
    assert new.config is config
    assert len(new.session_id) == 36
    assert (new.parent_id, new.is_resumed, new.initialized) == ("p", True, False)
    assert new.coordinator.session is new
    assert new.status.session_id == new.session_id
    assert type(new.loader) is ModuleLoader
    assert new.loader is new.coordinator.loader
    assert new.loader.coordinator is new.coordinator


# Initialization


async def test_modules_mount_in_the_order_of_the_contract() -> None:
    target = session(
        plan(
            tools=[{"module": "tool-t", "source": "./t"}, {"no": "module"}],
            hooks=[{"module": "hooks-h"}],
        ),
        tool_t=at("tools", Tool()),
        hooks_h=lambda c, config: None,
    )
    await target.initialize()
    await target.initialize()
    assert target.loader.loaded == [
        ("loop", None, {}),
        ("memory", None, {"c": 1}),
        ("provider-p", None, {"k": 1}),
        ("tool-t", "./t", {}),
        ("hooks-h", None, {}),
    ]
    assert target.initialized
    assert list(target.coordinator.get("tools")) == ["t"]


async def test_the_short_form_reads_source_and_config_from_separate_keys() -> None:
    config = plan(orchestrator={"config": {"o": 1}})
    config["session"] = {
        "orchestrator": "loop",
        "orchestrator_source": "./loop",
        "context": "memory",
    }
    target = session(config)
    await target.initialize()
    assert target.loader.loaded[:2] == [("loop", "./loop", {"o": 1}), ("memory", None, {})]


@pytest.mark.parametrize(
    ("kind", "text"), [("loop", "orchestrator"), ("memory", "context manager")]
)
async def test_a_session_requires_orchestrator_and_context(kind: str, text: str) -> None:
    def broken(coordinator: Any, config: Any) -> None:
        raise KeyError("why")

    target = session(**{kind: broken})
    with pytest.raises(
        RequiredModuleError, match=f"Cannot initialize without {text}: 'why'"
    ) as caught:
        await target.initialize()
    assert isinstance(caught.value, RuntimeError)
    assert text.startswith(caught.value.kind)
    assert isinstance(caught.value.__cause__, KeyError)
    assert not target.initialized


async def test_mount_may_return_an_instance_or_a_cleanup() -> None:
    ran: list[str] = []
    tool = Tool()
    target = session(
        plan(tools=[{"module": name} for name in ("tool-a", "tool-b", "tool-c", "tool-d")]),
        loop=lambda c, config: Orchestrator("auto"),
        tool_a=lambda c, config: tool,
        tool_b=at("tools", Tool(), "b", then=lambda: ran.append("b")),
        tool_c=at("tools", same := Tool(), "c", then=same),
        tool_d=at("tools", Tool(), "d", then=None),
    )
    async with target:
        assert list(target.coordinator.get("tools")) == ["t", "b", "c", "d"]
        assert target.coordinator.get("tools", "t") is tool
        assert await target.execute("x") == "auto"
    assert ran == ["b"]


async def test_a_failing_module_is_reported_and_the_session_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(coordinator: Any, config: Any) -> None:
        raise RuntimeError("boom")

    target = session(
        plan(tools=[{"module": "tool-x"}], hooks=[{"module": "hooks-missing"}]), tool_x=broken
    )
    seen = record(target, "module:load_failed")
    with caplog.at_level(logging.WARNING):
        await target.initialize()
    reported = [
        (
            data["module_type"],
            data["module_id"],
            data["error"],
            data["reason_code"],
            data["degraded"],
        )
        for _, data in seen
    ]
    assert reported == [
        ("tool", "tool-x", "boom", "unknown", False),
        ("hook", "hooks-missing", "hooks-missing not found", "unknown", False),
    ]
    assert seen[0][1]["error_type"] == "RuntimeError"
    assert "tool-x" in caplog.text
    assert await target.execute("x") == "answer"


async def test_on_session_ready_runs_after_everything_is_mounted() -> None:
    ran: list[Any] = []

    async def ready(coordinator: Any) -> None:
        ran.append(list(coordinator.get("tools")))

    async def broken(coordinator: Any) -> None:
        raise RuntimeError("boom")

    first = at("providers", Provider(), "p")
    first.ready = ready  # type: ignore[attr-defined]
    last = at("tools", Tool(), "t")
    last.ready = broken  # type: ignore[attr-defined]
    target = session(plan(tools=[{"module": "tool-t"}]), provider_p=first, tool_t=last)
    seen = record(target, "module:on_session_ready_failed")
    await target.initialize()
    assert ran == [["t"]]
    assert (seen[0][1]["module_id"], seen[0][1]["error"]) == ("tool-t", "boom")


@pytest.mark.parametrize(("error", "ends"), [(SystemExit(0), False), (GeneratorExit(), True)])
async def test_no_module_that_is_ready_ends_the_program(error: BaseException, ends: bool) -> None:
    async def leaves(coordinator: Any) -> None:
        raise error

    tool = at("tools", Tool(), "t")
    tool.ready = leaves  # type: ignore[attr-defined]
    target = session(plan(tools=[{"module": "tool-t"}]), tool_t=tool)
    with pytest.raises(GeneratorExit) if ends else contextlib.nullcontext():
        await target.initialize()


async def test_concurrent_initializations_mount_the_plan_once() -> None:
    mounted: list[str] = []
    entered = asyncio.Event()

    async def slow(coordinator: Any, config: Any) -> None:
        mounted.append("p")
        entered.set()
        await asyncio.sleep(0)
        await coordinator.mount("providers", Provider())

    target = session(provider_p=slow)
    answers = await asyncio.gather(
        target.initialize(), target.execute("a"), target.execute("b"), target.initialize()
    )
    assert mounted == ["p"]
    assert answers == [None, "answer", "answer", None]


async def test_a_module_may_call_initialize_while_it_is_mounted() -> None:
    async def mount(coordinator: Any, config: Any) -> None:
        await coordinator.mount("providers", Provider())
        await coordinator.session.initialize()
        assert not coordinator.session.initialized

    target = session(provider_p=mount)
    async with asyncio.timeout(10):
        await target.initialize()
    assert target.initialized


async def test_a_failed_or_cancelled_initialization_can_be_repeated() -> None:
    trouble: list[BaseException] = [RuntimeError("not yet"), asyncio.CancelledError()]

    async def mount(coordinator: Any, config: Any) -> None:
        if trouble:
            raise trouble.pop(0)
        await coordinator.mount("context", AsyncMock())

    target = session(memory=mount)
    with pytest.raises(RuntimeError, match="Cannot initialize without context manager: not yet"):
        await target.initialize()
    with pytest.raises(asyncio.CancelledError):
        await target.initialize()
    await target.initialize()
    assert target.initialized


async def test_after_its_cleanup_a_session_may_be_initialized_again() -> None:
    target = session()
    await target.execute("a")
    await target.cleanup()
    assert await target.execute("b") == "answer"
    assert [name for name, _, _ in target.loader.loaded] == ["loop", "memory", "provider-p"] * 2


@pytest.mark.parametrize("kind", ["orchestrator", "context"])
async def test_an_entry_without_a_module_is_an_error(kind: str) -> None:
    config = plan()
    config["session"][kind] = {"source": "./x"}
    with pytest.raises(RuntimeError, match=f"session.{kind} of the mount plan has no 'module'"):
        await AmplifierSession(config, loader=Loader(**modules())).initialize()


async def test_an_entry_that_is_not_a_mapping_is_an_error() -> None:
    with pytest.raises(
        ValueError,
        match=r"tools\[1\] of the mount plan must be a mapping with 'module' \(got 'tool-t'\)",
    ):
        await session(plan(tools=[{"no": "module"}, "tool-t"])).initialize()


async def test_loaders_are_called_with_the_published_keywords() -> None:
    asked: list[Any] = []

    class Recording(Loader):
        async def load(self, *args: Any, **more: Any) -> Any:
            asked.append((args, more))
            return await super().load(*args, **more)

    config = plan(tools=[{"module": "tool-t", "source": "./t", "config": None}])
    target = AmplifierSession(config, loader=Recording(**modules(tool_t=at("tools", Tool()))))
    await target.initialize()
    assert asked[-1] == (("tool-t", {}), {"source_hint": "./t", "coordinator": target.coordinator})


# Providers


async def test_a_provider_that_mounts_nothing_is_reported_with_its_logged_reason() -> None:
    def no_key(coordinator: Any, config: Any) -> None:
        logging.getLogger("some.provider").warning("No API key - provider not mounted")

    target = session(provider_p=no_key)
    seen = record(target, "module:load_failed")
    await target.initialize()
    ((_, data),) = seen
    assert data["error"] == "No API key - provider not mounted"
    assert data["degraded"] is True
    with pytest.raises(RuntimeError, match="No providers mounted: provider-p: No API key"):
        await target.execute("x")


async def test_a_failed_provider_is_unmounted() -> None:
    earlier = Provider("earlier")

    async def half(coordinator: Any, config: Any) -> None:
        await coordinator.mount("providers", Provider("half"), name="p")
        raise RuntimeError("boom")

    target = session(
        plan(providers=[{"module": "provider-p"}, {"module": "provider-q"}]),
        provider_p=at("providers", earlier, "p"),
        provider_q=half,
    )
    await target.initialize()
    assert target.coordinator.get("providers") == {"p": earlier}


async def test_instances_of_one_provider_have_separate_names() -> None:
    def make(coordinator: Any, config: dict[str, Any]) -> Any:
        return at("providers", Provider(config["n"]), "p")(coordinator, config)

    entries = [
        {"module": "provider-p", "config": {"n": "default"}},
        {"module": "provider-p", "instance_id": "second", "config": {"n": "2"}},
        {"module": "provider-p", "instance_id": "third", "config": {"n": "3"}},
    ]
    target = session(plan(providers=entries), provider_p=make)
    await target.initialize()
    names = {key: provider.name for key, provider in target.coordinator.get("providers").items()}
    assert names == {"p": "default", "second": "2", "third": "3"}


@pytest.mark.parametrize("instance_id", [None, "same"])
async def test_provider_entries_with_the_same_instance_id_are_an_error(instance_id: Any) -> None:
    entry = {"module": "provider-p", "instance_id": instance_id}
    target = session(plan(providers=[entry, entry]))
    with pytest.raises(ValueError, match="more than once"):
        await target.initialize()
    assert [name for name, _, _ in target.loader.loaded] == ["loop", "memory"]


async def test_host_callbacks_observe_providers_being_loaded() -> None:
    watched: list[Any] = []

    async def before(coordinator: Any, entry: dict[str, Any]) -> None:
        watched.append(("before", entry["module"], entry.get("instance_id")))
        entry["config"]["k"] = "changed"

    def after(coordinator: Any, entry: dict[str, Any], error: Exception) -> None:
        watched.append(("after", entry["module"], str(error)))

    target = session(
        plan(
            providers=[
                {"module": "provider-p", "config": {"k": 1}, "instance_id": "i"},
                {"module": "provider-missing"},
            ]
        )
    )
    target.coordinator.register_capability("provider.before_load", before)
    target.coordinator.register_capability("provider.load_failure", after)
    await target.initialize()
    assert watched == [
        ("before", "provider-p", "i"),
        ("before", "provider-missing", None),
        ("after", "provider-missing", "provider-missing not found"),
    ]
    assert target.loader.loaded[2] == ("provider-p", None, {"k": 1})


async def test_a_second_instance_does_not_change_the_order_of_providers() -> None:
    def make(coordinator: Any, config: dict[str, Any]) -> Any:
        return at("providers", Provider(config["n"]), "p")(coordinator, config)

    entries = [
        {"module": "provider-p", "config": {"n": "first"}},
        {"module": "provider-q"},
        {"module": "provider-p", "instance_id": "again", "config": {"n": "again"}},
        {"module": "provider-p", "instance_id": "p2", "config": {"n": "p2"}},
    ]
    target = session(
        plan(providers=entries), provider_p=make, provider_q=at("providers", Provider("q"), "q")
    )
    await target.initialize()
    providers = target.coordinator.get("providers")
    assert list(providers) == ["p", "q", "again", "p2"]
    assert providers["p"].name == "first"


async def test_a_provider_mounted_under_another_name_also_gets_its_instance_id() -> None:
    entries = [{"module": "provider-p", "instance_id": "mine"}]
    target = session(plan(providers=entries), provider_p=at("providers", Provider(), "other"))
    await target.initialize()
    assert list(target.coordinator.get("providers")) == ["mine"]


async def test_only_the_providers_own_warnings_become_its_reason() -> None:
    async def silent(coordinator: Any, config: Any) -> None:
        await asyncio.sleep(0)

    async def noisy() -> None:
        logging.getLogger("another.module").warning("unrelated")

    target = session(provider_p=silent)
    await asyncio.gather(target.initialize(), noisy())
    with pytest.raises(RuntimeError, match="provider-p: its mount function mounted nothing"):
        await target.execute("x")


async def test_a_failed_instance_is_reported_by_its_id() -> None:
    target = session(
        plan(providers=[{"module": "provider-p", "instance_id": "mine"}]),
        provider_p=lambda c, config: None,
    )
    failures: list[Any] = []
    target.coordinator.hooks.register("module:load_failed", lambda e, d: failures.append(dict(d)))
    await target.initialize()
    assert (failures[0]["module_id"], failures[0]["instance_id"]) == ("provider-p", "mine")


async def test_a_failure_callback_may_stop_the_initialization() -> None:
    def stop(coordinator: Any, entry: dict[str, Any], error: Exception) -> None:
        raise LookupError(f"{entry['module']}: {error}")

    target = session(provider_p=lambda c, config: None)
    target.coordinator.register_capability("provider.load_failure", stop)
    with pytest.raises(LookupError, match="provider-p: its mount function mounted nothing"):
        await target.initialize()


# Execution


async def test_the_orchestrator_receives_all_arguments_by_keyword() -> None:
    loop = Orchestrator()
    target = session(loop=at("session", loop, "orchestrator"))
    assert await target.execute("hello") == "answer"
    coordinator = target.coordinator
    assert loop.given == {
        "prompt": "hello",
        "context": coordinator.get("context"),
        "providers": coordinator.get("providers"),
        "tools": coordinator.get("tools"),
        "hooks": coordinator.hooks,
        "coordinator": coordinator,
    }
    assert loop.given["providers"] is coordinator.get("providers")


async def test_an_orchestrator_of_exactly_the_contracts_arguments_runs() -> None:
    class Exact:
        async def execute(
            self, prompt: str, context: Any, providers: Any, tools: Any, hooks: Any
        ) -> str:
            return prompt

    assert await session(loop=at("orchestrator", Exact())).execute("hello") == "hello"


@pytest.mark.parametrize(("resumed", "event"), [(False, "session:start"), (True, "session:resume")])
async def test_a_session_starts_or_resumes_once(resumed: bool, event: str) -> None:
    config = plan()
    config["session"]["metadata"] = {"agent": "a"}
    target = AmplifierSession(
        config, loader=Loader(**modules()), session_id="s", parent_id="p", is_resumed=resumed
    )
    seen = record(target, "session:start", "session:resume", "session:fork")
    await target.execute("a")
    await target.execute("b")
    assert [name for name, _ in seen] == ["session:fork", event]
    assert seen[0][1]["parent"] == "p"
    for _, data in seen:
        assert (data["session_id"], data["parent_id"]) == ("s", "p")
        assert data["metadata"] == {"agent": "a"}
        assert data["config"] == config
        assert data["config"] is not config


async def test_the_raw_plan_is_emitted_without_secrets() -> None:
    config = plan()
    config["session"]["raw"] = True
    config["providers"][0]["config"] = {"api_key": "sk-1"}
    target = session(config)
    seen = record(target, "session:start", "session:config")
    await target.execute("x")
    assert [event for event, _ in seen] == ["session:start", "session:config"]
    for _, data in seen:
        assert data["raw"]["providers"][0]["config"] == {"api_key": "[REDACTED]"}
    assert config["providers"][0]["config"] == {"api_key": "sk-1"}


async def test_events_of_a_session_carry_its_plan_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLAIN_VARIABLE", "hunter2-hunter2")
    config = plan()
    config["providers"][0]["config"] = {"my_token": "abc", "header": "Bearer hunter2-hunter2"}
    target = session(config)
    target.coordinator.register_capability("secrets.variables", ["PLAIN_VARIABLE", "NOT_SET"])
    seen = record(target, "session:start")
    await target.execute("x")
    shown = seen[0][1]["config"]["providers"][0]["config"]
    assert shown == {"my_token": "[REDACTED]", "header": "Bearer [REDACTED]"}


async def test_a_plan_that_is_not_a_mapping_is_left_out_of_events() -> None:
    class Plan:
        """Supports `get` like a mapping, but cannot be iterated."""

        def get(self, key: str, default: Any = None) -> Any:
            return plan().get(key, default)

        def __getitem__(self, key: str) -> Any:
            return plan()[key]

    target = session(Plan())  # type: ignore[arg-type]
    seen = record(target, "session:start")
    await target.execute("x")
    assert seen[0][1]["config"] is None


async def test_session_end_carries_statistics(caplog: pytest.LogCaptureFixture) -> None:
    target = session()
    contribute = target.coordinator.register_contributor
    contribute("session.stats", "loop", lambda: {"tool_calls": 3, "turns": "the kernel's win"})
    contribute("session.stats", "other", lambda: {"tokens": 9})
    contribute("session.stats", "broken", lambda: 7)
    seen = record(target, "session:end")
    await target.execute("a")
    await target.execute("b")
    await target.cleanup()
    stats = seen[0][1]["stats"]
    assert stats.pop("duration_seconds") >= 0
    assert stats == {"tool_calls": 3, "tokens": 9, "turns": 2}
    assert "session.stats" in caplog.text


async def test_failing_handlers_and_cleanups_are_attributed_to_their_module(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def ready(coordinator: Any) -> None:
        coordinator.hooks.register("session:start", lambda e, d: 1 / 0)

    def mount(coordinator: Any, config: Any) -> Any:
        def close() -> None:
            raise OSError("disk")

        coordinator.hooks.register("session:start", close)
        return close

    mount.ready = ready  # type: ignore[attr-defined]
    target = session(plan(hooks=[{"module": "hooks-h"}]), hooks_h=mount)
    await target.execute("x")
    await target.cleanup()
    handler, late, cleanup = [record.getMessage() for record in caplog.records]
    assert handler.startswith("Handler 'hooks-h.close' of hook 'hooks-h' failed on session:start: ")
    assert late.startswith("Handler 'hooks-h.<lambda>' of module 'hooks-h' failed on session:start")
    assert cleanup.startswith("Cleanup 'hooks-h.close' of hook 'hooks-h' failed: OSError: disk (")


async def test_exceptions_of_the_orchestrator_propagate_unchanged() -> None:
    error = LookupError("boom")
    target = session(loop=at("orchestrator", Orchestrator(error)))
    with pytest.raises(LookupError) as caught:
        await target.execute("x")
    assert caught.value is error
    assert target.status.status == "failed"
    assert target.status.last_error == {"message": "boom", "type": "LookupError"}


@pytest.mark.parametrize("missing", ["orchestrator", "context"])
async def test_a_session_cannot_run_without(missing: str) -> None:
    target = session()
    await target.initialize()
    await target.coordinator.unmount(missing)
    with pytest.raises(RuntimeError, match=f"No {missing}"):
        await target.execute("x")


async def test_a_session_cannot_run_without_any_provider() -> None:
    with pytest.raises(RuntimeError, match="No providers mounted: the mount plan names none"):
        await session(plan(providers=None)).execute("x")


async def test_a_cancelled_turn_is_reported() -> None:
    target = session()
    seen = record(target, "cancel:completed")
    await target.initialize()
    await target.coordinator.request_cancel(immediate=True)
    await target.execute("x")
    assert seen[0][1]["was_immediate"] is True
    assert target.status.status == "cancelled"


async def test_a_turn_that_fails_while_cancelled_is_reported_with_its_error() -> None:
    target = session(loop=at("orchestrator", Orchestrator(RuntimeError("boom"))))
    seen = record(target, "cancel:completed")
    await target.initialize()
    await target.coordinator.request_cancel()
    with pytest.raises(RuntimeError):
        await target.execute("x")
    assert (seen[0][1]["was_immediate"], seen[0][1]["error"]) == (False, "boom")
    assert target.status.status == "cancelled"


async def test_cancelling_the_task_propagates_as_cancellation() -> None:
    target = session(loop=at("orchestrator", Orchestrator(asyncio.CancelledError())))
    with pytest.raises(asyncio.CancelledError):
        await target.execute("x")
    assert target.status.status == "cancelled"


@pytest.mark.parametrize(("repeated", "end"), [(False, "failed"), (True, "completed")])
async def test_the_status_is_that_of_the_last_turn(repeated: bool, end: str) -> None:
    loop = Orchestrator(RuntimeError("boom"))
    target = session(loop=at("orchestrator", loop))
    with pytest.raises(RuntimeError, match="boom"):
        await target.execute("a")
    assert target.status.status == "failed"
    if repeated:
        loop.answer = "fine"
        await target.execute("b")
    ends = record(target, "session:end")
    await target.cleanup()
    assert [data["status"] for _, data in ends] == [end]


async def test_a_compiled_orchestrator_without_signature_receives_all_arguments() -> None:
    class Hidden:
        __signature__ = "none"

        async def __call__(self, **given: Any) -> str:
            return ",".join(sorted(given))

    loop = Orchestrator()
    loop.execute = Hidden()  # type: ignore[method-assign]
    target = session(loop=at("orchestrator", loop))
    assert await target.execute("x") == "context,coordinator,hooks,prompt,providers,tools"


async def test_a_failed_entry_into_a_session_cleans_up_what_was_mounted() -> None:
    ran: list[str] = []
    target = session(
        loop=at("orchestrator", Orchestrator(), then=lambda: ran.append("loop")),
        memory=lambda c, config: 1 / 0,
    )
    with pytest.raises(RuntimeError, match="division by zero"):
        async with target:
            pass
    assert ran == ["loop"]
    assert target.loader.cleaned == 1


async def test_cancelling_the_end_of_a_session_still_runs_every_cleanup() -> None:
    ran: list[str] = []
    entered = asyncio.Event()

    async def slow(event: str, data: dict[str, Any]) -> None:
        entered.set()
        await asyncio.sleep(60)

    target = session(provider_p=at("providers", Provider(), "p", then=lambda: ran.append("p")))
    target.coordinator.hooks.register("session:end", slow)
    await target.initialize()
    ending = asyncio.create_task(target.cleanup())
    await entered.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert ran == ["p"]
    assert target.loader.cleaned == 1


async def test_the_resolver_is_mounted_by_the_host_before_the_session_is_initialized(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    class Resolver:
        async def async_resolve(
            self, module_id: str, source_hint: Any = None, profile_hint: Any = None
        ) -> Any:
            asked.append(module_id)
            raise amplifier_core.loader.NotInstalledError(module_id)

        def resolve(self, module_id: str) -> Any: ...

    config = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [{"module": "provider-mock"}],
    }
    target = AmplifierSession(config)
    await target.coordinator.mount("module-source-resolver", Resolver())
    async with target:
        assert asked == ["loop-basic", "context-simple", "provider-mock"]
        assert isinstance(target.loader, ModuleLoader)
        assert isinstance(await target.execute("hello"), str)


# Cleanup


async def test_session_end_is_emitted_once_and_before_cleanups() -> None:
    order: list[str] = []
    target = session(
        plan(tools=[{"module": "tool-t"}]),
        provider_p=at("providers", Provider(), "p", then=lambda: order.append("provider")),
        tool_t=at("tools", Tool(), "t", then=lambda: order.append("tool")),
    )
    seen = record(target, "session:end")
    target.coordinator.hooks.register("session:end", lambda e, d: order.append("end"))
    await target.execute("x")
    await target.cleanup()
    await target.cleanup()
    assert order == ["end", "tool", "provider", "tool", "provider"]
    assert (seen[0][1]["session_id"], seen[0][1]["status"]) == ("s", "completed")
    assert target.loader.cleaned == 2
    assert not target.initialized


async def test_the_loader_is_cleaned_up_after_an_interrupt_during_cleanup() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    target = session(provider_p=at("providers", Provider(), "p", then=interrupt))
    await target.initialize()
    with pytest.raises(KeyboardInterrupt):
        await target.cleanup()
    assert target.loader.cleaned == 1


def test_all_arguments_can_be_positional() -> None:
    loader, approval, display = ModuleLoader(), object(), object()
    made = AmplifierSession(plan(), loader, "s", "p", approval, display, True)
    assert (made.session_id, made.parent_id, made.is_resumed) == ("s", "p", True)
    assert made.loader is loader is made.coordinator.loader
    assert made.coordinator.approval_system is approval
    assert made.coordinator.display_system is display
    assert isinstance(made.status, SessionStatus)


def test_the_loader_can_be_assigned_on_the_session_and_on_its_coordinator() -> None:
    made, first, second = AmplifierSession(plan()), ModuleLoader(), ModuleLoader()
    made.loader = first
    assert made.coordinator.loader is first
    made.coordinator.loader = second
    assert made.loader is second


def test_a_session_section_that_is_not_a_mapping_is_an_error() -> None:
    with pytest.raises(TypeError, match="session in the mount plan must be a mapping, not 'x'"):
        AmplifierSession({"session": "x"})


def test_hosts_may_patch_the_parts_of_a_session() -> None:
    with patch("amplifier_core.AmplifierSession") as fake:
        assert amplifier_core.AmplifierSession is fake
    assert amplifier_core.AmplifierSession is AmplifierSession


async def test_hosts_may_patch_the_loader_and_the_initialization() -> None:
    with (
        patch("amplifier_core.session.ModuleLoader") as loader,
        patch("amplifier_core.session.initialize_session", AsyncMock()) as initialize,
    ):
        made = AmplifierSession(plan())
        await made.initialize()
    assert made.loader is loader.return_value
    loader.assert_called_once_with(coordinator=made.coordinator)
    initialize.assert_awaited_once_with(made.config, made.coordinator)
    assert made.initialized
