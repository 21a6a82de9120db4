"""Messages that are wrong, too long or out of order, and directories that are not trusted."""

import json
import random
import string
from pathlib import Path
from typing import Any

import pytest

from tests.serve.acp.editor import Refused, running
from tests.support.plans import NOISY_TOOL, mock_plan, module_folder

WRONG: list[bytes] = [
    b"{",
    b"[]",
    b"[1, 2]",
    b"null",
    b'"text"',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"jsonrpc": "2.0"}',
    b'{"jsonrpc": "2.0", "id": 1}',
    b'{"jsonrpc": "2.0", "id": {}, "method": "initialize"}',
    b'{"jsonrpc": "2.0", "id": 1, "method": 7}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": [1]}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {"sessionId": "../x"}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "session/load", "params": {"sessionId": "../../x", "cwd": "/"}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": "relative"}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": "/no/such/folder"}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": "/", "mcpServers": 7}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": "/", "mcpServers": [{}]}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "session/list", "params": {"cursor": "-1"}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "no/such/method", "params": {}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "open", "params": {}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "$/cancel_request", "params": {"requestId": 1}}',
]
IGNORED: list[bytes] = [
    b"",
    b"   ",
    b'{"jsonrpc": "2.0", "method": "session/cancel", "params": {}}',
    b'{"jsonrpc": "2.0", "method": "no/such/notification"}',
    b'{"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": []}}',
    b'{"jsonrpc": "2.0", "id": 99, "result": {}}',
    b'{"jsonrpc": "2.0", "id": [], "error": "x"}',
]


def garbage(number: int) -> bytes:
    """A request with a known method, and parameters of any kind."""
    source = random.Random(number)
    values: list[Any] = [None, 0, -1, 1e99, "", "x", [], [{}], {}, True, "/", "\ud800"]
    keys = ("sessionId", "cwd", "prompt", "modeId", "configId", "value", "mcpServers", "cursor")
    methods = ("initialize", "session/new", "session/load", "session/prompt", "session/list")
    params = {key: source.choice(values) for key in keys if source.random() < 0.6}
    message = {"jsonrpc": "2.0", "id": number, "method": source.choice(methods), "params": params}
    return json.dumps(message).encode()


def test_wrong_messages_get_an_error_each(tmp_path: Path) -> None:
    with running("-f", mock_plan(tmp_path, ["fine"])) as editor:
        for line in IGNORED:
            editor.send_bytes(line + b"\n")
        for line in WRONG:
            editor.send_bytes(line + b"\n")
            answer = editor.unrelated.get(timeout=60)
            assert answer["error"]["code"] < 0, line
            assert "Traceback" not in answer["error"]["message"]
        assert editor.prompt(editor.open(tmp_path), "go on")["stopReason"] == "end_turn"


def test_any_parameters_get_an_answer(tmp_path: Path) -> None:
    with running("-f", mock_plan(tmp_path, ["fine"])) as editor:
        editor.initialize()
        for number in range(1000, 1076):
            editor.send_bytes(garbage(number) + b"\n")
            assert editor.unrelated.get(timeout=60)["id"] == number
        assert editor.prompt(editor.open(tmp_path), "go on")["stopReason"] == "end_turn"


def test_long_lines_and_a_megabyte_of_garbage(tmp_path: Path) -> None:
    letters = random.Random(3).choices(string.printable.encode(), k=50_000) * 20
    mock = {"on_end": "echo", "chunk_size": 2000}
    with running("-f", mock_plan(tmp_path, [], mock=mock)) as editor:
        session = editor.open(tmp_path)
        editor.send_bytes(bytes(letters).replace(b"\n", b" ") + b"\n")
        assert editor.unrelated.get(timeout=60)["error"]["code"] == -32700
        text = "word " * 40_000
        editor.prompt(session, text)
        assert text.strip() in editor.text()


def test_an_untrusted_directory_runs_nothing_and_the_editor_is_told(tmp_path: Path) -> None:
    project = tmp_path / "project"
    module = project / ".amplifier" / "modules" / "tool-evil"
    module.mkdir(parents=True)
    (project / ".git").mkdir()
    evil = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    (module / "__init__.py").write_text(evil)
    for name in ("json.py", "amplifier_serve.py", "sitecustomize.py"):
        (project / name).write_text(evil)
    (project / ".amplifier" / "settings.yaml").write_text("plan:\n  tools: [tool-evil]\n")
    with running("-f", mock_plan(tmp_path, ["fine"])) as editor:
        session = editor.open(project)
        editor.prompt(session, "hello")
        assert "amplifier trust" in editor.text(session)
        assert editor.text(session).endswith("fine")
    assert not (tmp_path / "ran").exists()


BIG_TOOL = """
from amplifier_core.models import ToolResult

__amplifier_module_type__ = "tool"


class Tool:
    name = "big"
    description = "Returns 10 MB."
    input_schema = {"type": "object", "properties": {}}

    async def execute(self, input):
        return ToolResult(success=True, output="z" * 10_000_000)


async def mount(coordinator, config=None):
    await coordinator.mount("tools", Tool(), name="big")
"""


def test_long_results_are_cut(tmp_path: Path) -> None:
    tool = {"module": "tool-big", "source": str(module_folder(tmp_path, BIG_TOOL))}
    replies = [{"tool_calls": [{"name": "big", "input": {}}]}, "done"]
    with running("-f", mock_plan(tmp_path, replies, tools=[tool])) as editor:
        session = editor.open(tmp_path)
        editor.prompt(session, "go")
        editor.wait_for("tool_call_update")
        editor.call("session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[])
        assert len(editor.wait_for("tool_call", 2)) == 2
        assert max(len(json.dumps(update)) for _, update in editor.updates) < 210_000


def test_what_modules_print_does_not_reach_the_editor(tmp_path: Path) -> None:
    source = module_folder(tmp_path, NOISY_TOOL)
    plan = mock_plan(
        tmp_path,
        [{"tool_calls": [{"name": "noisy", "input": {}}]}, "done"],
        tools=[{"module": "tool-noisy", "source": str(source)}],
    )
    with running("-f", plan) as editor:
        assert editor.prompt(editor.open(tmp_path), "hello")["stopReason"] == "end_turn"


def test_calls_before_initialize_are_answered(tmp_path: Path) -> None:
    with running("-f", mock_plan(tmp_path, ["fine"])) as editor:
        assert editor.call("session/list") == {"sessions": []}
        with pytest.raises(Refused, match="unknown method"):
            editor.call("fs/read_text_file", path="/x")
