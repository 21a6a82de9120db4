"""Ctrl-B in a chat: the running prompt goes on in a process of its own, and the chat ends."""

import contextlib
import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.batches import small_plan
from tests.support.cli import Finished, run_amplifier
from tests.support.images import RED_PNG
from tests.support.llm_server import Reply, Request, ScriptedLLM, ToolCall
from tests.support.terminal import CTRL_C, CTRL_D, ENTER, Terminal
from tests.support.thorough import Scale
from tests.support.waiting import wait_until

CTRL_B = "\x02"
HELD = "echo one >> made; while [ ! -e go ]; do sleep 0.05; done"
JOIN_LINE = r"amplifier session join ([0-9a-z-]+)"


class Chat:
    """A chat with a scripted model on loopback."""

    def __init__(self, folder: Path, server: ScriptedLLM) -> None:
        self.folder = folder
        self.server = server
        self.home = folder / "home"
        self.env: dict[str, str | None] = {"ANTHROPIC_API_KEY": "test-key"}
        provider = {"module": "provider-anthropic", "config": {"base_url": server.base_url}}
        self.plan = folder / "plan.yaml"
        self.plan.write_text(yaml.safe_dump({**small_plan(provider), "hooks": ["hooks-approval"]}))

    def open(self, *words: str) -> Terminal:
        options = ("-f", self.plan, *words)
        return Terminal("run", *options, cwd=self.folder, home=self.home, env=self.env)

    def amplifier(self, *words: str) -> Finished:
        return run_amplifier(*words, cwd=self.folder, home=self.home, env=self.env)

    @property
    def made(self) -> list[str]:
        file = self.folder / "made"
        return file.read_text().split() if file.exists() else []

    def wait_for_result(self, short: str) -> dict[str, Any]:
        """The result of the run in the background."""
        [file] = self.home.glob(f"sessions/*{short}*/run.json")
        wait_until(lambda: file.read_bytes().endswith(b"\n"))
        return json.loads(file.read_text())


def call(command: str) -> Reply:
    return Reply(tool_calls=[ToolCall("bash", {"command": command})])


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    def answer(request: Request) -> Any:
        number = len(server.completions)
        return [call(HELD), call("echo two >> made"), Reply("all done")][min(number, 3) - 1]

    with ScriptedLLM.running([answer], repeat_last=True) as server:
        yield Chat(tmp_path, server)


def begin(chat: Chat, terminal: Terminal) -> None:
    """Send a prompt, and wait until its first call runs."""
    terminal.prompt()
    terminal.type("go" + ENTER)
    wait_until(lambda: chat.made == ["one"])


def joined_session(terminal: Terminal) -> str:
    """Wait until the chat has ended; the session that goes on."""
    terminal.until(JOIN_LINE + r"\r?\n")
    assert terminal.finish() == 0
    found = re.search(JOIN_LINE, terminal.shown)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("plain", [False, True], ids=["key", "command"])
def test_the_prompt_goes_on_from_its_next_request(chat: Chat, plain: bool) -> None:
    with chat.open("--approve", "allow", *(["--plain"] if plain else [])) as terminal:
        begin(chat, terminal)
        terminal.type("/background" + ENTER if plain else CTRL_B)
        terminal.until("going to the background at the next model request")
        (chat.folder / "go").touch()
        short = joined_session(terminal)
    result = chat.wait_for_result(short)
    assert (result["outcome"], result["response"]) == ("ok", "all done")
    assert chat.made == ["one", "two"]
    # No request is sent twice.
    assert len(chat.server.completions) == 3
    assert "Continue." in json.dumps(chat.server.completions[1].body["messages"][-1])
    shown = chat.amplifier("session", "join", short)
    assert (shown.code, "all done" in shown.stdout) == (0, True)


