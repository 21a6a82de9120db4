"""Questions for approval, asked in the editor."""

from pathlib import Path
from typing import Any

from tests.serve.acp.editor import choose, running
from tests.support.plans import mock_plan
from tests.support.warm_program import script_command

ASKING = Path(__file__).parents[2] / "extras" / "tool_mcp" / "asking_server.py"
GUARDED: dict[str, Any] = {"tools": ["tool-filesystem", "tool-bash"], "hooks": ["hooks-approval"]}


def plan_with_edit(folder: Path, **more: Any) -> Path:
    (folder / "a.txt").write_text("one\ntwo\n")
    call = {
        "name": "edit_file",
        "input": {"file_path": "a.txt", "old_string": "two", "new_string": "three"},
    }
    return mock_plan(folder, [{"tool_calls": [call]}, "done"], **GUARDED, **more)


def test_an_edit_asks_with_the_old_and_the_new_text(tmp_path: Path) -> None:
    with running("-f", plan_with_edit(tmp_path)) as editor:
        editor.answer = lambda params: choose(params, "allow_once")
        session = editor.open(tmp_path)
        assert editor.prompt(session, "edit it")["stopReason"] == "end_turn"
        (question,) = editor.questions
        (started,), (ended,) = editor.wait_for("tool_call"), editor.wait_for("tool_call_update")
    diff = {
        "type": "diff",
        "path": str(tmp_path / "a.txt"),
        "oldText": "one\ntwo\n",
        "newText": "one\nthree\n",
    }
    assert question["toolCall"]["content"][0] == diff
    assert started["content"] == ended["content"] == [diff]
    assert question["toolCall"]["toolCallId"] == started["toolCallId"] == ended["toolCallId"]
    assert ended["status"] == "completed"
    assert (tmp_path / "a.txt").read_text() == "one\nthree\n"


def test_secrets_are_replaced_in_updates_as_in_events(tmp_path: Path) -> None:
    secret = "sk-ant-api03-" + "Ab3dEf6hIj9l" * 8
    (tmp_path / "a.txt").write_text(f"{secret}\ntwo\n")
    edit = {"file_path": "a.txt", "old_string": "two", "new_string": secret}
    calls = [{"name": "edit_file", "input": edit}]
    calls += [{"name": "bash", "input": {"command": f"touch x; echo {secret}"}}]
    replies = [{"tool_calls": [call]} for call in calls]
    hooks = ["hooks-approval", "hooks-redaction"]
    plan = mock_plan(tmp_path, [*replies, "done"], tools=GUARDED["tools"], hooks=hooks)
    with running("-f", plan) as editor:
        editor.answer = lambda params: choose(params, "allow_once")
        editor.prompt(editor.open(tmp_path), "go")
        started = [call["toolCallId"] for call in editor.wait_for("tool_call", 2)]
        editor.wait_for("tool_call_update", 2)
        assert [question["toolCall"]["toolCallId"] for question in editor.questions] == started
        assert secret not in str(editor.updates)


def test_without_a_yes_the_call_is_denied(tmp_path: Path) -> None:
    answers: list[Any] = [
        {"outcome": {"outcome": "cancelled"}},
        {"outcome": {"outcome": "cancelled", "optionId": "0"}},
        {"outcome": {"outcome": "selected", "optionId": [0]}},
        {"outcome": {"outcome": "selected", "optionId": "17"}},
        {},
        None,
    ]
    plan = plan_with_edit(tmp_path, mock={"on_end": "cycle"})
    with running("-f", plan) as editor:
        session = editor.open(tmp_path)
        for number, answer in enumerate(answers, 1):
            editor.answer = lambda params, answer=answer: answer or choose(params, "reject_once")
            assert editor.prompt(session, "edit it")["stopReason"] == "end_turn"
            assert editor.wait_for("tool_call_update", number)[-1]["status"] == "failed"
            assert len(editor.questions) == number
            assert (tmp_path / "a.txt").read_text() == "one\ntwo\n"


