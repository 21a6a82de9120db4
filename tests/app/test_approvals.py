"""Approval: a person where there is one, else the declared policy, else no."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from amplifier_app.approvals import Approvals, Policy
from amplifier_core.approval import ApprovalSystem, ApprovalTimeoutError
from tests.app.plans import mock_plan, module_folder
from tests.support.cli import run_amplifier

OPTIONS = ["Allow", "Deny", "Allow always"]


class Person:
    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, prompt: str, options: list[str], timeout: float) -> str | None:
        self.asked.append(prompt)
        return self.answers.pop(0)


@pytest.mark.parametrize(
    ("policy", "answer", "denied"),
    [("ask", "Deny", 1), ("deny", "Deny", 1), ("allow", "Allow", 0)],
)
async def test_without_a_person_the_policy_answers(
    policy: Policy, answer: str, denied: int
) -> None:
    approvals = Approvals(policy)
    assert isinstance(approvals, ApprovalSystem)
    assert await approvals.request_approval("May I?", OPTIONS, 1, "allow") == answer
    assert len(approvals.denied) == denied


async def test_a_person_is_asked_and_refusing_to_answer_is_no() -> None:
    person = Person("Allow", "Deny", None)
    approvals = Approvals("ask", person)
    answers = [await approvals.request_approval(q, OPTIONS, 1, "deny") for q in "abc"]
    assert answers == ["Allow", "Deny", "Deny"]
    assert (person.asked, approvals.denied) == (["a", "b", "c"], ["b", "c"])


async def test_allow_always_holds_for_the_same_question_only() -> None:
    person = Person("Allow always", "Deny")
    approvals = Approvals("ask", person)
    for question in ("a", "a", "b", "a"):
        await approvals.request_approval(question, OPTIONS, 1, "deny")
    assert person.asked == ["a", "b"]


async def test_nobody_answering_is_a_timeout() -> None:
    async def asleep(prompt: str, options: list[str], timeout: float) -> str | None:
        raise TimeoutError

    approvals = Approvals("ask", asleep)
    with pytest.raises(ApprovalTimeoutError):
        await approvals.request_approval("a", OPTIONS, 0.1, "deny")
    assert approvals.denied == ["a"]


async def test_questions_come_one_at_a_time() -> None:
    at_once = 0

    async def ask(prompt: str, options: list[str], timeout: float) -> str | None:
        nonlocal at_once
        at_once += 1
        assert at_once == 1
        await asyncio.sleep(0)
        at_once -= 1
        return "Allow"

    approvals = Approvals("ask", ask)
    await asyncio.gather(*(approvals.request_approval(q, OPTIONS, 1, "deny") for q in "abcd"))


HOOK = """
__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    coordinator.hooks.register(
        "tool:pre",
        lambda event, data: {"action": "ask_user", "approval_prompt": "write it?"},
        name="ask",
    )
"""


@pytest.mark.parametrize(("flags", "code"), [([], 8), (["--approve", "allow"], 0)])
def test_a_run_without_a_terminal_denies_and_says_so(
    tmp_path: Path, flags: list[str], code: int
) -> None:
    source = str(module_folder(tmp_path, HOOK, "amplifier_module_hooks_ask"))
    call = {"name": "write_file", "input": {"path": "out.txt", "content": "x"}, "id": "c1"}
    plan = mock_plan(
        tmp_path,
        [{"tool_calls": [call]}, "told you"],
        tools=[{"module": "tool-filesystem"}],
        hooks=[{"module": "hooks-ask", "source": source}],
    )
    done = run_amplifier("run", "-f", plan, "go", "--output", "json", *flags, cwd=tmp_path)
    result = json.loads(done.stdout)
    assert (done.code, result["exit_code"]) == (code, code)
    assert (tmp_path / "out.txt").exists() is (code == 0)
    assert [tool["id"] for tool in result["denied"]] == (["c1"] if code else [])
    assert result["response"] == "told you"
    assert ("write it?" in done.stderr) is bool(code)
