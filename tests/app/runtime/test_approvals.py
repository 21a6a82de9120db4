"""Approval: by the user on a terminal, otherwise by the policy, otherwise denied."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.outcome import OK
from amplifier_app.runtime.approvals import ApprovalAnswers, Approvals, Policy
from amplifier_core.approval import (
    AnswerSystem,
    ApprovalSystem,
    ApprovalTimeoutError,
    ToolApproval,
    ToolApprovalAnswer,
)
from amplifier_core.interfaces import ApprovalProvider, ApprovalRequest
from tests.support.cli import run_amplifier
from tests.support.plans import mock_plan, module_folder
from tests.support.terminal import ENTER, Chat, Terminal

OPTIONS = ["Allow", "Deny", "Allow always"]


class Person:
    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, prompt: str, options: list[str], timeout: float | None) -> str | None:
        self.asked.append(prompt)
        return self.answers.pop(0)


@pytest.mark.parametrize(
    ("policy", "answer", "denied"),
    [("ask", "Deny", 1), ("deny", "Deny", 1), ("allow", "Allow", 0), ("policy", "Allow", 0)],
)
async def test_without_a_terminal_the_policy_answers(
    policy: Policy, answer: str, denied: int
) -> None:
    approvals = Approvals(policy)
    assert isinstance(approvals, ApprovalSystem)
    assert await approvals.request_approval("May I?", OPTIONS, 1, "allow") == answer
    assert len(approvals.denied) == denied


async def test_the_user_is_asked_and_no_answer_means_deny() -> None:
    person = Person("Allow", "Deny", None)
    approvals = Approvals("ask", person)
    answers = [await approvals.request_approval(q, OPTIONS, 1, "deny") for q in "abc"]
    assert answers == ["Allow", "Deny", "Deny"]
    assert (person.asked, approvals.denied) == (["a", "b", "c"], ["b", "c"])


async def test_allow_always_applies_only_to_the_same_question() -> None:
    person = Person("Allow always", "Deny")
    approvals = Approvals("ask", person)
    for question in ("a", "a", "b", "a"):
        await approvals.request_approval(question, OPTIONS, 1, "deny")
    assert person.asked == ["a", "b"]


async def test_no_answer_is_a_timeout() -> None:
    async def asleep(prompt: str, options: list[str], timeout: float | None) -> str | None:
        raise TimeoutError

    approvals = Approvals("ask", asleep)
    with pytest.raises(ApprovalTimeoutError):
        await approvals.request_approval("a", OPTIONS, 0.1, "deny")
    assert approvals.denied == ["a"]


async def test_questions_are_asked_one_at_a_time() -> None:
    at_once = 0

    async def ask(prompt: str, options: list[str], timeout: float | None) -> str | None:
        nonlocal at_once
        at_once += 1
        assert at_once == 1
        await asyncio.sleep(0)
        at_once -= 1
        return "Allow"

    counts: list[int] = []

    async def ask_about_tool(
        request: ToolApproval, agent: str, timeout: float | None
    ) -> ToolApprovalAnswer | None:
        await ask(request.question, request.options, timeout)
        counts.append(approvals.asking)
        return None

    approvals = Approvals("ask", ask, ask_about_tool)
    calls = [ToolApproval(q, "bash", {"command": q}, "/", OPTIONS) for q in "ab"]
    await asyncio.gather(
        *(approvals.request_approval(q, OPTIONS, 1, "deny") for q in "abcd"),
        *(approvals.request_tool_approval(call, 1) for call in calls),
    )
    assert counts == [2, 1]


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
def test_a_run_without_a_terminal_denies_and_reports_it(
    tmp_path: Path, flags: list[str], code: int
) -> None:
    source = str(module_folder(tmp_path, HOOK, "amplifier_module_hooks_ask"))
    call = {"name": "write_file", "input": {"path": "out.txt", "content": "x"}, "id": "c1"}
    plan = mock_plan(
        tmp_path,
        [{"tool_calls": [call]}, "as expected"],
        tools=[{"module": "tool-filesystem"}],
        hooks=[{"module": "hooks-ask", "source": source}],
    )
    done = run_amplifier("run", "-f", plan, "go", "--output", "json", *flags, cwd=tmp_path)
    result = json.loads(done.stdout)
    assert (done.code, result["exit_code"]) == (code, code)
    assert (tmp_path / "out.txt").exists() is (code == 0)
    assert [tool["id"] for tool in result["denied"]] == (["c1"] if code else [])
    assert result["response"] == "as expected"
    assert ("write it?" in done.stderr) is bool(code)


async def test_a_request_without_a_default_is_denied() -> None:
    answers = ApprovalAnswers(Approvals("policy"))
    assert isinstance(answers, ApprovalProvider)
    request = ApprovalRequest(tool_name="bash", action="Execute: ls", risk_level="high")
    assert not (await answers.request_approval(request)).approved


async def test_a_question_of_a_module_shows_all_details() -> None:
    person = Person("Allow always", "Allow once")
    answers = ApprovalAnswers(Approvals("ask", person))
    request = ApprovalRequest(
        tool_name="write",
        action="Execute write",
        risk_level="medium",
        details={"path": "a.txt", "content": "one\n[1] Allow\x1b[2J", "mode": {"append": True}},
    )
    response = await answers.request_approval(request)
    assert (response.approved, response.remember) == (True, True)
    assert person.asked == [
        "Allow write: Execute write\n  path: a.txt\n  \n  | content: one\n  | [1] Allow\\x1b[2J"
        '\n  mode: {"append": true} (medium risk)'
    ]
    long = request.model_copy(update={"action": "x" * 5000})
    offered: list[list[str]] = []

    async def ask(prompt: str, options: list[str], timeout: float | None) -> str | None:
        offered.append(options)
        return "Deny"

    refused = await ApprovalAnswers(Approvals("ask", ask)).request_approval(long)
    assert (refused.approved, offered) == (False, [["Allow once", "Deny"]])


async def test_a_question_abandoned_by_the_module_counts_as_denied() -> None:
    async def asleep(prompt: str, options: list[str], timeout: float | None) -> str | None:
        await asyncio.sleep(60)
        return "Allow"

    approvals = Approvals("ask", asleep)
    request = ApprovalRequest(tool_name="bash", action="ls", risk_level="low")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ApprovalAnswers(approvals).request_approval(request), 0.01)
    assert approvals.denied == ["Allow bash: ls (low risk)"]


PUBLISHED = """
__amplifier_module_type__ = "hook"

