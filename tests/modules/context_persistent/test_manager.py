"""The conversation in a file: what a session begins with, and what it leaves behind."""

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.interfaces import ContextManager
from amplifier_modules import context_persistent
from amplifier_modules.context_persistent.manager import JournalError, PersistentContextManager
from tests.modules._shared.context.conversations import (
    STRATEGIES,
    Summariser,
    answers,
    asks,
    assistant,
    filler,
    size,
    user,
)

SYSTEM = {"role": "system", "content": "be brief"}
DEVELOPER = {"role": "developer", "content": "use tabs"}


class _Session:
    def __init__(self, session_id: str = "s1", parent_id: str | None = None) -> None:
        self.session_id = session_id
        self.parent_id = parent_id
        self.config: dict[str, Any] = {}


class Opened:
    """A session with the context mounted in a real coordinator."""

    def __init__(self, folder: Path | None, session: _Session | None = None) -> None:
        self.coordinator = ModuleCoordinator(session=session or _Session())  # type: ignore[arg-type]
        if folder is not None:
            self.coordinator.register_capability("session.dir", str(folder))

    async def mounted(self, **config: Any) -> PersistentContextManager:
        self.end = await context_persistent.mount(self.coordinator, config)
        return self.coordinator.get("context")


async def mounted(folder: Path | None, **config: Any) -> tuple[PersistentContextManager, Any]:
    opened = Opened(folder)
    return await opened.mounted(**config), opened.end


def find_file(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "context.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


async def test_a_session_goes_on_with_the_whole_conversation(tmp_path: Path) -> None:
    messages = [SYSTEM, DEVELOPER, user("go"), asks("c"), answers("c"), assistant("done")]
    context, end = await mounted(tmp_path)
    for message in messages:
        await context.add_message(message)
    end()
    again, end = await mounted(tmp_path)
    assert await again.get_messages() == messages
    assert await again.get_messages_for_request() == messages
    assert await again.get_token_count() == await context.get_token_count()
    end()


async def test_what_the_file_holds_counts_not_what_it_is_given(tmp_path: Path, caplog: Any) -> None:
    context, end = await mounted(tmp_path)
    for message in (SYSTEM, user("go"), assistant("done")):
        await context.add_message(message)
    end()
    again, end = await mounted(tmp_path)
    before = (tmp_path / "context.jsonl").read_bytes()
    await again.set_messages([user("go"), assistant("done")])
    assert caplog.records == []
    await again.set_messages([user("go"), user("something else")])
    assert await again.get_messages() == [SYSTEM, user("go"), assistant("done")]
    assert (tmp_path / "context.jsonl").read_bytes() == before
    assert "1 of those given are not among them" in caplog.text
    end()


async def test_a_message_that_cannot_be_saved_is_not_stored(tmp_path: Path) -> None:
    context, end = await mounted(tmp_path)
    await context.add_message(user("a"))
    bad = {"role": "user", "content": {("k",): 1}}
    with pytest.raises(JournalError):
        await context.add_message(bad)
    with pytest.raises(JournalError):
        await context.set_messages([bad])
    with pytest.raises(ValueError, match="role"):
        await context.add_message({"content": "x"})
    with pytest.raises(ValueError, match="role"):
        await context.set_messages([{"content": "x"}])
    assert await context.get_messages() == [user("a")] == find_file(tmp_path)
    end()


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_views_are_never_in_the_file(tmp_path: Path, strategy: str) -> None:
    context, end = await mounted(tmp_path, strategy=strategy, max_tokens=4_000)
    messages = [SYSTEM, *filler(40)]
    for message in messages:
        await context.add_message(message)
        view = await context.get_messages_for_request(provider=Summariser())
    await context.compact()
    assert size(view) <= 3_200
    assert find_file(tmp_path) == messages == await context.get_messages()
    end()


async def test_adding_a_message_writes_that_message_alone(tmp_path: Path) -> None:
    context, end = await mounted(tmp_path)
    sizes: list[int] = []
    for number in range(50):
        await context.add_message(user(f"{number:03}"))
        sizes.append((tmp_path / "context.jsonl").stat().st_size)
    inode = (tmp_path / "context.jsonl").stat().st_ino
    assert len({later - earlier for earlier, later in pairwise(sizes)}) == 1
    await context.clear()
    assert (tmp_path / "context.jsonl").stat().st_ino == inode
    end()


texts = st.text(max_size=20)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), texts),
        st.tuples(st.just("set"), st.lists(texts, max_size=3)),
        st.tuples(st.just("clear"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
        st.tuples(st.just("tear"), st.integers(1, 5)),
    ),
    max_size=12,
)


