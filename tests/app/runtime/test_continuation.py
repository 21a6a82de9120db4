"""What is sent to go on with a prompt that ended too early."""

from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_app.runtime.continuation import prompt_to_continue
from amplifier_app.sessions.conversation import CONTINUE
from amplifier_modules.context_simple.manager import SimpleContextManager

BEFORE = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "answer"}]
PROMPT = {"role": "user", "content": "second"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "1", "tool": "x", "arguments": {}}],
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "done"}
GO_ON = {"role": "user", "content": CONTINUE}


@pytest.mark.parametrize(
    ("messages", "prompt", "sent", "left"),
    [
        ([PROMPT], "second", "second", 0),
        ([*BEFORE, PROMPT], "second", "second", 2),
        ([*BEFORE, PROMPT, GO_ON], "second", "second", 2),
        ([*BEFORE], "second", "second", 2),  # it did not get into the conversation
        ([*BEFORE, PROMPT, {"role": "assistant", "content": "par"}], "second", CONTINUE, 4),
        ([*BEFORE, PROMPT, CALL, RESULT], "second", CONTINUE, 5),
        ([*BEFORE, PROMPT, CALL, RESULT, GO_ON], "second", CONTINUE, 5),
        ([*BEFORE, PROMPT, CALL, RESULT, GO_ON], CONTINUE, CONTINUE, 5),
    ],
)
async def test_an_unanswered_prompt_is_sent_again_and_a_begun_one_continued(
    messages: list[dict[str, Any]], prompt: str, sent: str, left: int
) -> None:
    context = SimpleContextManager()
    await context.set_messages(messages)
    config = {"session": {"context": "context-simple"}}
    coordinator = SimpleNamespace(get=lambda name: context)
    session: Any = SimpleNamespace(
        context=context,
        session=SimpleNamespace(coordinator=coordinator, config=config),
        steering=SimpleNamespace(sent=[]),
    )
    assert await prompt_to_continue(session, prompt) == sent
    # A prompt that is sent again was counted before.
    assert getattr(session, "goes_on", False) == (prompt in [m["content"] for m in messages[left:]])
    assert await context.get_messages() == messages[:left]