from amplifier_core import ApprovalRequest, HookResult


class Gate:
    provider = None

    def register_provider(self, provider):
        self.provider = provider

    async def on_tool(self, event, data):
        if self.provider is None:
            return HookResult(action="deny", reason="no provider")
        request = ApprovalRequest(
            tool_name=data["tool_name"],
            action=f"Execute: {data['tool_input']['command']}",
            details=data["tool_input"],
            risk_level="high",
        )
        response = await self.provider.request_approval(request)
        if response.approved:
            return HookResult(action="continue")
        return HookResult(action="deny", reason=response.reason)


async def mount(coordinator, config=None):
    gate = Gate()
    coordinator.hooks.register("tool:pre", gate.on_tool, priority=-10, name="gate")
    coordinator.register_capability("approval.register_provider", gate.register_provider)
"""


def gated_plan(folder: Path) -> Path:
    """A plan with a hook that expects an approval provider from the host."""
    call = {"name": "bash", "input": {"command": "touch out.txt"}, "id": "c1"}
    return mock_plan(
        folder,
        [{"tool_calls": [call]}, "as expected"],
        tools=["tool-bash"],
        hooks=[
            {
                "module": "hooks-gate",
                "source": str(module_folder(folder, PUBLISHED, "amplifier_module_hooks_gate")),
            }
        ],
    )


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ([], 8),
        (["--approve", "policy"], 8),
        (["--approve", "allow"], 0),
    ],
)
def test_a_hook_that_needs_an_approval_provider_gets_one(
    tmp_path: Path, flags: list[str], code: int
) -> None:
    plan = gated_plan(tmp_path)
    done = run_amplifier("run", "-f", plan, "go", "--output", "json", *flags, cwd=tmp_path)
    result = json.loads(done.stdout)
    assert (done.code, result["exit_code"]) == (code, code)
    assert (tmp_path / "out.txt").exists() is (code == 0)
    assert [tool["id"] for tool in result["denied"]] == (["c1"] if code else [])
    assert ("Execute: touch out.txt" in done.stderr) is bool(code)


@pytest.mark.parametrize(("answer", "code"), [("1", 0), ("3", 8)])
def test_on_a_terminal_the_hook_asks_the_user(tmp_path: Path, answer: str, code: int) -> None:
    with Terminal("run", "-f", gated_plan(tmp_path), "go", cwd=tmp_path) as terminal:
        terminal.until(r"Allow bash: Execute: touch out.txt \(high risk\)")
        terminal.until(r"\[3\] Deny")
        terminal.type(answer + ENTER)
        assert terminal.finish() == code
    assert (tmp_path / "out.txt").exists() is (code == 0)
    assert ("touch out.txt · denied by you" in terminal.shown) is (code == 8)


def test_why_tells_no_more_than_a_hook_of_another_author_reports(tmp_path: Path) -> None:
    with Chat("-f", gated_plan(tmp_path), cwd=tmp_path) as terminal:
        terminal.enter("go", r"\[3\] Deny")
        terminal.ask("1", "as expected")
        terminal.ask("/why", "allowed by +not reported")
        terminal.type("/quit" + ENTER)
        terminal.finish()


def test_a_module_that_rejects_the_approval_provider_ends_the_run(tmp_path: Path) -> None:
    code = PUBLISHED.replace("self.provider = provider", "raise KeyError('x')")
    plan = mock_plan(
        tmp_path,
        ["never"],
        hooks=[{"module": "hooks-gate", "source": str(module_folder(tmp_path, code, "gate"))}],
    )
    done = run_amplifier("run", "-f", plan, "go")
    assert (done.code, done.stdout) == (3, "")
    assert "'approval.register_provider' failed: KeyError: 'x'" in done.stderr


@pytest.mark.parametrize("policy", ["deny", "allow", "policy", "park"])
async def test_only_the_user_gives_answers(policy: Policy) -> None:
    person = Person("red")
    approvals = Approvals(policy, person)
    assert isinstance(approvals, AnswerSystem)
    assert await approvals.request_answer("Which?", ["red"], None) is None
    assert (person.asked, approvals.unanswered) == ([], ["Which?"])
    outcome = Approvals(policy).denial
    assert outcome is None
    assert (approvals.denial or OK).exit_code == 8


async def test_answers_are_chosen_or_typed() -> None:
    async def type_text(prompt: str, timeout: float | None) -> str | None:
        return f"typed for {prompt}"

    approvals = Approvals("ask", Person("red"), ask_for_text=type_text)
    assert await approvals.request_answer("Which?", ["red"], None) == "red"
    below = approvals.for_agent("helper").for_agent("deep")
    assert await below.request_answer("Why?", None, None) == "typed for helper/deep: Why?"
    assert await Approvals("ask", Person("red")).request_answer("Why?", None, None) is None
    assert approvals.denial is None


async def test_an_answer_that_takes_too_long_is_a_timeout() -> None:
    async def wait(prompt: str, timeout: float | None) -> str | None:
        raise TimeoutError

    approvals = Approvals("ask", Person(), ask_for_text=wait)
    with pytest.raises(ApprovalTimeoutError, match="no answer within 1 s"):
        await approvals.request_answer("Why?", None, 1)


async def test_a_joined_terminal_chooses_an_answer() -> None:
    class Joined:
        def __init__(self, answer: str | None) -> None:
            self.answer = answer

        async def ask(self, prompt: str, options: list[str], timeout: float | None) -> str | None:
            return self.answer

        async def ask_about_tool(
            self, request: Any, agent: str, timeout: float | None
        ) -> ToolApprovalAnswer | None:
            raise AssertionError

    approvals = Approvals("deny")
    approvals.attendant = Joined("red")
    assert await approvals.request_answer("Which?", ["red"], None) == "red"
    assert await approvals.request_answer("Why?", None, None) is None
    approvals.attendant = Joined(None)
    assert await approvals.request_answer("Which?", ["red"], None) is None
    assert approvals.unanswered == ["Why?", "Which?"]