def test_queued_messages_go_along_with_their_files(chat: Chat) -> None:
    (chat.folder / "red.png").write_bytes(RED_PNG)
    with chat.open("--approve", "allow") as terminal:
        begin(chat, terminal)
        terminal.type("be brief" + ENTER)
        terminal.until("queued for the next step: be brief")
        terminal.type("look @red.png " + ENTER)
        terminal.until("will run when it finishes: look @red.png")
        terminal.type(CTRL_B)
        terminal.until("going to the background")
        (chat.folder / "go").touch()
        result = chat.wait_for_result(joined_session(terminal))
    assert result["response"] == "all done"
    sent = json.dumps(chat.server.completions[1].body["messages"])
    assert [sent.count(text) for text in ("be brief", "look @red.png", '"image"')] == [1, 1, 1]


def test_what_needs_approval_waits(chat: Chat) -> None:
    with chat.open() as terminal:
        terminal.prompt()
        terminal.type("go" + ENTER)
        terminal.until("Run ")
        terminal.type("y")
        wait_until(lambda: chat.made == ["one"])
        terminal.type(CTRL_B)
        terminal.until("going to the background")
        (chat.folder / "go").touch()
        short = joined_session(terminal)
    assert chat.wait_for_result(short)["outcome"] == "waiting"
    assert "waiting for approval" in chat.amplifier("session", "list").stdout
    assert chat.amplifier("session", "approve", short, "--allow").code == 0
    assert chat.made == ["one"]


def test_a_prompt_that_ends_first_stays_in_the_chat(chat: Chat) -> None:
    with chat.open("--approve", "allow", "--max-steps", "1") as terminal:
        begin(chat, terminal)
        terminal.type(CTRL_B)
        terminal.until("going to the background")
        (chat.folder / "go").touch()
        terminal.until("the prompt has ended in the chat")
        terminal.prompt()
        terminal.type(CTRL_D)
        terminal.until("Resume with")
        assert terminal.finish() == 0


def test_ctrl_c_stops_the_prompt_instead(chat: Chat) -> None:
    with chat.open("--approve", "allow") as terminal:
        begin(chat, terminal)
        terminal.type(CTRL_B)
        terminal.until("going to the background")
        terminal.type(CTRL_C)
        terminal.until("stopping after")
        (chat.folder / "go").touch()
        terminal.until("stopped; Enter")
        terminal.prompt()
        terminal.quit()
    assert len(chat.server.completions) == 1


def test_a_session_that_is_not_saved_stays(chat: Chat) -> None:
    with chat.open("--approve", "allow", "--no-save") as terminal:
        begin(chat, terminal)
        terminal.type(CTRL_B)
        terminal.until("nothing goes to the background: the session is not saved")
        (chat.folder / "go").touch()
        terminal.until("all done")
        terminal.prompt()
        terminal.quit()


def going_on(request: Request) -> Any:
    """A model that makes three calls, none of them again, and then answers."""
    messages = json.dumps(request.body["messages"])
    calls = messages.count('"type": "tool_use"')
    return call(f"echo {calls} >> made; sleep 0.2") if calls < 3 else Reply("all done")


def test_a_chat_that_is_killed_on_the_way_loses_and_repeats_nothing(
    tmp_path: Path, scale: Scale
) -> None:
    draw = random.Random(7)
    with ScriptedLLM.running([going_on], repeat_last=True) as server:
        for number in range(scale(2, 30)):
            folder = tmp_path / str(number)
            folder.mkdir()
            chat = Chat(folder, server)
            with chat.open("--approve", "allow", "--session", "killed") as terminal:
                terminal.prompt()
                terminal.type("go" + ENTER)
                wait_until(lambda chat=chat: bool(chat.made))
                terminal.type(CTRL_B)
                time.sleep(draw.uniform(0, 1.2))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(terminal.process.pid, signal.SIGKILL)
            # The run in the background goes on, has just begun, or never began.
            wait_until(lambda chat=chat: is_done(chat))
            assert sorted(chat.made) == sorted({*chat.made})
            assert {*chat.made} <= {"0", "1", "2"}


def is_done(chat: Chat) -> bool:
    """Return True if the answer is there; resume the session if nothing else runs it."""
    if "all done" in chat.amplifier("session", "show", "killed").stdout:
        return True
    resumed = chat.amplifier("run", "--resume", "killed", "Go on.", "--approve=allow")
    assert resumed.code == 0 or "is in use" in resumed.stderr, resumed.stderr
    return resumed.code == 0
