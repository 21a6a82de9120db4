"""Answering the question about a tool call."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

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
