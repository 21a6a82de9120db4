"""An open session: capabilities, turns, saving, resuming, third-party orchestrators."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import ModuleError, SessionError
from amplifier_app.runtime.observers.observer import Renderer, SessionFacts
from amplifier_app.runtime.session import OpenSession, open_session
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sources.loading import load
from amplifier_core.llm_errors import RateLimitError
from amplifier_support import journal
from tests.support.plans import mock_plan, module_folder


class Notes(Renderer):
    def __init__(self) -> None:
        super().__init__()
        self.facts: SessionFacts | None = None
        self.notices: list[str] = []

    def session_opened(self, facts: SessionFacts) -> None:
        self.facts = facts

    def notice(self, message: str, level: str, source: str) -> None:
        self.notices.append(message)


async def test_modules_find_the_capabilities_of_the_session(tmp_path: Path) -> None:
    plan = load(plan=mock_plan(tmp_path, ["ok"]))
    async with open_session(plan, session_id="s1") as session:
        get = session.session.coordinator.get_capability
        assert get("session.working_dir") == os.getcwd()
        assert Path(get("session.dir")) == Path(os.environ["AMPLIFIER_HOME"]) / "sessions" / "s1"
        assert get("cache.dir").startswith(os.environ["AMPLIFIER_HOME"])
    async with open_session(plan, save=False) as session:
        assert session.session.coordinator.get_capability("session.dir") is None


async def test_turns_share_one_conversation_saved_as_it_grows(tmp_path: Path) -> None:
    context = {"module": "context-simple", "config": {"titles": "model"}}
    setup = {"orchestrator": "loop-streaming", "context": context}
    # The first request for a title is answered without one, and counts.
    replies = ["one", "", "two", "**A** title" + " *a" * 50_000, "three"]
    plan = load(plan=mock_plan(tmp_path, replies, session=setup, instruction="be brief"))
    async with open_session(plan, session_id="s1") as session:
        assert (await session.run("first")).response == "one"
        assert roles(session) == ["system", "user", "assistant"]
        async with asyncio.timeout(5):
            await session.request_title()
        assert SessionStore().read("s1")[0]["title"] == "first"
        assert (await session.run("second")).response == "two"
        await session.request_title()
        assert session.usage.calls == 4
        await session.request_title()
        assert session.usage.calls == 4
    metadata, messages = SessionStore().read("s1")
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert (metadata["prompts"], metadata["model"]) == (2, "mock-model")
    assert metadata["title"].startswith("A title *a")
    assert metadata["usage"]["total_tokens"] == session.usage.tokens["total_tokens"]
    assert metadata["spent"]["steps"] == 4


def roles(session: OpenSession) -> list[str]:
    return [message["role"] for message in SessionStore().read(session.id)[1]]


async def test_a_resumed_session_keeps_its_instruction(tmp_path: Path) -> None:
    plan = load(plan=mock_plan(tmp_path, ["one"], instruction="old"))
    async with open_session(plan, session_id="s1") as session:
        await session.run("first")
    changed = load(plan=mock_plan(tmp_path, ["two"], instruction="new"))
    notes = Notes()
    async with open_session(changed, resume=SessionStore().find("s1"), renderer=notes) as session:
        await session.run("second")
        messages = await session.context.get_messages()
    assert [m["content"] for m in messages if m["role"] in ("system", "user")] == [
        "old",
        "first",
        "second",
    ]
    assert notes.facts is not None
    assert notes.facts.resumed


async def test_an_unused_session_is_deleted(tmp_path: Path) -> None:
    plan = load(plan=mock_plan(tmp_path, ["one"]))
    async with open_session(plan, session_id="s1") as session:
        assert (Path(os.environ["AMPLIFIER_HOME"]) / "sessions" / "s1").is_dir()
        assert not session.is_saved
    assert not SessionStore().get("s1")


async def test_a_failed_turn_keeps_the_prompt_and_the_session_continues(tmp_path: Path) -> None:
    plan = load(plan=mock_plan(tmp_path, [{"error": {"type": "RateLimitError"}}, "fine"]))
    async with open_session(plan, session_id="s1") as session:
        with pytest.raises(RateLimitError):
            await session.run("first")
        assert (session.turn.status, session.turn.steps) == ("error", 1)
        assert (await session.run("again")).response == "fine"
        assert roles(session) == ["user", "user", "assistant"]


async def test_the_session_of_a_row_waits_for_the_disk_only_where_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(
            *(os, name, lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
        )
    monkeypatch.setattr(journal, "_sync_data", os.fdatasync)
    plan = load(plan=mock_plan(tmp_path, ["one"], instruction="be brief"))
    async with open_session(plan, session_id="s1", metadata={"row": "r1"}) as session:
        synced.clear()
        await session.run("first")
        assert SessionStore().read("s1")[0]["title"] == "first"
    names = [Path(path).name for path in synced]
    # The prompt, with the instruction, and the answer, and as files without a name yet the metadata: what was spent,
    # and the turn.
    assert names.count("transcript.jsonl") == 2
    assert len(names) == 4
    assert "s1" not in names


async def test_what_counts_against_a_limit_is_on_disk_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def sync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(journal, "_sync_data", sync)
    session_plan: dict[str, Any] = {"orchestrator": "loop-streaming", "context": "context-simple"}
    session_plan["budget"] = {"max_tokens": 100_000}
    path = mock_plan(tmp_path, ["one"], session=session_plan)
    async with open_session(load(plan=path), session_id="s1") as session:
        synced.clear()
        await session.run("first")
        # Its folder, which has the name of the new metadata, and then the answer.
        assert "s1" in synced
        assert "transcript.jsonl" in synced[synced.index("s1") :]
        assert SessionStore().read("s1")[0]["spent"]["steps"] == 1


async def test_two_processes_cannot_open_one_session(tmp_path: Path) -> None:
    plan = load(plan=mock_plan(tmp_path, ["one"]))
    async with open_session(plan, session_id="s1"):
        with pytest.raises(SessionError):
            async with open_session(plan, resume=SessionStore().find("s1")):
                pass


SEED_ORCHESTRATOR = '''
__amplifier_module_type__ = "orchestrator"


class Basic:
    """As in the Orchestrator Contract: dict requests, no content_block events."""

    async def execute(self, prompt, context, providers, tools, hooks, **kwargs):
        await hooks.emit("prompt:submit", {"prompt": prompt})
        await context.add_message({"role": "user", "content": prompt})
        provider = list(providers.values())[0]
        messages = await context.get_messages_for_request(provider=provider)
        await hooks.emit("provider:request", {"messages": messages})
        response = await provider.complete({"messages": messages})
        await hooks.emit(
            "provider:response", {"response": response, "usage": response.get("usage", {})}
        )
        await context.add_message({"role": "assistant", "content": response["content"]})
        text = response["content"][0]["text"]
        await hooks.emit("prompt:complete", {"response": text})
        await hooks.emit(
            "orchestrator:complete", {"orchestrator": "b", "turn_count": 1, "status": "success"}
        )
        return text


async def mount(coordinator, config=None):
    await coordinator.mount("session", Basic(), name="orchestrator")
'''


async def test_an_orchestrator_written_from_the_contract_runs(tmp_path: Path) -> None:
    folder = module_folder(tmp_path, SEED_ORCHESTRATOR, "amplifier_module_loop_seed")
    loop: dict[str, Any] = {"module": "loop-seed", "source": str(folder)}
    session_section = {"orchestrator": loop, "context": "context-simple"}
    plan = load(plan=mock_plan(tmp_path, ["from the seed"], session=session_section))
    async with open_session(plan, session_id="s1") as session:
        result = await session.run("hi")
    assert (result.response, result.status, result.steps) == ("from the seed", "success", 1)
    assert result.usage["total_tokens"] > 0


async def test_saved_usage_grows_also_with_an_orchestrator_that_does_not_count(
    tmp_path: Path,
) -> None:
    async with open_session(load(plan=mock_plan(tmp_path, ["one"])), session_id="s1") as session:
        await session.run("hi")
    spent = SessionStore().read("s1")[0]["spent"]
    folder = module_folder(tmp_path, SEED_ORCHESTRATOR, "amplifier_module_loop_uncounted")
    section = {
        "orchestrator": {"module": "loop-uncounted", "source": str(folder)},
        "context": "context-simple",
    }
    other = load(plan=mock_plan(tmp_path, ["two"], session=section))
    async with open_session(other, resume=SessionStore().find("s1")) as session:
        await session.run("hi again")
    metadata = SessionStore().read("s1")[0]
    assert metadata["prompts"] == 2
    grown = {**spent, "steps": 2, "unpriced": 2, "tokens": metadata["usage"]["total_tokens"]}
    assert metadata["spent"] == grown
    assert spent["steps"] == 1


async def test_an_orchestrator_that_does_not_load_is_a_module_error(tmp_path: Path) -> None:
    section = {"orchestrator": "loop-that-is-not-there", "context": "context-simple"}
    plan = load(plan=mock_plan(tmp_path, ["x"], session=section))
    with pytest.raises(ModuleError, match="loop-that-is-not-there"):
        async with open_session(plan):
            pass
    assert not list((Path(os.environ["AMPLIFIER_HOME"]) / "sessions").iterdir())


async def test_a_prompt_that_is_stopped_at_once_is_not_executed(tmp_path: Path) -> None:
    plan = load(plan=mock_plan(tmp_path, ["an answer"]))
    async with open_session(plan) as session:
        running = asyncio.create_task(session.run("hi"))
        asyncio.get_running_loop().call_soon(session.stop, True)
        assert (await running).status == "cancelled"
        await asyncio.sleep(0.1)
        assert "user" not in roles(session)
        assert not session.recorder.has_requested


IGNORING = """import asyncio
from pathlib import Path


