"""`session.spawn` and `session.resume`: what a sub-session inherits, shares, saves and returns."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_app.base.errors import ConfigError, SessionError
from amplifier_app.runtime.approvals import Approvals
from amplifier_app.runtime.capabilities import MAX_DEPTH
from amplifier_app.runtime.observers.observer import Renderer, SubSessionFacts
from amplifier_app.runtime.session import OpenSession, open_session
from amplifier_app.runtime.spawning import SubAgentFailed, UnknownSubSession
from amplifier_app.runtime.turns.turn import SubSession
from amplifier_app.sessions.recording_context import INTERRUPTED
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sources.loading import load
from tests.support.plans import mock_plan, module_folder


def answering(*replies: Any) -> dict[str, Any]:
    """An agent whose model gives these answers."""
    provider = {"module": "provider-mock", "config": {"replies": list(replies)}}
    return {"instruction": "You work.", "providers": [provider]}


class Shown(Renderer):
    """Records what is reported about sub-sessions."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, Any]] = []
        self.notices: list[str] = []

    def sub_session_started(self, facts: SubSessionFacts) -> None:
        self.events.append(("started", facts))

    def sub_session_doing(self, session_id: str, what: str) -> None:
        self.events.append(("doing", what))

    def sub_session_ended(self, ended: SubSession) -> None:
        self.events.append(("ended", ended))

    def notice(self, message: str, level: str, source: str) -> None:
        self.notices.append(message)


@asynccontextmanager
async def parent(
    folder: Path, agents: dict[str, Any], *, save: bool = True, **more: Any
) -> AsyncGenerator[OpenSession]:
    options = {key: more.pop(key) for key in ("renderer", "approval_system") if key in more}
    plan = load(plan=mock_plan(folder, ["led"], agents=agents, **more))
    async with open_session(plan, session_id="s1", save=save, **options) as session:
        await session.run("begin")
        yield session


def capability(session: OpenSession, name: str) -> Any:
    return session.session.coordinator.get_capability(name)


async def spawn(session: OpenSession, agent: str = "it", task: str = "work", **more: Any) -> Any:
    return await capability(session, "session.spawn")(agent_name=agent, instruction=task, **more)


async def resume(session: OpenSession, session_id: str, task: str) -> Any:
    return await capability(session, "session.resume")(sub_session_id=session_id, instruction=task)


def roles(session_id: str) -> list[str]:
    return [message["role"] for message in SessionStore().read(session_id)[1]]


async def test_a_sub_session_answers_and_is_saved_with_its_parent_id(tmp_path: Path) -> None:
    shown = Shown()
    async with parent(tmp_path, {"it": answering("done")}, renderer=shown) as session:
        result = await spawn(session, sub_session_id="s1-sub_it")
        assert (result["output"], result["session_id"]) == ("done", "s1-sub_it")
        assert (result["status"], result["turn_count"], result["agent"]) == ("success", 1, "it")
        assert result["usage"]["total_tokens"] > 0
        assert roles("s1") == ["user", "assistant"]
    metadata, messages = SessionStore().read("s1-sub_it")
    assert [message["content"] for message in messages[:2]] == ["You work.", "work"]
    noted = {key: metadata[key] for key in ("parent", "agent", "depth", "title", "project")}
    assert noted == {
        "parent": "s1",
        "agent": "it",
        "depth": 1,
        "title": "work",
        "project": os.getcwd(),
    }
    started, ended = shown.events[0][1], shown.events[-1][1]
    assert (started.session_id, started.parent_id, started.instruction) == (
        "s1-sub_it",
        "s1",
        "work",
    )
    assert (ended.status, ended.steps, ended.agent) == ("success", 1, "it")


async def test_its_usage_counts_in_the_turn_of_its_parent(tmp_path: Path) -> None:
    spawner = module_folder(tmp_path, SPAWNER, "amplifier_module_spawner")
    calls = [{"name": "delegate", "input": {"agent": name}} for name in ("one", "two")]
    plan = load(
        plan=mock_plan(
            tmp_path,
            [{"tool_calls": calls}, "all done", "nothing"],
            tools=[{"module": "spawner", "source": str(spawner)}],
            agents={"one": answering("first"), "two": answering("second")},
        )
    )
    async with open_session(plan, session_id="s1") as session:
        turn = await session.run("go")
        assert (turn.response, turn.steps) == ("all done", 2)
        assert {(sub.agent, sub.parent_id, sub.steps) for sub in turn.sub_sessions} == {
            ("one", "s1", 1),
            ("two", "s1", 1),
        }
        own = sum(read_usage(session.recorder.own_usage.tokens))
        below = sum(sum(read_usage(sub.usage)) for sub in turn.sub_sessions)
        assert sum(read_usage(turn.usage)) == own + below
        assert session.usage.calls == 4
        assert (await session.run("and now?")).sub_sessions == ()
    assert read_usage(SessionStore().find("s1").metadata["usage"])[0] >= read_usage(turn.usage)[0]


