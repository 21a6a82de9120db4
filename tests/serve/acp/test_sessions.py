"""Sessions of an editor: opened, prompted, listed, loaded again and deleted."""

import base64
import os
import signal
from pathlib import Path

import pytest

from amplifier_app.sessions.fork import fork_session
from amplifier_app.sessions.store import SessionStore
from amplifier_support.process_tree import process_table
from tests.serve.acp.editor import Refused, running
from tests.support.cli import run_amplifier, succeed
from tests.support.images import RED_PNG
from tests.support.plans import held_plan, let_go, mock_plan, module_folder
from tests.support.waiting import wait_until


def test_a_prompt_is_answered_and_the_session_is_saved(tmp_path: Path) -> None:
    with running("-f", mock_plan(tmp_path, [], mock={"on_end": "echo"})) as editor:
        session = editor.open(tmp_path)
        assert editor.prompt(session, "first")["stopReason"] == "end_turn"
        assert editor.text(session) == "You said: first"
        assert editor.wait_for("session_info_update")[0]["title"] == "first"
    done = run_amplifier("run", "--resume", session, "again")
    assert (done.code, done.stdout) == (0, "You said: again\n")


TITLES = {
    "orchestrator": "loop-streaming",
    "context": {"module": "context-simple", "config": {"titles": "model"}},
}


def test_the_model_writes_the_title_after_the_first_answer(tmp_path: Path) -> None:
    replies = ["the answer", "Fix the parser", "another answer"]
    with running("-f", mock_plan(tmp_path, replies, session=TITLES)) as editor:
        session = editor.open(tmp_path)
        assert editor.prompt(session, "first")["stopReason"] == "end_turn"
        titles = [update["title"] for update in editor.wait_for("session_info_update", 2)]
        editor.prompt(session, "second")
        assert editor.text(session) == "the answeranother answer"
        listed = editor.call("session/list", cwd=str(tmp_path))["sessions"]
    assert (titles, listed[0]["title"]) == (["first", "Fix the parser"], "Fix the parser")


def test_a_request_for_a_title_gives_way_to_the_next_prompt(tmp_path: Path) -> None:
    never = {"text": "a title", "delay": 1000}
    with running("-f", mock_plan(tmp_path, ["one", never], session=TITLES)) as editor:
        session = editor.open(tmp_path)
        editor.prompt(session, "first")
        with pytest.raises(Refused, match="script"):
            editor.prompt(session, "second")
        assert [update["title"] for update in editor.wait_for("session_info_update")] == ["first"]


def test_tokens_context_and_cost_reach_the_editor(tmp_path: Path) -> None:
    usage = {"input_tokens": 100, "output_tokens": 20, "cache_read_tokens": 60, "cost_usd": "0.5"}
    reply = {"text": "hello", "usage": usage}
    mock = {"context_window": 1000, "on_end": "repeat"}
    with running("-f", mock_plan(tmp_path, [reply], mock=mock)) as editor:
        session = editor.open(tmp_path)
        answers = [editor.prompt(session, "hello") for _ in range(2)]
        updates = editor.wait_for("usage_update")
    counts = {"inputTokens": 200, "outputTokens": 40, "totalTokens": 240, "cachedReadTokens": 120}
    assert answers[1]["usage"].items() >= counts.items()
    assert (updates[0]["used"], updates[0]["size"]) == (120, 1000)
    assert updates[0]["cost"] == {"amount": 0.5, "currency": "USD"}


def test_a_call_that_cannot_run_is_announced_before_it_fails(tmp_path: Path) -> None:
    call = {"name": "nonsense", "input": {"a": 1}}
    with running("-f", mock_plan(tmp_path, [{"tool_calls": [call]}, "done"])) as editor:
        editor.prompt(editor.open(tmp_path), "go on")
        kinds = [update["sessionUpdate"] for _, update in editor.updates]
        (started,), (ended,) = editor.wait_for("tool_call"), editor.wait_for("tool_call_update")
    assert kinds.index("tool_call") < kinds.index("tool_call_update")
    assert started["toolCallId"] == ended["toolCallId"]
    assert (started["rawInput"], ended["status"]) == ({"a": 1}, "failed")


