"""Terminal control sequences are removed, however a text is split."""

import re

from hypothesis import given
from hypothesis import strategies as st

from amplifier_app.base.sanitize import StreamSanitizer, for_pipe, for_terminal, one_line

_DANGEROUS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_PIECES = st.lists(
    st.one_of(
        st.text(max_size=4),
        st.sampled_from(
            [
                "\x1b",
                "\x1b[",
                "\x1b[31m",
                "\x1b]0;title",
                "\x07",
                "\x1b\\",
                "\x1b]52;c;aGk=\x07",
                "\x1bP",
                "\x1b(B",
                "\x1bc",
                "\x9b31m",
                "\u202eevil",
                "\r\n",
                "\n",
                "[31m",
                "x" * 1100,
                ";" * 70,
            ]
        ),
    ),
    max_size=12,
)


@given(_PIECES)
def test_no_control_character_reaches_a_terminal_however_text_is_split(pieces: list[str]) -> None:
    sanitizer = StreamSanitizer(terminal=True)
    streamed = "".join(sanitizer.feed(piece) for piece in pieces) + sanitizer.flush()
    assert not _DANGEROUS.search(streamed)
    assert streamed == for_terminal("".join(pieces))


@given(_PIECES)
def test_a_pipe_loses_only_control_characters(pieces: list[str]) -> None:
    sanitizer = StreamSanitizer(terminal=False)
    streamed = "".join(sanitizer.feed(piece) for piece in pieces) + sanitizer.flush()
    assert "\x1b" not in streamed
    assert streamed == for_pipe("".join(pieces))


def test_whole_sequences_are_removed() -> None:
    assert for_terminal("a\x1b[1;31mred\x1b[0m b\x1b]0;owned\x07c\x1b(Bd") == "ared bcd"


def test_a_sequence_split_between_chunks_is_removed() -> None:
    sanitizer = StreamSanitizer(terminal=True)
    shown = [
        sanitizer.feed(piece) for piece in ("one \x1b", "[3", "1mtwo\x1b]8;;http://x", "\x07!")
    ]
    assert shown == ["one ", "", "two", "!"]


def test_text_after_an_unterminated_sequence_is_shown() -> None:
    assert for_terminal("\x1b]0;" + "x" * 2000) == "]0;" + "x" * 2000
    assert for_terminal("\x1b]0;title\nthe rest") == "]0;title\nthe rest"


def test_ordinary_text_is_unchanged() -> None:
    text = "Grüße 👩‍👩‍👧 [bold]not markup[/bold]\t| مرحبا\n"
    assert for_terminal(text) is text
    assert StreamSanitizer(terminal=True).feed(text) is text


def test_line_endings_are_kept_in_a_pipe_but_not_on_a_terminal() -> None:
    assert for_pipe("a\r\nb") == "a\r\nb"
    assert for_terminal("a\r\nb") == "a\nb"


def test_one_line_collapses_and_cuts() -> None:
    assert one_line("ls\n  -la\x1b[31m /tmp") == "ls -la /tmp"
    assert one_line("x" * 50, limit=10) == "x" * 9 + "…"