def test_an_answer_for_the_session_covers_the_calls_that_it_names(tmp_path: Path) -> None:
    calls = [{"name": "bash", "input": {"command": f"touch {name}"}} for name in ("x", "y")]
    plan = mock_plan(tmp_path, [{"tool_calls": [call]} for call in calls] + ["done"], **GUARDED)
    with running("-f", plan) as editor:
        editor.answer = lambda params: choose(params, "allow_always")
        session = editor.open(tmp_path)
        editor.prompt(session, "do it")
        (question,) = editor.questions
    names = [one["name"] for one in question["options"] if one["kind"] == "allow_always"]
    assert names[0] == "Allow for this session: commands that start with touch"
    assert question["toolCall"]["title"] == "touch x"
    assert (tmp_path / "y").exists()


def test_the_question_of_a_sub_agent_names_it(tmp_path: Path) -> None:
    task = {"name": "task", "input": {"agent": "helper", "instruction": "make x"}}
    call = {"name": "bash", "input": {"command": "touch x"}}
    plan = mock_plan(
        tmp_path,
        [{"tool_calls": [task]}, {"tool_calls": [call]}, "made", "done"],
        tools=["tool-task", "tool-bash"],
        hooks=["hooks-approval"],
        agents={"helper": {"description": "Helps."}},
    )
    with running("-f", plan) as editor:
        editor.answer = lambda params: choose(params, "allow_once")
        session = editor.open(tmp_path)
        editor.prompt(session, "delegate")
        titles = [question["toolCall"]["title"] for question in editor.questions]
    assert "helper: touch x" in titles
    assert (tmp_path / "x").exists()


def test_a_question_of_a_server_is_asked(tmp_path: Path) -> None:
    command, *arguments = script_command(ASKING)
    server = {"command": command, "args": arguments, "required": True}
    tool = {"module": "tool-mcp", "config": {"servers": {"ask": server}}}
    call = {"name": "mcp_ask_sign", "input": {"url": "https://a.example/sign"}}
    replies = [{"tool_calls": [call]}, "done"] * 2
    parts = {"orchestrator": "loop-basic", "context": "context-simple", "sandbox": "off"}
    with running("-f", mock_plan(tmp_path, replies, tools=[tool], session=parts)) as editor:
        session = editor.open(tmp_path)
        for number, (kind, answer) in enumerate(
            (("allow_once", "accept"), ("reject_once", "decline")), 1
        ):
            editor.answer = lambda params, kind=kind: choose(params, kind)
            editor.prompt(session, "sign")
            question = editor.questions[-1]
            ended = editor.wait_for("tool_call_update", number)[-1]
            assert [one["name"] for one in question["options"]] == ["Open the page", "Decline"]
            assert "https://a.example/sign" in str(question["toolCall"]["content"])
            assert f"answer: {answer}" in str(ended)


def test_the_mode_decides_what_asks(tmp_path: Path) -> None:
    with running("-f", plan_with_edit(tmp_path)) as editor:
        session = editor.open(tmp_path)
        editor.call("session/set_mode", sessionId=session, modeId="edits")
        assert editor.wait_for("current_mode_update")[0]["currentModeId"] == "edits"
        options = editor.wait_for("config_option_update")[0]["configOptions"]
        assert ("mode", "edits") in [(option["id"], option["currentValue"]) for option in options]
        editor.prompt(session, "edit it")
        assert editor.questions == []
    assert (tmp_path / "a.txt").read_text() == "one\nthree\n"


def test_todo_lists_are_plans(tmp_path: Path) -> None:
    todos = [
        {"content": "look", "status": "completed", "activeForm": "looking"},
        {"content": "edit", "status": "in_progress", "activeForm": "editing"},
    ]
    call = {"name": "todo", "input": {"action": "create", "todos": todos}}
    plan = mock_plan(tmp_path, [{"tool_calls": [call]}, "done"], tools=["tool-todo"])
    with running("-f", plan) as editor:
        editor.prompt(editor.open(tmp_path), "plan it")
        (update,) = editor.wait_for("plan")
    shown = [(entry["content"], entry["status"]) for entry in update["entries"]]
    assert shown == [("look", "completed"), ("edit", "in_progress")]
