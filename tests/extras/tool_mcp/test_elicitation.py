"""Questions of servers to the user: forms, pages to open, and no one who could answer."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.extras.tool_mcp.support import HERE, Session, session
from tests.extras.tool_mcp.test_in_a_run import environment, write_plan
from tests.support.cli import run_amplifier
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall
from tests.support.results import read_text, to_exception
from tests.support.terminal import CTRL_D, ENTER, Terminal
from tests.support.warm_program import script_command

ASKING = HERE / "asking_server.py"
# A script that is cloned cannot be started in a sandbox.
UNBOXED = ("--sandbox", "off")
PAGE = "https://a.example/sign?id=1"
Answer = str | None | Callable[[], Awaitable[str]]


class Person:
    """Answers in order, and then no more."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, list[str] | None]] = []

    async def request_answer(
        self, prompt: str, options: list[str] | None, timeout: float | None
    ) -> str | None:
        self.asked.append((prompt, options))
        answer = self.answers.pop(0) if self.answers else None
        return await answer() if callable(answer) else answer


def asking(command: list[str], **settings: Any) -> dict[str, Any]:
    program, *args = command
    return {"ask": {"command": program, "args": args, "required": True, **settings}}


@asynccontextmanager
async def answered_by(person: Any, *arguments: str, **settings: Any) -> AsyncGenerator[Session]:
    async with session(asking(script_command(ASKING, *arguments), **settings)) as mcp:
        mcp.coordinator.approval_system = person
        yield mcp


@pytest.mark.parametrize("is_old", [False, True], ids=["2026-07-28", "2025-11-25"])
async def test_a_form_is_asked_field_by_field(tmp_path: Path, is_old: bool) -> None:
    async def think() -> str:
        await asyncio.sleep(2)
        return "Ada"

    # Longer than a call may take: the user's time does not count.
    person = Person("Answer", think, "many", "10", "5", "Yes", "red", "")
    arguments = [str(tmp_path / "mark")] if is_old else []
    async with answered_by(person, *arguments, timeout=1.5) as mcp:
        result = json.loads(read_text(await mcp.call("ask_order")))
        assert result == {
            **{"name": "Ada", "count": 5, "wrapped": True},
            **{"colour": "red", "note": None},
        }
        assert mcp.reported("tool:unanswered") == []
        person.answers.append("Open the page")
        assert read_text(await mcp.call("ask_sign", url=PAGE)) == "answer: accept"
    questions = [prompt for prompt, _ in person.asked]
    assert questions[0] == (
        "The MCP server ask asks:\n  | What would you like?\n  | [1] Not a choice\n"
        "It wants to know: Your name, Count, Wrapped, Colour, Note"
    )
    assert questions[1] == "Your name (for ask)"
    assert questions[2].endswith("Empty for: 3")
    assert questions[3].endswith("Not valid: expected a whole number")
    assert questions[4].endswith("Not valid: 10 is greater than the maximum of 9")
    assert person.asked[5][1] == ["Yes", "No", "Decline"]
    assert person.asked[6][1] == ["green", "red", "(no answer)", "Decline"]
    assert questions[7] == "Note (for ask)\n  | For the shop\nEmpty for no answer."
    assert f"a page of a.example:\n  | {PAGE}\n  | Sign here" in questions[8]


async def test_a_form_without_answers_is_declined_and_reported() -> None:
    unanswered: list[list[Answer]] = [[], ["Decline"], [None], ["Answer", None], ["Answer", *"xxx"]]
    async with answered_by(None) as mcp:
        for number, answers in enumerate(unanswered, 1):
            mcp.coordinator.approval_system = Person(*answers)
            error = to_exception(await mcp.call("ask_order"))
            assert "it was a decline" in error["message"], answers
            reports = mcp.reported("tool:unanswered")
            assert len(reports) == number, answers
            assert reports[-1]["tool_name"] == "mcp_ask_order"
            assert reports[-1]["reason"].startswith("declined what ask asked: What would you like?")


async def test_a_page_that_a_call_needs_is_asked_about_first(tmp_path: Path) -> None:
    person = Person("Open the page", "Decline")
    async with answered_by(person, str(tmp_path / "mark")) as mcp:
        for then in ("Call it again when", "The user declined"):
            error = to_exception(await mcp.call("ask_pay", url=PAGE))
            assert f"open a page of the server first: Pay here. {then}" in error["message"]
    assert PAGE in person.asked[0][0]


async def test_without_a_system_that_asks_the_answer_is_no() -> None:
    async with answered_by(None) as mcp:
        assert read_text(await mcp.call("ask_sign", url=PAGE)) == "answer: decline"
        assert len(mcp.reported("tool:unanswered")) == 1


async def test_only_plain_https_pages_are_opened() -> None:
    person = Person("Open the page")
    urls = (
        "http://a.example/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://ä.example/",
        "https://bank.example@a.example/",
    )
    async with answered_by(person) as mcp:
        for url in urls:
            assert read_text(await mcp.call("ask_sign", url=url)) == "answer: decline", url
    assert person.asked == []


def test_a_question_that_no_one_can_answer_is_a_denial(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, asking(script_command(ASKING)))
    calls = [ToolCall("mcp_ask_sign", {"url": PAGE}, id="call-1")]
    with ScriptedLLM.running([Reply(tool_calls=calls), "done"]) as model:
        done = run_amplifier(
            *("run", "--plan", plan, "--output", "json", "--approve", "allow", *UNBOXED, "go"),
            env=environment(model),
        )
    result = json.loads(done.stdout)
    assert (done.code, result["outcome"], result["response"]) == (8, "denied", "done")
    [denied] = result["denied"]
    assert (denied["id"], denied["name"]) == ("call-1", "mcp_ask_sign")
    assert denied["reason"] == "declined what ask asked: Sign here"
    assert "no one could answer: The MCP server ask asks you to open a page" in done.stderr


def test_the_user_answers_on_the_terminal(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, asking(script_command(ASKING)))
    calls = [ToolCall("mcp_ask_order", {})]
    script = [Reply(tool_calls=calls), "ordered", Reply(tool_calls=calls), "left it"]
    with (
        ScriptedLLM.running(script) as model,
        Terminal(*("--plan", plan, *UNBOXED), env=environment(model), cwd=tmp_path) as chat,
    ):
        chat.prompt()
        chat.type(f"go{ENTER}")
        chat.until("It wants to know: Your name")
        chat.type(f"1{ENTER}")
        for question, answer in (
            ("Your name .for ask.", "Ada"),
            ("Empty for: 3", ""),
            ("Wrapped .for ask.", "2"),
            ("Colour .for ask.", "1"),
            ("Empty for no answer", "soon"),
        ):
            chat.until(question)
            chat.type(f"{answer}{ENTER}")
        chat.until("ordered")
        chat.prompt()
        chat.type(f"again{ENTER}")
        chat.until("It wants to know: Your name")
        chat.type(CTRL_D)
        chat.until("left it")
        first, second = (model.completions[at].body["messages"][-1] for at in (1, 3))
    [result] = first["content"]
    assert '"count":3,"wrapped":false,"colour":"green","note":"soon"' in str(result["content"])
    assert "it was a decline" in json.dumps(second)