async def mount(coordinator, config):
    folder = Path(config["folder"])

    async def ignore(*_):
        for _ in range(300):
            if (folder / "stop").exists():
                return
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        (folder / "waited").touch()

    coordinator.hooks.register(config["event"], ignore, name="ignoring")
"""


BLOCKING_CLEANUP = """
import time

__amplifier_module_type__ = "hook"


async def mount(coordinator, config):
    coordinator.hooks.register("session:start", lambda event, data: None)
    return lambda: time.sleep(300)
"""


async def test_a_cleanup_that_blocks_keeps_no_session_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amplifier_app.runtime.session.CLEANUP_SECONDS", 0.2)
    folder = module_folder(tmp_path, BLOCKING_CLEANUP, "amplifier_module_blocking")
    hook: dict[str, Any] = {"module": "blocking", "source": str(folder)}
    plan = load(plan=mock_plan(tmp_path, ["an answer"], hooks=[hook]))
    async with open_session(plan) as session:
        assert (await session.run("hi")).status == "success"


@pytest.mark.parametrize(
    ("event", "status", "notices"),
    [
        ("prompt:submit", "cancelled", []),
        ("session:end", "success", ["modules did not clean up within 0.2 s"]),
    ],
)
async def test_a_hook_that_ignores_its_cancellation_keeps_no_session_from_ending(
    event: str, status: str, notices: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amplifier_app.runtime.session.CLEANUP_SECONDS", 0.2)
    name = f"ignoring-{event.partition(':')[0]}"
    package = f"amplifier_module_{name.replace('-', '_')}"
    folder = module_folder(tmp_path, IGNORING, package)
    config = {"event": event, "folder": str(tmp_path)}
    hook: dict[str, Any] = {"module": name, "source": str(folder), "config": config}
    plan = load(plan=mock_plan(tmp_path, ["an answer"], hooks=[hook]))
    notes = Notes()
    async with open_session(plan, renderer=notes) as session:
        if event == "prompt:submit":
            asyncio.get_running_loop().call_later(0.1, session.stop, True)
        assert (await session.run("hi")).status == status
    assert notes.notices == notices
    assert not (tmp_path / "waited").exists()
    (tmp_path / "stop").touch()
