"""Modules that fail during a turn: the message names the module, the line and what to do."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run_amplifier
from tests.support.plans import mock_plan, module_folder

LOOP = """
__amplifier_module_type__ = "orchestrator"


class Loop:
    async def execute(self, prompt, context, providers, tools, hooks, **kwargs):
        await context.add_message({"role": "user", "content": prompt})
        messages = await context.get_messages_for_request()
        response = await next(iter(providers.values())).complete({"messages": messages})
        BODY


async def mount(coordinator, config=None):
    await coordinator.mount("orchestrator", Loop())
"""

CONTEXT = """
__amplifier_module_type__ = "context"


class Memory:
    def __init__(self):
        self.messages = []

    async def add_message(self, message):
        self.messages.append(message)

    async def get_messages_for_request(self, token_budget=None, provider=None):
        return self.messages

    async def get_messages(self):
        BODY

    async def set_messages(self, messages):
        self.messages = list(messages)

    async def clear(self):
        self.messages = []


async def mount(coordinator, config=None):
    await coordinator.mount("context", Memory())
"""

PROVIDER = """
__amplifier_module_type__ = "provider"

from amplifier_core import ProviderInfo, ChatResponse, TextBlock


class Backend:
    name = "theirs"

    def get_info(self):
        return ProviderInfo(id="theirs", display_name="Theirs")

    async def list_models(self):
        return []

    async def complete(self, request, **kwargs):
        BODY

    def parse_tool_calls(self, response):
        return []


async def mount(coordinator, config=None):
    await coordinator.mount("providers", Backend(), name="theirs")
