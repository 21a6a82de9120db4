"""An answer that a provider restarts is shown once by every renderer."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from amplifier_app.base.stdio import Output
from amplifier_app.render.events import EventStream
from amplifier_app.render.plain import PlainRenderer
from amplifier_app.render.result import RunReport
from amplifier_app.render.text import TextRenderer
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.observers.subscriptions import subscribe
from amplifier_app.runtime.turns.turn_recorder import TurnRecorder
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.message_models import ChatResponse, TextBlock
from amplifier_modules.loop_streaming.orchestrator import StreamingOrchestrator
from tests.modules._shared.loop.rig import ListContext


class Impatient:
    """A provider that restarts its stream, as some published ones do."""

    name = "impatient"

    def __init__(self, coordinator: ModuleCoordinator, *tries: list[str]) -> None:
        self._hooks = coordinator.hooks
        self._tries = tries

    async def complete(self, request: Any) -> Any:
        raise AssertionError

    async def stream_complete(self, request: Any) -> AsyncIterator[Any]:
        text = ""
        about = {"index": 0, "block_type": "text"}
        for number, deltas in enumerate(self._tries):
            if number:
                await self._hooks.emit("provider:retry", {"provider": self.name, "attempt": number})
            yield {"type": "content_block_start", **about}
            for delta in deltas:
                yield {"type": "content_block_delta", **about, "delta": delta}
            text = "".join(deltas)
        yield {"type": "content_block_end", **about, "block": {"type": "text", "text": text}}
        yield ChatResponse(content=[TextBlock(text=text)])


def test_enter_in_plain_output_does_not_break_a_word() -> None:
    reading, writing = os.pipe()
    renderer = PlainRenderer(Output(writing))
    on_delta = renderer.handlers()["content_block:delta"]
    block = {"block_type": "text", "block_index": 0}
    for delta, written in (("The wo", "The "), ("rd is", "word "), (" long", "is ")):
        on_delta("content_block:delta", {**block, "delta": delta})
        assert os.read(reading, 99).decode() == written
    renderer.handlers()["content_block:end"]("content_block:end", block)
    assert os.read(reading, 99).decode() == "long\n"
    on_delta("content_block:delta", {**block, "delta": "x" * 81})
    assert os.read(reading, 99).decode() == "x" * 81
    os.close(reading)
    os.close(writing)


Make = Callable[[Output], Renderer]


async def shown(make: Make, *tries: list[str]) -> str:
    """The output of a turn with this renderer."""
    reading, writing = os.pipe()
    coordinator = ModuleCoordinator()
    recorder, renderer = TurnRecorder(), make(Output(writing))
    subscribe(coordinator, renderer, recorder)
    recorder.begin()
    renderer.turn_started()
    answer = await StreamingOrchestrator().execute(
        "go",
        ListContext(),
        {"impatient": Impatient(coordinator, *tries)},
        {},
        coordinator.hooks,
        coordinator=coordinator,
    )
    renderer.turn_ended(recorder.result(answer))
    renderer.close()
    os.close(writing)
    text = os.read(reading, 65536).decode()
    os.close(reading)
    return text


def read_text(lines: str) -> str:
    events = [json.loads(line) for line in lines.splitlines()]
    return "".join(event["delta"] for event in events if event["type"] == "text")


TEXTS: dict[str, tuple[Make, Callable[[str], str]]] = {
    "pipe": (lambda output: TextRenderer(output), str.rstrip),
    "plain": (lambda output: PlainRenderer(output, quiet=True), str.rstrip),
    "events": (lambda output: EventStream(output, RunReport()), read_text),
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize(
    ("tries", "expected"),
    [
        ([["One ", "two ", "three."]], "One two three."),
        ([["One ", "two "], ["One ", "two ", "three."]], "One two three."),
        ([["One ", "two "], ["One two three."]], "One two three."),
        ([["One two thr"], ["On", "e", " two", " three."]], "One two three."),
        ([["One "], ["One ", "tw"], ["One two three."]], "One two three."),
        ([["One two"], ["One two"]], "One two"),
        ([["One ", "two "], ["One and a half."]], "One two \nOne and a half."),
        ([["One ", "two "], ["One ", "and ", "a half."]], "One two \nOne and a half."),
        ([[], ["One two three."]], "One two three."),
    ],
)
async def test_text_is_shown_once(kind: str, tries: list[list[str]], expected: str) -> None:
    make, read = TEXTS[kind]
    text = read(await shown(make, *tries))
    if kind == "plain":
        # The notice about the retry is on a line of its own.
        text, expected = text.replace("\n", ""), expected.replace("\n", "")
    assert text == expected


async def test_a_shorter_second_answer_keeps_the_text_shown() -> None:
    """Text written to a pipe cannot be undone."""
    make, read = TEXTS["pipe"]
    assert read(await shown(make, ["One two three."], ["One two"])) == "One two three."