def read_usage(tokens: dict[str, int]) -> list[int]:
    return [tokens["input_tokens"], tokens["output_tokens"]]


SPAWNER = """
__amplifier_module_type__ = "tool"


class Delegate:
    name = "delegate"
    description = "spawns"
    input_schema = {"type": "object"}

    def __init__(self, coordinator):
        self.coordinator = coordinator

    async def execute(self, input):
        from amplifier_core.models import ToolResult

        spawn = self.coordinator.get_capability("session.spawn")
        result = await spawn(agent_name=input["agent"], instruction="work")
        return ToolResult(output=result["output"])


async def mount(coordinator, config=None):
    await coordinator.mount("tools", Delegate(coordinator), name="delegate")
"""


async def test_it_resumes_with_the_same_conversation_and_the_same_restrictions(
    tmp_path: Path,
) -> None:
    seen = module_folder(tmp_path, SEEN, "amplifier_module_offered")
    hook = {"module": "offered", "source": str(seen)}
    agents = {"it": {**answering("one"), "hooks": [hook]}}
    async with parent(tmp_path, agents, tools=["tool-todo", "tool-search"]) as session:
        narrow = {"exclude_tools": ["tool-search"]}
        first = await spawn(session, tool_inheritance=narrow)
        again = await resume(session, first["session_id"], "more")
        assert again["session_id"] == first["session_id"]
    messages = SessionStore().read(first["session_id"])[1]
    contents = [m["content"] for m in messages if m["role"] in ("system", "user")]
    assert contents == ["You work.", "work", "more"]
    assert __import__("amplifier_module_offered").TOOLS == [["todo"], ["todo"]]
    plan = load(plan=SessionStore().root / first["session_id"] / "plan.yaml")
    assert [entry["module"] for entry in plan.mount_plan()["tools"]] == ["tool-todo"]


