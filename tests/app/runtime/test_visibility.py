"""Which blocks of an answer are shown, streamed or not, and the remaining text."""

from typing import Any

import pytest

from amplifier_app.runtime.observers.visibility import Visibility, shown_text, visible_only


def block(text: str, mark: str | None = None, kind: str = "text") -> dict[str, Any]:
    marked = {} if mark is None else {"visibility": mark}
    return {"type": kind, ("text" if kind == "text" else "thinking"): text, **marked}


def said(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "go"}, {"role": "assistant", "content": list(blocks)}]


SECRET = block("not for\nusers", "internal")


@pytest.mark.parametrize(
    ("level", "marks"),
    [
        ("user", {None, "user"}),
        ("developer", {None, "user", "developer"}),
        ("internal", {None, "user", "developer", "internal"}),
    ],
)
def test_each_level_also_shows_the_levels_before_it(level: Any, marks: set[str | None]) -> None:
    visibility = Visibility(level)
    every = (None, "user", "developer", "internal")
    assert {mark for mark in every if visibility.shows("text", mark)} == marks


def test_thinking_is_toggled_regardless_of_its_mark() -> None:
    visibility = Visibility()
    assert visibility.shows("thinking", None)
    assert visibility.show_thinking() is False
    assert not visibility.shows("thinking", "user")
    assert visibility.show_thinking() is True
    assert visibility.shows("thinking", "internal")
    assert not visibility.shows("text", "internal")


def test_toggling_thinking_shows_hidden_thinking() -> None:
    visibility = Visibility()
    assert not visibility.shows("thinking", "internal")
    assert visibility.show_thinking() is True


@pytest.mark.parametrize("joint", ["", "\n", "\n\n", " "])
def test_hidden_text_is_removed_however_a_loop_joins_blocks(joint: str) -> None:
    blocks = [block("one"), SECRET, block("  two  three\n")]
    response = joint.join(part["text"] for part in blocks)
    assert shown_text(response, said(*blocks), Visibility()) == f"one{joint}  two  three\n"
    assert shown_text(response, said(*blocks), Visibility("internal")) == response


def test_a_hidden_first_text_leaves_no_white_space() -> None:
    assert shown_text("not for users\n\nyes", said(SECRET, block("yes")), Visibility()) == "yes"
    assert shown_text("not for\nusers", said(SECRET), Visibility()) == ""


def test_hidden_text_is_recognized_in_redacted_or_longer_answers() -> None:
    blocks = [block("key is hunter2", "internal"), block("done")]
    response = "key is [REDACTED]done"
    redact = lambda text: text.replace("hunter2", "[REDACTED]")  # noqa: E731
    assert shown_text(response, said(*blocks), Visibility(), redact) == "done"
    assert shown_text(f"Step 1: {response}", said(*blocks), Visibility(), redact) == "Step 1: done"


@pytest.mark.parametrize(
    "messages",
    [[], [{"role": "assistant", "content": "not for users"}], said(block("a")), ["odd", None]],
)
def test_a_string_without_hidden_blocks_is_unchanged(messages: list[Any]) -> None:
    assert shown_text("not for users", messages, Visibility()) == "not for users"


class Screen:
    """The handlers of a renderer; records what they receive."""

    def __init__(self, visibility: Visibility | None = None) -> None:
        self.deltas = ""
        self.ended: list[Any] = []
        self._handlers = visible_only(
            {"content_block:delta": self._on_delta, "content_block:end": self._on_end},
            visibility or Visibility(),
        )

    def _on_delta(self, event: str, data: dict[str, Any]) -> None:
        self.deltas += data["delta"]

    def _on_end(self, event: str, data: dict[str, Any]) -> None:
        self.ended.append(data["block_index"])

    def tell(self, event: str, **data: Any) -> None:
        self._handlers[event](event, data)

    def stream(self, index: int, whole: dict[str, Any], **at_start: Any) -> None:
        """The events of a streamed block, as emitted by published loops."""
        about = {"block_index": index}
        self.tell("content_block:start", block_type=whole["type"], **about, **at_start)
        for letter in whole["text"]:
            self.tell("content_block:delta", block_type="text", delta=letter, **about)
        self.tell("content_block:end", block=whole, **about)


def test_nothing_of_a_hidden_block_is_streamed() -> None:
    screen = Screen()
    screen.tell("provider:request")
    screen.stream(0, block("hidden", "developer"), visibility="developer")
    screen.stream(1, block("shown"))
    assert (screen.deltas, screen.ended) == ("shown", [1])


def test_after_a_late_mark_blocks_are_shown_when_complete() -> None:
    screen = Screen()
    screen.tell("provider:request")
    screen.stream(0, block("late", "internal"))
    assert (screen.deltas, screen.ended) == ("late", [])
    screen.tell("provider:request")
    screen.stream(0, block("hidden", "internal"))
    screen.stream(1, block("shown"))
    assert (screen.deltas, screen.ended) == ("lateshown", [1])


def test_blocks_without_deltas_are_hidden_by_the_mark_at_their_end() -> None:
    screen = Screen()
    screen.tell("provider:request")
    for index, whole in enumerate([block("a", "internal"), block("b"), block("c", "user")]):
        screen.tell("content_block:end", block_index=index, block=whole)
    assert screen.ended == [1, 2]


def test_the_type_of_a_block_may_be_known_from_its_start_or_content() -> None:
    shown: list[Any] = []
    handlers = visible_only(
        {
            "content_block:delta": lambda event, data: shown.append(data["block_type"]),
            "content_block:end": lambda event, data: shown.append(data["block_type"]),
        },
        Visibility(),
    )
    for event, about in (
        ("start", {"block_index": 0, "block_type": "thinking"}),
        ("delta", {"block_index": 0, "delta": "x"}),
        ("end", {"block_index": 0, "block": None}),
        ("end", {"block_index": 1, "block": block("text")}),
    ):
        handlers[f"content_block:{event}"](f"content_block:{event}", about)
    assert shown == ["thinking", "thinking", "text"]
