"""A loop as published ones are: it answers with the error of a provider, or with the blocks of the model."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import run_amplifier
from tests.support.plans import module_folder

LOOP = '''
"""Answers with the error of a provider instead of raising it."""
__amplifier_module_type__ = "orchestrator"

from amplifier_core import ChatRequest, Message, TextBlock


class Answering:
    async def execute(self, prompt, context, providers, tools, hooks, **kwargs):
        request = ChatRequest(messages=[Message(role="user", content=prompt)])
        try:
            answer = (await providers["mock"].complete(request)).content[0].text
        except Exception as error:
            await hooks.emit("error:provider", {"error_message": str(error)})
            answer = f"Error getting response: {error}"
        if "blocks" in prompt:
            answer = [TextBlock(text="so far")]
        await hooks.emit("orchestrator:complete", {"turn_count": 1, "status": "success"})
        return answer


async def mount(coordinator, config=None):
    await coordinator.mount("orchestrator", Answering())
'''


def run_answering(folder: Path, reply: Any, *options: str, hooks: Any = ()) -> tuple[int, Any]:
    """Run a plan with this loop; return the exit code and the result."""
    plan = {
        "session": {
            "orchestrator": {
                "module": "loop-answering",
                "source": str(module_folder(folder, LOOP, "amplifier_module_answering")),
            },
            "context": "context-simple",
        },
        "providers": [{"module": "provider-mock", "config": {"replies": [reply]}}],
        "hooks": list(hooks),
    }
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan))
    done = run_amplifier("run", "-f", path, "--output", "json", *options, cwd=folder)
    return done.code, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("error", "code"),
    [("InvalidRequestError", 5), ("AuthenticationError", 4), ("RateLimitError", 75)],
)
def test_an_error_that_a_loop_gives_as_its_answer_is_an_error_of_the_run(
    tmp_path: Path, error: str, code: int
) -> None:
    reply = {"error": {"type": error, "message": "too odd"}}
    ended, result = run_answering(tmp_path, reply, "go")
    assert (ended, result["response"]) == (code, "")
    assert "too odd" in result["error"]["message"]


def test_secrets_are_redacted_in_the_answer_of_any_loop(tmp_path: Path) -> None:
    key = "AKIA" + "IOSFODNN7EXAMPLX"
    _, result = run_answering(
        tmp_path, f"It is {key}.", "go", hooks=[{"module": "hooks-redaction"}]
    )
    assert result["response"] == "It is [REDACTED:aws-access-token]."


def test_a_loop_may_answer_with_the_blocks_of_the_model(tmp_path: Path) -> None:
    code, result = run_answering(tmp_path, "never used", "as blocks")
    assert (code, result["response"]) == (0, "so far")
