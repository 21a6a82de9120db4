"""Conversations for the tests of context managers."""

from typing import Any

from hypothesis import strategies as st

from amplifier_core.llm_errors import ProviderUnavailableError
from amplifier_core.message_models import ChatRequest, ChatResponse, TextBlock, Usage
from amplifier_core.models import ProviderInfo
from amplifier_modules._shared.providers.tokens import estimate_message

STRATEGIES = ("truncate", "summarize", "importance")


class Summariser:
    """A provider that answers with texts, or fails for None; the last one repeats.

    Attributes:
        requests: What it was asked.
    """

    name = "summariser"

    def __init__(self, *answers: str | None, window: int = 0) -> None:
        self.requests: list[ChatRequest] = []
        self._answers = list(answers) or ["what happened"]
        self._window = window

    def get_info(self) -> ProviderInfo:
        window = {"context_window": self._window, "max_output_tokens": 500} if self._window else {}
        return ProviderInfo(id="s", display_name="S", defaults=window)

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        self.requests.append(request)
        text = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if text is None:
            raise ProviderUnavailableError("the service is down", provider=self.name)
        usage = Usage(input_tokens=70, output_tokens=7, total_tokens=77)
        return ChatResponse(content=[TextBlock(text=text)], usage=usage)


def size(messages: list[Any]) -> int:
    return sum(estimate_message(message) for message in messages)


def filler(turns: int, start: int = 0) -> list[dict[str, Any]]:
    """Turns of 208 estimated tokens."""
    messages: list[dict[str, Any]] = []
    for number in range(start, start + turns):
        messages += [user(f"{number:04}" + "p" * 396), assistant(f"{number:04}" + "a" * 396)]
    return messages


def is_summary(message: dict[str, Any]) -> bool:
    return (message.get("metadata") or {}).get("kind") == "summary"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def asks(*ids: str, text: str | None = None) -> dict[str, Any]:
    """An assistant message with calls in the form of a list."""
    calls = [
        {"id": i, "type": "function", "function": {"name": "read", "arguments": "{}"}} for i in ids
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def asks_in_blocks(*ids: str) -> dict[str, Any]:
    """An assistant message with calls as blocks."""
    blocks = [{"type": "tool_call", "id": i, "name": "read", "input": {}} for i in ids]
    return {"role": "assistant", "content": blocks}


def answers(call_id: str, text: str = "out") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def answers_in_blocks(call_id: str, text: str = "out") -> dict[str, Any]:
    block = {"type": "tool_result", "tool_call_id": call_id, "output": text}
    return {"role": "function", "content": [block]}


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What loops store: turns with parallel calls in both forms, some of them interrupted."""
    messages: list[dict[str, Any]] = []
    sizes = st.sampled_from([1, 10, 100, 3000])
    if draw(st.booleans()):
        messages.append({"role": "system", "content": "be brief"})
    for turn in range(draw(st.integers(0, 6))):
        messages.append(user(f"prompt {turn} " + "p" * draw(sizes)))
        for step in range(draw(st.integers(0, 4))):
            ids = [f"{turn}.{step}.{n}" for n in range(draw(st.integers(1, 3)))]
            in_blocks = draw(st.booleans())
            messages.append(asks_in_blocks(*ids) if in_blocks else asks(*ids))
            answered = draw(st.permutations(ids))[: draw(st.integers(0, len(ids)))]
            for call_id in answered:
                answer = answers_in_blocks if draw(st.booleans()) else answers
                messages.append(answer(call_id, "o" * draw(sizes)))
                if draw(st.integers(0, 9)) == 0:
                    messages.append(user("steer"))
        if draw(st.integers(0, 9)) == 0:
            messages.append({"role": "system", "content": "reminder"})
        if draw(st.booleans()):
            messages.append(assistant(f"answer {turn} " + "a" * draw(sizes)))
    return messages
