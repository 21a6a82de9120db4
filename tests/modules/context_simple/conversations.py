"""Conversations for the tests of context managers."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


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
