"""The picture in the README shows the chat as it is."""

from __future__ import annotations

from tests.picture.chat import PICTURE, chat_screen, drawn


def test_the_picture_of_the_chat_is_current() -> None:
    message = "draw it again with: python -m tests.picture.chat"
    assert PICTURE.read_text(encoding="utf-8") == drawn(chat_screen()), message
