"""Recognizing slash commands, and answers to questions."""

from __future__ import annotations

import pytest

from amplifier_app.chat.ask import choose
from amplifier_app.chat.slash_commands import command_in


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/help", "/help"),
        ("/model gpt", "/model"),
        ("/bogus\nmore", "/bogus"),
        ("/usr/bin/env is missing", None),
        (" /help", None),
        ("help", None),
        ("/", None),
        ("/1", None),
    ],
)
def test_a_command_is_a_slash_and_a_word(text: str, command: str | None) -> None:
    assert command_in(text) == command


@pytest.mark.parametrize(
    ("answer", "choice"),
    [
        ("1", "Allow"),
        ("2", "Deny"),
        ("3", "Allow always"),
        ("0", None),
        ("4", None),
        ("allow", "Allow"),
        ("ALLOW ALWAYS ", "Allow always"),
        ("d", "Deny"),
        ("a", None),
        ("", None),
        ("yes", None),
    ],
)
def test_an_answer_is_a_number_a_name_or_a_prefix(answer: str, choice: str | None) -> None:
    assert choose(answer, ["Allow", "Deny", "Allow always"]) == choice