def test_a_session_of_a_terminal_goes_on_in_an_editor(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [], mock={"on_end": "echo"})
    succeed("run", "-f", plan, "--session", "here", "first", cwd=tmp_path)
    with running() as editor:
        editor.initialize()
        listed = editor.call("session/list", cwd=str(tmp_path))["sessions"]
        assert [(one["sessionId"], one["title"]) for one in listed] == [("here", "first")]
        assert editor.call("session/list", cwd="/nowhere")["sessions"] == []
        editor.call("session/load", sessionId="here", cwd=str(tmp_path), mcpServers=[])
        kinds = [
            (update["sessionUpdate"], update["content"]["text"])
            for _, update in editor.updates
            if "content" in update
        ]
        assert kinds == [
            ("user_message_chunk", "first"),
            ("agent_message_chunk", "You said: first"),
        ]
        editor.updates.clear()
        editor.call("session/resume", sessionId="here", cwd=str(tmp_path))
        editor.prompt("here", "second")
        assert editor.text() == "You said: second"


def test_a_loaded_session_shows_its_tool_calls_and_images(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some notes\n")
    call = {"name": "read_file", "input": {"file_path": "notes.txt"}}
    plan = mock_plan(tmp_path, [{"tool_calls": [call]}, "read"], tools=["tool-filesystem"])
    image = {"type": "image", "data": base64.b64encode(RED_PNG).decode(), "mimeType": "image/png"}
    with running("-f", plan) as editor:
        session = editor.open(tmp_path)
        prompt = [{"type": "text", "text": "read it"}, image]
        editor.call("session/prompt", sessionId=session, prompt=prompt)
        started, ended = editor.wait_for("tool_call")[0], editor.wait_for("tool_call_update")[0]
        assert (started["kind"], started["status"]) == ("read", "in_progress")
        assert started["locations"][0]["path"] == str(tmp_path / "notes.txt")
        assert (ended["toolCallId"], ended["status"]) == (started["toolCallId"], "completed")
        assert "some notes" in ended["content"][0]["content"]["text"]
        editor.updates.clear()
        editor.call("session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[])
        (again,) = editor.wait_for("tool_call")
        assert "some notes" in again["content"][0]["content"]["text"]
        contents = [one["content"]["type"] for one in editor.wait_for("user_message_chunk", 2)]
        assert sorted(contents) == ["image", "text"]


@pytest.mark.parametrize("has_terminals", [True, False], ids=["terminal", "text"])
def test_an_editor_shows_the_output_of_a_command_as_it_comes(
    tmp_path: Path, has_terminals: bool
) -> None:
    line = "echo one; while [ ! -e seen ]; do sleep 0.05; done; echo two; echo 3; exit 3"
    replies = [{"tool_calls": [{"name": "bash", "input": {"command": line}}]}, "done"]
    with running("-f", mock_plan(tmp_path, replies, tools=["tool-bash"])) as editor:
        session = editor.open(tmp_path, {"_meta": {"terminal_output": has_terminals}})
        prompt = editor.begin_prompt(session, "go")
        first = editor.wait_for("tool_call_update")[0]
        (tmp_path / "seen").touch()
        prompt.result(60)
        (call,) = editor.wait_for("tool_call")
        *live, end = editor.wait_for("tool_call_update", 2)
    id = call["toolCallId"]
    assert (first["status"], end["status"]) == ("in_progress", "failed")
    assert end["rawOutput"].startswith("one\ntwo\n3\n")
    if not has_terminals:
        assert first["content"][0]["content"]["text"] == "one\n"
        assert end["content"][0]["content"]["text"] == end["rawOutput"]
        return
    assert call["content"] == [{"type": "terminal", "terminalId": id}]
    assert call["_meta"] == {"terminal_info": {"terminal_id": id}}
    outputs = [update["_meta"]["terminal_output"] for update in (*live, end)]
    assert {output["terminal_id"] for output in outputs} == {id}
    assert "".join(output["data"] for output in outputs) == end["rawOutput"]
    assert end["_meta"]["terminal_exit"] == {"terminal_id": id, "exit_code": 3, "signal": None}
    assert not any("content" in update for update in (*live, end))


def test_two_sessions_run_at_once_in_directories_of_their_own(tmp_path: Path) -> None:
    call = {"name": "read_file", "input": {"file_path": "name.txt"}}
    plan = held_plan(tmp_path, [{"tool_calls": [call]}, "done"], tools=["tool-filesystem"])
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "name.txt").write_text(f"folder {folder.name}")
    with running("-f", plan) as editor:
        sessions = [editor.open(folder) for folder in folders]
        prompts = [editor.begin_prompt(session, "read it") for session in sessions]
        let_go(tmp_path)
        assert [prompt.result(60)["stopReason"] for prompt in prompts] == ["end_turn", "end_turn"]
        for session, folder in zip(sessions, folders, strict=True):
            texts = [str(update) for id, update in editor.updates if id == session]
            assert any(f"folder {folder.name}" in text for text in texts)


def test_a_closed_session_is_kept_and_a_deleted_one_is_not(tmp_path: Path) -> None:
    with running("-f", mock_plan(tmp_path, ["one"])) as editor:
        session = editor.open(tmp_path)
        # It has no message yet.
        editor.call("session/resume", sessionId=session, cwd=str(tmp_path), mcpServers=[])
        editor.prompt(session, "first")
        editor.call("session/close", sessionId=session)
        with pytest.raises(Refused, match="is not open here") as refused:
            editor.prompt(session, "second")
        assert refused.value.code == -32002
        assert len(editor.call("session/list")["sessions"]) == 1
        editor.call("session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[])
        editor.call("session/delete", sessionId=session)
        assert editor.call("session/list")["sessions"] == []
        editor.call("session/delete", sessionId=session)  # already gone


def test_a_session_that_does_not_exist_is_not_opened(tmp_path: Path) -> None:
    with running("-f", mock_plan(tmp_path, ["one"])) as editor:
        editor.initialize()
        for id in ("unknown", "../x", "", "\0", "x" * 5000):
            for method in ("session/load", "session/resume"):
                with pytest.raises(Refused) as refused:
                    editor.call(method, sessionId=id, cwd=str(tmp_path), mcpServers=[])
                assert refused.value.code == (-32002 if id else -32602)
            editor.call("session/delete", sessionId=id or "x")


def test_a_prompt_is_cancelled_when_its_session_is_closed(tmp_path: Path) -> None:
    with running("-f", held_plan(tmp_path, ["never"])) as editor:
        session = editor.open(tmp_path)
        prompt = editor.begin_prompt(session, "wait")
        editor.call("session/close", sessionId=session)
        assert prompt.result(60)["stopReason"] == "cancelled"


def test_a_session_whose_process_is_killed_can_be_loaded_again(tmp_path: Path) -> None:
    call = {"name": "bash", "input": {"command": "touch x"}}
    replies = [{"text": "first part", "tool_calls": [call]}, "done"]
    plan = mock_plan(tmp_path, replies, tools=["tool-bash"], hooks=["hooks-approval"])
    with running("-f", plan) as editor:
        editor.answer = lambda params: None
        session = editor.open(tmp_path)
        prompt = editor.begin_prompt(session, "go")
        wait_until(lambda: bool(editor.questions))
        # Its working directory is hidden from other processes of its user.
        (worker,) = (
            pid for pid, (parent, *_) in process_table().items() if parent == editor.process.pid
        )
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(Refused, match="the process of the session has ended"):
            prompt.result(60)
        assert editor.unrelated.get(timeout=60)["method"] == "$/cancel_request"
        wait_until(lambda: not Path(f"/proc/{worker}").exists())
        editor.updates.clear()
        editor.call("session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[])
        assert "first part" in editor.text(session)


WARNING_HOOK = """
import logging

__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    logging.getLogger(__name__).warning("the disk is slow")
    coordinator.hooks.register("session:start", lambda event, data: None, name="noisy")
"""


def test_warnings_of_modules_are_shown_with_the_first_prompt(tmp_path: Path) -> None:
    source = module_folder(tmp_path, WARNING_HOOK)
    hook = {"module": "hooks-noisy", "source": str(source)}
    with running("-f", mock_plan(tmp_path, ["fine"], hooks=[hook])) as editor:
        session = editor.open(tmp_path)
        editor.prompt(session, "hello")
        assert editor.text(session) == "warning: the disk is slow\n\nfine"


def test_long_lists_come_in_pages(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["one"])
    succeed("run", "-f", plan, "--session", "first", "hello", cwd=tmp_path)
    store = SessionStore()
    for _ in range(51):
        fork_session(store, store.find("first"))
    with running() as editor:
        editor.initialize()
        first = editor.call("session/list")
        rest = editor.call("session/list", cursor=first["nextCursor"])
        assert (len(first["sessions"]), len(rest["sessions"])) == (50, 2)
        assert "nextCursor" not in rest
        with pytest.raises(Refused, match="unknown cursor"):
            editor.call("session/list", cursor="x")


def test_embedded_files_and_links_are_part_of_the_prompt(tmp_path: Path) -> None:
    blocks = [
        {"type": "text", "text": "compare"},
        {"type": "resource_link", "name": "a.py", "uri": "file:///x/a.py"},
        {"type": "resource", "resource": {"uri": "file:///x/b.py", "text": "unsaved"}},
    ]
    with running("-f", mock_plan(tmp_path, ["{prompt}"])) as editor:
        session = editor.open(tmp_path)
        editor.call("session/prompt", sessionId=session, prompt=blocks)
    transcript = run_amplifier("session", "show", session, "--output", "json").stdout
    assert "[a.py](file:///x/a.py)" in transcript
    assert '<file path=\\"/x/b.py\\">\\nunsaved\\n</file>' in transcript


def test_prompts_that_cannot_be_sent_are_refused(tmp_path: Path) -> None:
    with running("-f", mock_plan(tmp_path, ["one"])) as editor:
        session = editor.open(tmp_path)
        for blocks, message in (
            ([], "the prompt is empty"),
            ("text", "must be a list"),
            ([{"type": "audio", "data": "", "mimeType": "audio/wav"}], "of the type 'audio'"),
            ([{"type": "image", "data": "%", "mimeType": "image/png"}], "not valid base64"),
            ([{"type": "image", "data": "aaaa", "mimeType": "image/png"}], "not an image"),
        ):
            with pytest.raises(Refused, match=message) as refused:
                editor.call("session/prompt", sessionId=session, prompt=blocks)
            assert refused.value.code == -32602
        assert editor.prompt(session, "go on")["stopReason"] == "end_turn"


def test_without_a_provider_the_editor_learns_how_to_set_one_up(tmp_path: Path) -> None:
    with running() as editor:
        methods = editor.initialize(auth={"terminal": True})["authMethods"]
        assert [(one["type"], one["args"]) for one in methods] == [("terminal", ["init"])]
        with pytest.raises(Refused, match="no provider is set up") as refused:
            editor.call("session/new", cwd=str(tmp_path), mcpServers=[])
        assert refused.value.code == -32000


def test_errors_of_a_provider_answer_the_prompt_and_the_session_goes_on(tmp_path: Path) -> None:
    plan = mock_plan(
        tmp_path, [{"error": {"type": "RateLimitError", "message": "slow down"}}, "fine"]
    )
    with running("-f", plan) as editor:
        session = editor.open(tmp_path)
        with pytest.raises(Refused, match="slow down") as refused:
            editor.prompt(session, "first")
        assert refused.value.data["exit_code"] == 75
        assert editor.prompt(session, "again")["stopReason"] == "end_turn"