async def test_tasks_that_a_crash_interrupted_are_answered_from_their_sessions(
    tmp_path: Path,
) -> None:
    agents = {"it": answering("done"), "slow": answering({"text": "slow", "delay": 60})}
    plan = load(plan=mock_plan(tmp_path, ["led", "led"], agents=agents))
    async with open_session(plan, session_id="s1") as session:
        await session.run("begin")
        finished = await spawn(session, task="Do this.")
        task = asyncio.create_task(spawn(session, "slow", task="First, do that."))
        while not session.active:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (unfinished,) = (one.id for one in session.active)
        while len(roles(unfinished)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        inputs = [
            {"agent": "it", "instruction": "Do this."},
            # Some tools add to the instruction.
            {"agent": "slow", "instruction": "do that. "},
            {"agent": "it", "instruction": "Do this."},  # not begun
            {"session_id": "s1-earlier", "instruction": "Go on."},
            {"command": "do that"},
        ]
        calls = [{"id": f"c{n}", "tool": "t", "arguments": one} for n, one in enumerate(inputs)]
        await session.context.add_message({"role": "assistant", "content": "", "tool_calls": calls})
    async with open_session(plan, resume=SessionStore().find("s1")) as session:
        messages = await session.context.get_messages()
    done, *others = [one["content"] for one in messages if one["role"] == "tool"]
    assert json.loads(done) == {"response": "done", "session_id": finished["session_id"]}
    interrupted = "Error: the agent was interrupted before it finished; continue with session_id "
    named = interrupted + unfinished, interrupted + "s1-earlier"
    assert others == [named[0], INTERRUPTED, named[1], INTERRUPTED]


async def test_only_its_own_sub_sessions_can_be_resumed(tmp_path: Path) -> None:
    SessionStore().create("private", project="/p").close()
    SessionStore().create("s2-sub", project="/p", parent="s2", agent="it").close()
    async with parent(tmp_path, {"it": answering("done")}) as session:
        for name in ("private", "s2-sub", "s1", "gone", "../s1", ""):
            with pytest.raises(UnknownSubSession, match="no sub-session") as raised:
                await resume(session, name, "tell me")
            assert isinstance(raised.value, FileNotFoundError)


async def test_sub_sessions_of_an_unsaved_session_are_not_saved_but_can_be_resumed(
    tmp_path: Path,
) -> None:
    seen = module_folder(tmp_path, SEEN, "amplifier_module_seen")
    agent = {**answering("done"), "hooks": [{"module": "seen", "source": str(seen)}]}
    async with parent(tmp_path, {"it": agent}, save=False) as session:
        first = await spawn(session)
        again = await resume(session, first["session_id"], "more")
        assert (again["output"], again["session_id"]) == ("done", first["session_id"])
        messages = __import__("amplifier_module_seen").MESSAGES
        assert [message["content"] for message in messages[-4:]] == [
            "You work.",
            "work",
            "done",
            "more",
        ]
        with pytest.raises(UnknownSubSession, match="no sub-session"):
            await resume(session, "s1-other", "more")
        both = [resume(session, first["session_id"], text) for text in ("one", "two")]
        results = await asyncio.gather(*both, return_exceptions=True)
        assert [isinstance(result, UnknownSubSession) for result in results] == [False, True]
    assert SessionStore().summaries() == []


@pytest.mark.parametrize("save", [True, False])
async def test_its_own_budget_is_resumed_with_the_sub_session(tmp_path: Path, save: bool) -> None:
    agent = {**answering("done"), "session": {"budget": {"max_steps": 1}}}
    async with parent(tmp_path, {"it": agent}, save=save) as session:
        first = await spawn(session)
        again = await resume(session, first["session_id"], "more")
        assert (again["status"], again["reason"]) == ("incomplete", "budget")


SEEN = """
MESSAGES, TOOLS = [], []
__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    async def note(event, data):
        from amplifier_core.models import HookResult

        texts = [
            {**m, "content": m["content"] if isinstance(m["content"], str)
             else "".join(block.get("text", "") for block in m["content"])}
            for m in data["messages"]
        ]
        MESSAGES.extend(texts)
        TOOLS.append(list(data["tools"]))
        return HookResult()

    coordinator.hooks.register("provider:request", note)
"""


async def test_it_shares_keys_and_redaction_and_records_its_parent(
    tmp_path: Path,
) -> None:
    probe = module_folder(tmp_path, PROBE, "amplifier_module_probe")
    agent = {**answering("done"), "hooks": [{"module": "probe", "source": str(probe)}]}
    async with parent(tmp_path, {"it": agent}) as session:
        coordinator = session.session.coordinator

        def redact(event: str, data: dict[str, Any]) -> dict[str, Any]:
            return data

        coordinator.register_capability("redaction.event", redact)
        await spawn(session, self_delegation_depth=3)
        found = __import__("amplifier_module_probe").FOUND
        assert found["redaction.event"] is redact
        assert found["secrets.variables"] is capability(session, "secrets.variables")
        assert (found["session.depth"], found["parent_id"]) == (1, "s1")
        assert found["session.dir"].endswith(found["session_id"])
        assert found["fork"]["parent"] == "s1"
        assert found["fork"]["session_id"] == found["session_id"] != "s1"


PROBE = """
FOUND = {}
NAMES = ("redaction.event", "secrets.variables", "session.depth", "session.dir")
__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    FOUND.update({name: coordinator.get_capability(name) for name in NAMES})
    FOUND.update(parent_id=coordinator.parent_id, session_id=coordinator.session_id)

    async def on_fork(event, data):
        from amplifier_core.models import HookResult

        FOUND["fork"] = dict(data)
        return HookResult()

    coordinator.hooks.register("session:fork", on_fork)
"""


async def test_agents_passed_by_a_caller_are_ignored(tmp_path: Path) -> None:
    evil = module_folder(tmp_path, "raise SystemExit('loaded')", "amplifier_module_evil")
    configs = {
        "it": {"tools": [{"module": "evil", "source": str(evil)}]},
        "other": {"tools": [{"module": "evil", "source": str(evil)}]},
    }
    async with parent(tmp_path, {"it": answering("done")}) as session:
        assert (await spawn(session, agent_configs=configs))["output"] == "done"
        with pytest.raises(ConfigError, match=r"unknown agent 'other'; the plan has: it"):
            await spawn(session, "other", agent_configs=configs)


async def test_an_error_of_its_model_fails_only_the_task(tmp_path: Path) -> None:
    fault = {"error": {"type": "AuthenticationError", "message": "no key"}}
    agents = {"bad": answering(fault), "good": answering("fine")}
    async with parent(tmp_path, agents) as session:
        with pytest.raises(SubAgentFailed, match="no key") as raised:
            await spawn(session, "bad")
        assert raised.value.kind == "AuthenticationError"
        assert (await spawn(session, "good"))["output"] == "fine"
        assert [sub.status for sub in session.recorder.result("").sub_sessions] == [
            "error",
            "success",
        ]
        # A failed sub-session can be resumed.
        assert roles(raised.value.session_id) == ["system", "user"]


async def test_a_module_that_cannot_be_mounted_is_an_error_and_saves_nothing(
    tmp_path: Path,
) -> None:
    agent = {**answering("x"), "tools": [{"module": "tool-todo", "config": {"max": 3}}]}
    async with parent(tmp_path, {"it": agent}) as session:
        with pytest.raises(ConfigError, match="max"):
            await spawn(session)
    assert [one.id for one in SessionStore().summaries()] == ["s1"]


async def test_the_depth_of_delegation_is_limited(tmp_path: Path) -> None:
    SessionStore().create("deep", project="/p", parent="s0", agent="it", depth=MAX_DEPTH).close()
    plan = load(plan=mock_plan(tmp_path, ["x"], agents={"it": answering("done")}))
    async with open_session(plan, resume=SessionStore().find("deep")) as session:
        assert session.session.parent_id == "s0"
        with pytest.raises(ConfigError, match="the maximum depth of 5 sub-sessions is reached"):
            await spawn(session)


NOTIFIED = """
STOPS = []
__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    STOPS.clear()

    async def note(event, data):
        from amplifier_core.models import HookResult

        STOPS.append(dict(data))
        return HookResult()

    coordinator.hooks.register("cancel:requested", note)
"""


async def test_stopping_the_parent_stops_it_and_it_can_be_resumed(tmp_path: Path) -> None:
    """No tool runs in either, so there is nothing to wait for."""
    hook = module_folder(tmp_path, NOTIFIED, "amplifier_module_notified")
    slow = answering({"text": "slow", "delay": 2}, "back")
    agents = {"it": {**slow, "hooks": [{"module": "notified", "source": str(hook)}]}}
    shown = Shown()
    async with parent(tmp_path, agents, renderer=shown) as session:
        task = asyncio.create_task(spawn(session))
        await asked(shown)
        session.stop(immediate=False)
        result = await asyncio.wait_for(task, 20)
        assert result["status"] == "cancelled"
        (stop,) = sys.modules["amplifier_module_notified"].STOPS
        assert (stop["immediate"], stop["session_id"]) == (True, result["session_id"])
        assert session.active == set()
        with pytest.raises(SessionError, match="stopped"):
            await spawn(session)
        session.session.coordinator.cancellation.reset()
        assert (await resume(session, result["session_id"], "again"))["output"] in ("slow", "back")


SLOW_MOUNT = """
import asyncio

MOUNTING = asyncio.Event()
__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    if coordinator.parent_id:
        MOUNTING.set()
        await asyncio.sleep(0.3)
"""


async def test_a_sub_session_stopped_before_its_start_sends_no_request(tmp_path: Path) -> None:
    slow = module_folder(tmp_path, SLOW_MOUNT, "amplifier_module_slow")
    agent = {**answering("done"), "hooks": [{"module": "slow", "source": str(slow)}]}
    async with parent(tmp_path, {"it": agent}) as session:
        task = asyncio.create_task(spawn(session))
        while "amplifier_module_slow" not in sys.modules:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await sys.modules["amplifier_module_slow"].MOUNTING.wait()
        session.stop(immediate=False)
        result = await asyncio.wait_for(task, 20)
        assert (result["status"], result["turn_count"]) == ("cancelled", 0)


async def asked(shown: Shown) -> None:
    """Wait until the model of a sub-agent has been called."""
    for _ in range(3000):
        if ("doing", "") in shown.events:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(shown.events)


async def test_approval_questions_name_the_agent_and_allow_always_is_shared(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    async def ask(prompt: str, options: list[str], timeout: float | None) -> str | None:
        asked.append(prompt)
        return "Allow always" if len(asked) == 1 else "Deny"

    approvals = Approvals("ask", ask)
    options = ["Allow once", "Allow always", "Deny"]
    await approvals.request_approval("run ls?", options, 9, "deny")
    agent = approvals.for_agent("it")
    assert await agent.request_approval("run ls?", options, 9, "deny") == "Allow always"
    assert await agent.for_agent("sub").request_approval("run rm?", options, 9, "deny") == "Deny"
    assert asked == ["run ls?", "it/sub: run rm?"]
    assert approvals.denied == ["run rm?"]


async def test_the_first_available_model_preference_is_used(tmp_path: Path) -> None:
    async with parent(tmp_path, {"it": {"instruction": "x"}}) as session:
        wishes = [
            {"provider": "unknown", "model": "m"},
            {"provider": "mock", "model": "no-such-*"},
            {"provider": "provider-mock", "model": "mock-m*"},
        ]
        result = await spawn(session, provider_preferences=wishes)
        assert SessionStore().find(result["session_id"]).metadata["model"] == "mock-model"
        chosen = await spawn(session, provider_preferences=[{"provider": "mock", "model": "tiny"}])
        assert SessionStore().find(chosen["session_id"]).metadata["model"] == "tiny"


ROLES = """
class Roles:
    async def resolve(self, role):
        if role != ["fast"]:
            raise KeyError(role)
        return [{"provider": "mock", "model": "tiny"}]


async def mount(coordinator, config=None):
    coordinator.register_capability("model_role_resolver", Roles())

    async def begin(event, data):
        # As the published hooks-routing does.
        agents = coordinator.config["agents"]
        agents["routed"]["provider_preferences"] = [{"provider": "mock", "model": "routed"}]

    coordinator.hooks.register("session:start", begin, name="begin")
"""


async def test_an_agent_has_preferences_and_a_role_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    preferred = {"provider_preferences": [{"provider": "mock", "model": "small"}]}
    agents = {
        "kit:preferred": {**preferred, "model_role": "fast"},
        "routed": {"model_role": "fast"},
        "fast": {"model_role": "fast"},
        "odd": {"model_role": ["odd"]},
        "plain": {"description": "x"},
    }
    source = str(module_folder(tmp_path, ROLES, "amplifier_module_hooks_roles"))
    hooks = [{"module": "hooks-roles", "source": source}]

    def find_model(result: Any) -> str:
        return SessionStore().find(result["session_id"]).metadata["model"]

    async with parent(tmp_path, agents, hooks=hooks) as session:
        models = {agent: find_model(await spawn(session, agent)) for agent in agents}
        assert models == {
            "kit:preferred": "small",
            "routed": "routed",
            "fast": "tiny",
            "odd": "mock-model",
            "plain": "mock-model",
        }
        wanted = [{"provider": "mock", "model": "wanted"}]
        result = await spawn(session, "preferred", provider_preferences=wanted)
        assert find_model(result) == "wanted"
        assert find_model(await resume(session, result["session_id"], "more")) == "small"
    text = "agent odd uses the model of the plan: none can be chosen for odd: KeyError: "
    assert text in caplog.text
    # The plan of its session can be loaded again.
    saved = SessionStore().find(result["session_id"])
    assert (
        not {"model_role", "provider_preferences"} & yaml.safe_load(saved.plan.read_text()).keys()
    )


async def test_it_is_resumed_only_with_the_project_of_its_parent(tmp_path: Path) -> None:
    project = {"folder": str(tmp_path / ".amplifier"), "sources": [str(tmp_path / "x")]}
    plan = load(plan=mock_plan(tmp_path, ["led"], agents={"it": answering("done")}))
    async with open_session(plan, metadata={"trusted_project": project}) as session:
        await session.run("begin")
        result = await spawn(session)
    noted = SessionStore().find(result["session_id"]).metadata["trusted_project"]
    assert noted == project


async def test_it_can_start_with_earlier_messages(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "earlier"}, {"role": "assistant", "content": "yes"}]
    async with parent(tmp_path, {"it": answering("done")}) as session:
        result = await spawn(session, parent_messages=said, unknown_to_us=1)
    assert roles(result["session_id"]) == ["system", "user", "assistant", "user", "assistant"]


async def test_invalid_ids_are_replaced(tmp_path: Path) -> None:
    async with parent(tmp_path, {"it": answering("done")}) as session:
        for wanted in ("../../etc", "x" * 300, "s1", None):
            result = await spawn(session, sub_session_id=wanted)
            assert result["session_id"].startswith("s1-")
            assert SessionStore().get(result["session_id"])
