"""User input during a turn, as shown on the screen."""

from __future__ import annotations

import os
from typing import Any

from amplifier_app.base.stdio import Output
from amplifier_app.render.activity import typed_lines
from amplifier_app.render.plain import PlainRenderer
from amplifier_app.runtime.observer import NOTHING_TYPED, Typed, Waiting
from amplifier_app.runtime.turn import NO_TURN
from amplifier_core.hooks import HookRegistry
from tests.app.render.test_terminal import Shown


def lines_waiting(state: str, *texts: str) -> tuple[Waiting, ...]:
    return tuple(Waiting(state, text) for text in texts)


def lines(typed: Typed) -> list[str]:
    return [line.plain for line in typed_lines(typed)]


def test_without_input_nothing_is_shown() -> None:
    assert lines(NOTHING_TYPED) == []


def test_the_line_is_below_the_waiting_messages() -> None:
    typed = Typed(
        "half\na",
        2,
        (
            *lines_waiting("queued for the next step", "one\ntwo"),
            *lines_waiting("will run when it finishes", "/cost"),
        ),
    )
    assert lines(typed) == [
        "  queued for the next step: one two",
        "  will run when it finishes: /cost",
        "› half⏎a",
    ]
    *_, line = typed_lines(typed)
    (cursor,) = [span for span in line.spans if span.style == "reverse"]
    assert line.plain[cursor.start : cursor.end] == "l"


def test_the_cursor_may_be_at_the_end() -> None:
    assert lines(Typed("ab", 2)) == ["› ab "]


def test_more_waiting_messages_are_counted() -> None:
    typed = Typed(waiting=lines_waiting("queued for the next step", *"abcde"))
    assert lines(typed)[-2:] == ["  queued for the next step: c", "  … 2 more"]


def test_control_characters_are_not_shown() -> None:
    typed = Typed("a\x1b[2Jb\u202ec", 0, lines_waiting("queued for the next step", "\x1b]0;x\x07y"))
    assert lines(typed) == ["  queued for the next step: y", "› abc"]


async def test_sent_messages_stay_on_the_screen_and_the_input_line_is_removed() -> None:
    it = Shown()
    it.renderer.turn_started()
    await it.emit("provider:request", tools=[])
    await it.say("First.")
    it.renderer.typed(Typed("second", 6))
    it.renderer.typed(Typed("", 0, lines_waiting("queued for the next step", "second [b]?")))
    await it.emit("steer:injected", text="second [b]?")
    it.renderer.typed(NOTHING_TYPED)
    await it.emit("provider:request", tools=[])
    await it.say("Second.")
    it.end("Second.")
    assert it.close() == ["First.", "", "› second [b]?", "", "Second."]


async def test_steps_are_shown_if_there_are_several() -> None:
    it = Shown()
    it.renderer.turn_started()
    await it.emit("step:start", step={"name": "draft"}, count=2)
    await it.emit("step:start", step={"name": "alone"}, count=1)
    it.end("")
    assert it.close() == ["· step: draft"]


class Plain:
    """A plain renderer, with its output as a terminal shows it."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self.renderer = PlainRenderer(Output(self._write))
        self.hooks = HookRegistry()
        for event, handler in self.renderer.handlers().items():
            self.hooks.register(event, handler)
        self._text = ""

    async def say(self, text: str) -> None:
        data: dict[str, Any] = {"block_type": "text", "block_index": 0, "delta": text}
        await self.hooks.emit("content_block:delta", data)

    def shown(self) -> str:
        os.set_blocking(self._read, False)
        try:
            self._text += os.read(self._read, 65536).decode()
        except BlockingIOError:
            pass
        shown: list[str] = []
        for character in self._text:
            if character == "\b":
                shown.pop()
            else:
                shown.append(character)
        return "\n".join(line.rstrip() for line in "".join(shown).split("\n"))


async def test_plain_output_waits_until_the_input_line_is_sent() -> None:
    it = Plain()
    await it.say("The answer be")
    it.renderer.typed(Typed("h", 1))
    await it.say("gins here")
    it.renderer.typed(Typed("hex", 3))
    it.renderer.typed(Typed("he", 2))
    assert it.shown() == "The answer be\n> he"
    it.renderer.typed(Typed("", 0, lines_waiting("queued for the next step", "he")))
    assert it.shown() == "The answer be\n> he  [queued for the next step]\ngins here"
    await it.hooks.emit("steer:injected", {"text": "he"})
    assert it.shown().endswith("gins here\n> he\n")


async def test_plain_output_resumes_when_the_line_is_cleared() -> None:
    it = Plain()
    it.renderer.typed(Typed("日本", 2))
    await it.say("meanwhile")
    it.renderer.typed(Typed("", 0))
    assert it.shown().endswith("\nmeanwhile")
    assert "日" not in it.shown()


async def test_plain_output_resumes_at_the_end_of_the_turn() -> None:
    it = Plain()
    it.renderer.typed(Typed("half", 4))
    await it.say("all of it")
    it.renderer.turn_ended(NO_TURN._replace(response="all of it", status="success"))
    assert it.shown() == "> half\nall of it\n"


async def test_plain_output_resumes_for_a_question() -> None:
    it = Plain()
    it.renderer.typed(Typed("half", 4))
    await it.say("some")
    with it.renderer.paused():
        assert it.shown() == "> half\nsome"


async def test_plain_a_notice_is_shown_at_once_and_the_line_redrawn(capfd: Any) -> None:
    it = Plain()
    it.renderer.typed(Typed("half", 4))
    it.renderer.notice("look out", "warning", "test")
    assert it.shown() == "> half\n> half"
    assert capfd.readouterr().err == "amplifier: warning: look out\n"
    await it.say("later")
    it.renderer.typed(Typed("", 0))
    assert it.shown().endswith("later")
