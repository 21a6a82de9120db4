"""The chat's commands on saved sessions."""

import gzip
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_app.base.errors import AppError, UsageError
from amplifier_app.chat.conversation import resume_header
from amplifier_app.chat.slash.registry import Reopen, all_commands, run_command
from amplifier_app.runtime.approvals import Approvals
from amplifier_app.runtime.continuation import build_conversation
from amplifier_app.runtime.observers.visibility import Visibility
from amplifier_app.sessions.folder import SavedSession
from amplifier_app.sessions.store import SessionStore
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_support.session_capabilities import MODE
from tests.app.chat.slash import read_text

CALL = {"type": "tool_call", "id": "1", "name": "bash", "input": {"command": "ls\x1b[2J"}}


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SavedSession]:
    monkeypatch.chdir(tmp_path)
    store = SessionStore()
    saved = store.create("20260101-000000-abcdef", project=os.getcwd(), plan_yaml="name: x\n")
    saved.update(title="Review it", prompts=2, profile="task.yaml")
    saved.append({"role": "user", "content": "first prompt"})
    saved.append({"role": "assistant", "content": [{"type": "text", "text": "Looking."}, CALL]})
    saved.append({"role": "tool", "tool_call_id": "1", "content": "a.txt\nb.txt"})
    saved.append({"role": "assistant", "content": "First answer."})
    saved.append({"role": "user", "content": "second prompt"})
    saved.append({"role": "assistant", "content": "\n".join(f"line {n}" for n in range(30))})
    yield saved
    saved.close()


@pytest.fixture
def chat(saved: SavedSession) -> Any:
    coordinator = ModuleCoordinator(approval_system=Approvals("allow"))
    MODE.register(coordinator, SimpleNamespace(mode="edits", modes=("ask", "edits"), cycle=None))
    facts = SimpleNamespace(profile="task.yaml", session_id=saved.id, resumed=True)
    renderer = SimpleNamespace(visibility=Visibility())
    about = {
        "saved": saved,
        "is_saved": True,
        "facts": facts,
        "renderer": renderer,
        "session": SimpleNamespace(coordinator=coordinator),
        "budget": SimpleNamespace(limits={"max_cost": 2.0}),
    }
    chat = {"session": SimpleNamespace(id=saved.id, **about), "renderer": renderer}
    return SimpleNamespace(**chat, commands=all_commands(), page_or_return=lambda text: text)


async def said(chat: Any, text: str) -> str:
    return read_text(await run_command(text, chat), width=60)


async def test_a_resumed_chat_starts_with_its_title_and_last_exchange(chat: Any) -> None:
    header = await resume_header(chat.session, await build_conversation(chat.session))
    lines = read_text(header, width=60).splitlines()
    assert lines[0] == 'Resumed "Review it" · 2 prompts · just now · plan task.yaml'
    assert lines[1:4] == ["› second prompt", "", "line 0"]
    assert lines[-3:] == ["… 18 more lines", "1 earlier prompt: /history", ""]


async def test_show_prints_a_call_by_its_number(chat: Any) -> None:
    assert await said(chat, "/show 1") == "1 bash\n\ncommand: ls\n\nresult:\na.txt\nb.txt\n"
    assert await said(chat, "/show") == await said(chat, "/show 1")
    with pytest.raises(UsageError, match="no tool call 7; there are 1"):
        await run_command("/show 7", chat)
    with pytest.raises(UsageError, match="number from 1, got 'x'"):
        await run_command("/show x", chat)


async def test_history_shows_earlier_prompts(chat: Any) -> None:
    whole = await said(chat, "/history")
    assert whole.startswith(
        "› first prompt\n\nLooking.\n\n   1 bash ls · 2 lines\n\nFirst answer.\n\n› second"
    )
    assert (await said(chat, "/history 1")).startswith("› second prompt\n")


async def test_answers_are_rendered_again_on_a_terminal(chat: Any, saved: SavedSession) -> None:
    table = f"| Name | What |\n|---|---|\n| **loop** | {'streams text ' * 8}|"
    saved.append({"role": "user", "content": "a *table*"})
    saved.append({"role": "assistant", "content": table})
    for reply in (
        await resume_header(chat.session, await build_conversation(chat.session)),
        await run_command("/history 1", chat),
    ):
        drawn = read_text(reply, width=60, terminal=True)
        assert "› a *table*\n" in drawn
        assert "| Name" not in drawn
        assert "**" not in drawn
        assert drawn.count("streams text") == 8
        assert all(len(line) <= 60 for line in drawn.splitlines())
        assert "| **loop** | streams text" in read_text(
            reply, width=60
        )  # as plain output shows answers


async def test_rename_and_fork_act_on_the_open_session(chat: Any, saved: SavedSession) -> None:
    assert await said(chat, "/rename A new title") == 'Renamed to "A new title".\n'
    assert saved.metadata["title"] == "A new title"
    with pytest.raises(Reopen) as forked:
        await run_command("/fork 1", chat)
    # As it is now, although only turns save the mode.
    same = {"mode": "edits", "approve": "allow", "max_cost": 2.0}
    assert same.items() <= forked.value.changes.items()
    new = SessionStore().find(forked.value.changes["resume"])
    assert len(new.reading().file.records) == 3
    assert new.metadata["mode"] == "edits"
    listed = await said(chat, "/sessions")
    assert "abcdef" in listed
    assert "  A new title (this session) " in listed
    assert "  Fork at step 1: A new title\n" in listed
    assert listed.count("(this session)") == 1


async def test_the_list_is_aligned_and_says_how_many_more_there_are(chat: Any) -> None:
    store = SessionStore()
    for number in range(16):
        store.create(f"s{number}", project=os.getcwd(), title=f"title {number}").close()
    file = store.find("s15").path / "metadata.json"
    then = (datetime.now(UTC) - timedelta(days=2)).isoformat()
    file.write_text(json.dumps({**json.loads(file.read_text()), "updated": then}))
    lines = (await said(chat, "/sessions")).splitlines()
    assert len(lines) == 16
    assert lines[-1].split() == ["2", "more:", "/resume"]
    assert len({line.index("title") for line in lines[:-1] if "title" in line}) == 1


async def test_save_writes_the_last_answer_to_a_new_file(chat: Any, tmp_path: Path) -> None:
    assert (await said(chat, "/save out.md")).strip() == "Written to out.md."
    assert (tmp_path / "out.md").read_text().splitlines()[:2] == ["line 0", "line 1"]
    with pytest.raises(UsageError, match="already exists"):
        await run_command("/save out.md", chat)


async def test_a_session_that_is_not_saved_cannot_be_forked(chat: Any) -> None:
    chat.session.is_saved = False
    for command in ("/fork", "/rename x"):
        with pytest.raises(UsageError, match="not saved"):
            await run_command(command, chat)


@pytest.mark.parametrize("name", ["out.md", "out.json", "out.html", "out.tar.gz"])
async def test_export_writes_a_new_file_in_the_format_of_its_ending(
    chat: Any, tmp_path: Path, name: str
) -> None:
    assert (await said(chat, f"/export {name}")).strip() == f"Written to {name}."
    content = (tmp_path / name).read_bytes()
    assert b"first prompt" in (gzip.decompress(content) if name.endswith(".gz") else content)
    with pytest.raises(AppError, match="already exists"):
        await run_command(f"/export {name}", chat)
    with pytest.raises(UsageError, match="does not know the format"):
        await run_command("/export x.pdf", chat)
