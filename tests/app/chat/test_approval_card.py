"""Answering the question about a tool call."""

import asyncio
import os
import select
import sys

import pytest
from prompt_toolkit.input.vt100 import raw_mode

from amplifier_app.chat import approval_card
from amplifier_app.chat.approval_card import ask_about_tool
from amplifier_app.chat.ask import Stopped
from amplifier_core.approval import ToolApproval

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")


@pytest.mark.parametrize("is_early", [False, True])
def test_a_terminal_that_vanishes_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, is_early: bool
) -> None:
    ours, theirs = os.openpty()

    async def ask() -> None:
        request = ToolApproval("Run `ls`?", "bash", {"command": "ls"}, "/", ["Allow once", "Deny"])
        if is_early:
            os.close(ours)
        asked = ask_about_tool(theirs, request, "", None, count_waiting=lambda: 2)
        question = asyncio.create_task(asked)
        if not is_early:
            shown = b""
            while b"2 more questions waiting" not in shown:
                shown += await asyncio.to_thread(os.read, ours, 4096)
            os.close(ours)
        with pytest.raises(Stopped):
            await question

    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        # A loop of its own: what reads the terminal ends with it.
        asyncio.run(ask())


def test_the_words_that_allowed_commands_start_with_are_edited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = os.openpty()
    starts = [f"commands that start with {words}" for words in ("git log -p", "git log")]
    options = ["Allow once", "Allow for this session", "Deny"]
    command, ranges = {"command": "git log -p"}, ["exactly this command", *starts]
    request = ToolApproval("Run it?", "bash", command, "/", options, ranges=ranges)

    async def shown(*texts: str) -> None:
        seen = ""
        while not all(text in seen for text in texts):
            seen += (await asyncio.to_thread(os.read, ours, 4096)).decode(errors="replace")

    async def ask() -> None:
        question = asyncio.create_task(ask_about_tool(theirs, request, "", None))
        await shown("yes to exactly this command")
        for typed, expected in (("rm", "does not start with"), ("git  log", f"to {starts[1]}")):
            os.write(ours, b"e")
            await shown("Yes to", "git log -p")
            os.write(ours, f"\x15{typed}\r".encode())
            await shown(expected, "more")
        os.write(ours, b"p")
        answer = await question
        assert answer is not None
        assert (answer.option, answer.range) == (options[1], 2)

    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        asyncio.run(asyncio.wait_for(ask(), 30))
    os.close(ours)


@pytest.mark.parametrize("after_answer", [True, False])
def test_ctrl_c_between_two_questions_stops(
    monkeypatch: pytest.MonkeyPatch, after_answer: bool
) -> None:
    """It is a key there, not a signal: read with the answer, or waiting for the next reader."""
    ours, theirs = os.openpty()
    request = ToolApproval("Run `ls`?", "bash", {"command": "ls"}, "/", ["Allow once", "Deny"])

    async def ask() -> None:
        question = asyncio.create_task(ask_about_tool(theirs, request, "", None))
        shown = b""
        while b"more" not in shown:
            shown += await asyncio.to_thread(os.read, ours, 4096)
        os.write(ours, b"\x1b[A\x04\x03" if after_answer else b"\x04")
        await question
        with raw_mode(theirs):
            os.write(ours, b"typed\x03")
            select.select([theirs], [], [])  # the terminal takes it as it is in this mode
        await ask_about_tool(theirs, request, "", None)

    stdin = os.dup(0)
    os.dup2(theirs, 0)
    try:
        with os.fdopen(theirs) as terminal:
            monkeypatch.setattr("sys.stdin", terminal)
            with pytest.raises(Stopped):
                asyncio.run(asyncio.wait_for(ask(), 30))
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
        os.close(ours)


def test_an_answer_that_is_stopped_is_not_decided_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approval_card, "WORD_SECONDS", 0.3)
    ours, theirs = os.openpty()
    request = ToolApproval("Run `ls`?", "bash", {"command": "ls"}, "/", ["Allow once", "Deny"])
    problems: list[object] = []

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context["message"]))
        question = asyncio.create_task(ask_about_tool(theirs, request, "", None))
        shown = b""
        while b"more" not in shown:
            shown += await asyncio.to_thread(os.read, ours, 4096)
        os.write(ours, b"n\x03")
        with pytest.raises(Stopped):
            await question
        await asyncio.sleep(0.6)

    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        asyncio.run(asyncio.wait_for(ask(), 30))
    os.close(ours)
    assert problems == []
