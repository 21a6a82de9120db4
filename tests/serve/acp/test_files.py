"""Files that are open in the editor: what is not saved there counts."""

import socket
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.json_rpc import Peer
from amplifier_app.base.stdio import Output
from amplifier_serve.acp import inputs
from tests.serve.acp.editor import Refused, choose, running
from tests.support.plans import mock_plan
from tests.support.waiting import wait_until

EDIT = {"file_path": "a.txt", "old_string": "unsaved", "new_string": "edited"}


def plan(folder: Path, *calls: tuple[str, Any], **more: Any) -> Path:
    replies = [{"tool_calls": [{"name": name, "input": given}]} for name, given in calls]
    return mock_plan(folder, [*replies, "done"], tools=["tool-filesystem"], **more)


def test_unsaved_text_is_read_edited_and_replaced_in_the_editor(tmp_path: Path) -> None:
    file, saved = tmp_path / "a.txt", tmp_path / "b.txt"
    file.write_text("saved\n")
    saved.write_bytes(b"unsaved\r\n")
    calls = (
        ("read_file", {"file_path": "a.txt"}),
        ("edit_file", EDIT),
        ("edit_file", {**EDIT, "file_path": "b.txt"}),
        ("read_file", {"file_path": "b.txt"}),
        ("read_file", {"file_path": "large.txt"}),
        ("read_file", {"file_path": "c.txt"}),
    )
    (tmp_path / "large.txt").write_text("text\n" * 2_000_000)
    (tmp_path / "c.txt").write_text("text")
    with running("--editor-files", "-f", plan(tmp_path, *calls)) as editor:
        # Line ends alone are no change.
        stuck = str(tmp_path / "c.txt")
        editor.files = {str(file): "saved\nunsaved\n", str(saved): "unsaved\n", stuck: None}
        files = {"readTextFile": True, "writeTextFile": True}
        session = editor.open(tmp_path, {"fs": files})
        prompt = editor.begin_prompt(session, "go")
        # An editor that does not answer keeps no one from stopping the prompt.
        wait_until(lambda: stuck in editor.asked)
        editor.notify("session/cancel", sessionId=session)
        assert prompt.result(60)["stopReason"] == "cancelled"
        read, *edits, again, large = editor.wait_for("tool_call_update", 5)[:5]
    assert read["rawOutput"] == "saved\nunsaved\n"
    assert [edit["status"] for edit in edits] == ["completed", "completed"], edits
    assert editor.files == {str(file): "saved\nedited\n", str(saved): "unsaved\n", stuck: None}
    assert (file.read_text(), saved.read_bytes()) == ("saved\n", b"edited\r\n")
    # The editor has not noticed the edit yet.
    assert again["rawOutput"] == "edited\n"
    # What cannot be changed there is not asked for.
    assert large["status"] == "completed"
    assert not any(path.endswith("large.txt") for path in editor.asked)


@pytest.mark.parametrize("tool", ["edit_file", "write_file"])
def test_an_editor_that_only_reads_keeps_unsaved_text(tmp_path: Path, tool: str) -> None:
    file = tmp_path / "a.txt"
    file.write_text("saved\n")
    given = EDIT if tool == "edit_file" else {"file_path": "a.txt", "content": "new"}
    asking = plan(tmp_path, (tool, given), hooks=["hooks-approval"])
    with running("--editor-files", "-f", asking) as editor:
        editor.files = {str(file): "unsaved\r\n"}
        editor.answer = lambda params: choose(params, "allow_once")
        editor.prompt(editor.open(tmp_path, {"fs": {"readTextFile": True}}), "go")
        (ended,) = editor.wait_for("tool_call_update")
        (change,) = editor.questions[0]["toolCall"]["content"]
    # The user decides on the change of the text that is in the editor.
    new = "edited\n" if tool == "edit_file" else "new"
    assert (change["oldText"], change["newText"]) == ("unsaved\n", new)
    assert ended["status"] == "failed"
    assert "ask the user to save it" in ended["rawOutput"]
    assert file.read_text() == "saved\n"


@pytest.mark.parametrize("tool", ["edit_file", "write_file"])
def test_a_file_too_large_to_look_for_unsaved_text_is_not_changed(
    tmp_path: Path, tool: str
) -> None:
    file, text = tmp_path / "a.txt", "unsaved" + "\n" * 9_000_000
    file.write_text(text)
    given = EDIT if tool == "edit_file" else {"file_path": "a.txt", "content": "new"}
    with running("--editor-files", "-f", plan(tmp_path, (tool, given))) as editor:
        files = {"readTextFile": True, "writeTextFile": True}
        editor.prompt(editor.open(tmp_path, {"fs": files}), "go")
        (ended,) = editor.wait_for("tool_call_update")
    assert ended["status"] == "failed"
    assert "ask the user to change it" in ended["rawOutput"]
    assert file.read_text() == text


async def test_an_editor_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_ANSWER_SECONDS", 0.1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        files = inputs.ClientFiles(
            Peer(ours.fileno(), Output(ours.fileno()), lambda *message: None), "s", can_write=True
        )
        with pytest.raises(OSError, match="the editor did not answer within"):
            await files.read("/a.txt")
        with pytest.raises(OSError, match="the editor did not answer within"):
            await files.write("/a.txt", "text")
        sent = theirs.recv(100_000).decode()
    assert sent.count("$/cancel_request") == 2


def test_undo_says_that_unsaved_text_of_the_editor_is_not_restored(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("saved\n")
    with running("--editor-files", "-f", plan(tmp_path, ("edit_file", EDIT))) as editor:
        editor.files = {str(file): "unsaved\n"}
        files = {"readTextFile": True, "writeTextFile": True}
        session = editor.open(tmp_path, {"fs": files})
        editor.prompt(session, "go")
        # Without copies, there is nothing to undo.
        with pytest.raises(Refused):
            editor.prompt(session, "/undo")
        assert f"warning: changed in the editor: {file}. /undo restores" in editor.text()


def test_files_are_on_the_disk_unless_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("unsaved in another way\n")
    with running("-f", plan(tmp_path, ("edit_file", EDIT))) as editor:
        editor.files = {str(file): "unsaved\n"}
        files = {"readTextFile": True, "writeTextFile": True}
        editor.prompt(editor.open(tmp_path, {"fs": files}), "go")
    assert file.read_text() == "edited in another way\n"