"""


def foreign(folder: Path, module_id: str, code: str, body: str) -> dict[str, str]:
    """A plan entry for a module in its own folder."""
    package = "amplifier_module_" + module_id.replace("-", "_")
    source = module_folder(folder, code.replace("BODY", body), package)
    return {"module": module_id, "source": str(source)}


def fails(plan: Path, code: int, *said: str) -> None:
    done = run_amplifier("run", "-f", plan, "go", "--output", "json")
    result: dict[str, Any] = json.loads(done.stdout)
    assert (done.code, result["exit_code"]) == (code, code), done.stderr
    for text in (*said, f"amplifier module validate {plan.parent}/"):
        assert text in done.stderr


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return None", "execute() returned None, expected the answer as a string"),
        ("raise KeyError('x')", "raised KeyError: 'x'"),
    ],
)
def test_a_failing_orchestrator_is_named(tmp_path: Path, body: str, said: str) -> None:
    loop = foreign(tmp_path, "loop-theirs", LOOP, body)
    plan = mock_plan(tmp_path, ["ok"], session={"orchestrator": loop, "context": "context-simple"})
    place = "amplifier_module_loop_theirs/__init__.py, line "
    fails(plan, 3, "orchestrator 'loop-theirs'", said, place)


@pytest.mark.parametrize(
    "body",
    ["import sys; sys.stdout.close(); sys.stderr.close()", "import sys; sys.stdout = None"],
    ids=["closes them", "removes stdout"],
)
def test_the_answer_is_written_although_a_module_changes_the_standard_streams(
    tmp_path: Path, body: str
) -> None:
    code = "async def mount(coordinator, config=None):\n    BODY\n"
    hook = foreign(tmp_path, "hooks-theirs", code, f"{body}\n    return lambda: None")
    plan = mock_plan(tmp_path, ["the answer"], hooks=[hook])
    done = run_amplifier("run", "-f", plan, "go")
    assert (done.code, done.stdout, done.stderr) == (0, "the answer\n", "")


def test_what_a_module_prints_at_exit_is_not_part_of_the_answer(tmp_path: Path) -> None:
    code = "import atexit\natexit.register(print, 'BYE')\n\nasync def mount(coordinator, config=None):\n    BODY\n"
    hook = foreign(tmp_path, "hooks-theirs", code, "return lambda: None")
    plan = mock_plan(tmp_path, ["the answer"], hooks=[hook])
    done = run_amplifier("run", "-f", plan, "go")
    assert (done.code, done.stdout, done.stderr) == (0, "the answer\n", "BYE\n")


def test_a_context_that_does_not_accept_a_call_is_named(tmp_path: Path) -> None:
    code = CONTEXT.replace("token_budget=None, provider=None", "provider=None")
    context = foreign(tmp_path, "context-theirs", code, "return self.messages")
    plan = mock_plan(tmp_path, ["ok"], session={"orchestrator": "loop-basic", "context": context})
    fails(plan, 3, "context 'context-theirs' raised TypeError", "argument 'token_budget'")


def test_a_cancellation_that_a_module_raises_itself_is_named(tmp_path: Path) -> None:
    body = "import asyncio; raise asyncio.CancelledError()"
    loop = foreign(tmp_path, "loop-theirs", LOOP, body)
    plan = mock_plan(tmp_path, ["ok"], session={"orchestrator": loop, "context": "context-simple"})
    done = run_amplifier("run", "-f", plan, "go")
    assert done.code == 3
    assert "orchestrator 'loop-theirs' raised CancelledError\n" in done.stderr


def test_a_module_that_ends_the_program_has_failed(tmp_path: Path) -> None:
    loop = foreign(tmp_path, "loop-theirs", LOOP, "import os; os._exit(0)")
    plan = mock_plan(tmp_path, ["ok"], session={"orchestrator": loop, "context": "context-simple"})
    done = run_amplifier("run", "-f", plan, "go", "--output", "json")
    assert done.code == 3, done
    assert "orchestrator 'loop-theirs' raised SystemExit: 0" in done.stderr
    assert json.loads(done.stdout)["outcome"] == "module"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return None", "get_messages() returned None, expected a list of messages"),
        ("raise RuntimeError('disk gone')", "raised RuntimeError: disk gone"),
    ],
)
def test_a_failing_context_is_named(tmp_path: Path, body: str, said: str) -> None:
    context = foreign(tmp_path, "context-theirs", CONTEXT, body)
    plan = mock_plan(tmp_path, ["ok"], session={"orchestrator": "loop-basic", "context": context})
    place = "amplifier_module_context_theirs/__init__.py, line "
    fails(plan, 3, "context 'context-theirs'", said, place)


@pytest.mark.parametrize("orchestrator", ["loop-basic", "loop-theirs"])
def test_a_failing_provider_is_named_with_any_loop(tmp_path: Path, orchestrator: str) -> None:
    loop: Any = orchestrator
    if orchestrator == "loop-theirs":
        loop = foreign(tmp_path, orchestrator, LOOP, "return response.content[0].text")
    provider = foreign(tmp_path, "provider-theirs", PROVIDER, "raise RuntimeError('backend down')")
    plan = mock_plan(
        tmp_path,
        [],
        session={"orchestrator": loop, "context": "context-simple"},
        providers=[provider],
    )
    place = "amplifier_module_provider_theirs/__init__.py, line "
    fails(plan, 5, "provider 'theirs' raised RuntimeError: backend down", place)


OTHER_SDK = """import pexpect
        from amplifier_core.llm_errors import LLMError
        from amplifier_core.utils.retry import retry_with_backoff

        async def ask():
            print("asked", file=__import__("sys").stderr)
            try:
                pexpect.spawn("true", colour=True)
            except Exception as error:
                raise LLMError(str(error), provider="theirs", retryable=True) from error

        return await retry_with_backoff(ask)"""
"""A provider that takes every exception for a temporary failure."""


@pytest.mark.parametrize("orchestrator", ["loop-basic", "loop-theirs"])
def test_a_provider_that_misuses_a_package_is_not_retried(
    tmp_path: Path, orchestrator: str
) -> None:
    loop: Any = orchestrator
    if orchestrator == "loop-theirs":
        loop = foreign(tmp_path, orchestrator, LOOP, "return response.content[0].text")
    provider = foreign(tmp_path, "provider-theirs", PROVIDER, OTHER_SDK)
    project = '[project]\nname = "theirs"\nversion = "1"\ndependencies = ["pexpect>=3.1"]\n'
    Path(provider["source"], "pyproject.toml").write_text(project, encoding="utf-8")
    plan = mock_plan(
        tmp_path,
        [],
        session={"orchestrator": loop, "context": "context-simple"},
        providers=[provider, "provider-mock"],
        fallbacks=["provider-mock"],
    )
    done = run_amplifier("run", "-f", plan, "go", "--output", "json")
    result: dict[str, Any] = json.loads(done.stdout)
    assert (done.code, result["outcome"]) == (3, "module"), done.stderr
    assert done.stderr.count("asked") == 1
    assert "provider 'theirs' raised TypeError: spawn.__init__() got an unexpected" in done.stderr
    assert "amplifier_module_provider_theirs/__init__.py, line " in done.stderr
    assert "The version in use is pexpect 4." in done.stderr
    assert 'add to its entry in the plan: requires: ["pexpect<4"]' in done.stderr


@pytest.mark.parametrize(
    ("loop", "body", "given"),
    [
        ("loop-basic", "return None", "None"),
        ("loop-streaming", "return 'hi'", "a value of"),
        ("loop-events", "return None", "None"),
    ],
)
def test_a_provider_that_returns_an_invalid_response_is_named(
    tmp_path: Path, loop: str, body: str, given: str
) -> None:
    provider = foreign(tmp_path, "provider-theirs", PROVIDER, body)
    session = {"orchestrator": loop, "context": "context-simple"}
    plan = mock_plan(tmp_path, [], session=session, providers=[provider])
    place = "amplifier_module_provider_theirs/__init__.py, line "
    fails(plan, 5, f"provider 'theirs': complete() returned {given}", place)


def test_a_context_that_returns_no_messages_is_named(tmp_path: Path) -> None:
    code = CONTEXT.replace("return self.messages", "BODY", 1).replace(
        "        BODY\n\n    async def set_", "        return self.messages\n\n    async def set_"
    )
    context = foreign(tmp_path, "context-theirs", code, "return None")
    plan = mock_plan(tmp_path, ["ok"], session={"orchestrator": "loop-basic", "context": context})
    place = "amplifier_module_context_theirs/__init__.py, line "
    said = "get_messages_for_request() returned None, expected a list of messages"
    fails(plan, 3, said, place)