@example([("set", ["from elsewhere"]), ("add", "more"), ("reopen", None)])
@example([("add", "old"), ("reopen", None), ("clear", None), ("set", ["new"]), ("reopen", None)])
@example([("add", "old"), ("clear", None), ("reopen", None), ("set", ["stale"])])
@given(steps)
async def test_whatever_is_done_the_file_holds_what_the_conversation_does(
    tmp_path_factory: Any, taken: list[tuple[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("session")
    context, end = await mounted(folder)
    expected: list[dict[str, Any]] = []
    loaded = False
    for step, given_texts in taken:
        if step == "add":
            expected.append(user(given_texts))
            await context.add_message(user(given_texts))
        elif step == "set":
            new = [user(text) for text in given_texts]
            expected = expected if loaded else new
            await context.set_messages(new)
        elif step == "clear":
            expected, loaded = [], False
            await context.clear()
        else:
            end()
            path = folder / "context.jsonl"
            if step == "tear" and path.exists():  # a record that was never acknowledged
                torn = b'{"role":"user","content":"x"}\n'[:-given_texts]
                path.write_bytes(path.read_bytes() + torn)
            context, end = await mounted(folder)
            loaded = path.exists() and path.read_bytes().count(b"\n") > 1
            if step == "tear" and given_texts == 1 and path.exists():
                expected.append(user("x"))  # whole but for its line feed
        assert await context.get_messages() == expected
    end()


# --- where -----------------------------------------------------------------------------------------


async def test_a_configured_path_serves_one_session_after_the_other(tmp_path: Path) -> None:
    first, end = await mounted(None, path=str(tmp_path / "deep" / "mine.jsonl"))
    await first.add_message(user("remember me"))
    with pytest.raises(JournalError, match="in use"):
        await mounted(None, path=str(tmp_path / "deep" / "mine.jsonl"))
    end()
    second, end = await mounted(tmp_path, path=str(tmp_path / "deep" / "mine.jsonl"))
    assert await second.get_messages() == [user("remember me")]
    assert not (tmp_path / "context.jsonl").exists()
    end()


async def test_a_path_is_relative_to_where_the_session_works(tmp_path: Path) -> None:
    opened = Opened(None, _Session("a/../b c"))
    opened.coordinator.register_capability("session.working_dir", str(tmp_path))
    context = await opened.mounted(path="{session_id}.jsonl")
    await context.add_message(user("hi"))
    opened.end()
    assert [path.name for path in tmp_path.iterdir()] == ["a_.._b_c.jsonl"]


async def test_a_child_does_not_go_on_with_its_parents_conversation(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared.jsonl")
    parent = Opened(None)
    context = await parent.mounted(path=shared)
    await context.add_message(user("the parent's"))
    (tmp_path / "child").mkdir()
    child = Opened(tmp_path / "child", _Session("s2", parent_id="s1"))
    inner = await child.mounted(path=shared)
    assert await inner.get_messages() == []
    await inner.add_message(user("the child's"))
    child.end()
    parent.end()
    assert find_file(tmp_path / "child") == [user("the child's")]


async def test_without_a_folder_or_a_path_it_works_in_memory(tmp_path: Path) -> None:
    before = set(os.listdir())
    context, end = await mounted(None)
    await context.add_message(user("hi"))
    await context.set_messages([user("other")])
    await context.clear()
    await context.set_messages([user("other")])
    assert await context.get_messages() == [user("other")]
    end()
    assert set(os.listdir()) == before


async def test_a_torn_record_is_reported_on_mount(tmp_path: Path, caplog: Any) -> None:
    context, end = await mounted(tmp_path)
    await context.add_message(user("a"))
    await context.add_message(user("b"))
    end()
    path = tmp_path / "context.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    again, end = await mounted(tmp_path)
    assert await again.get_messages() == [user("a")]
    assert "the last record was incomplete and was dropped" in caplog.text
    end()


# --- mounting --------------------------------------------------------------------------------------


async def test_a_mounted_context_learns_from_usage_until_its_end(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    context = await opened.mounted(max_tokens=10_000)
    assert isinstance(context, ContextManager)
    await context.add_message(user("x" * 4_000))
    for tokens in (1_500, 9_000):
        await context.get_messages_for_request()
        await opened.coordinator.hooks.emit(
            "provider:response", {"usage": {"input_tokens": tokens, "output_tokens": 1}}
        )
        assert await context.get_token_count() == 1_500
        opened.end()
    with pytest.raises(JournalError, match="has ended"):
        await context.add_message(user("late"))


@pytest.mark.parametrize("config", [{"pth": "x"}, {"path": ""}, {"strategy": "magic"}])
async def test_wrong_settings_keep_it_from_mounting(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="context-persistent"):
        await mounted(None, **config)
