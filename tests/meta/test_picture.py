"""The pictures in the README show the program as it is."""

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.picture import chat, pages


def test_the_picture_of_the_chat_is_current() -> None:
    message = "draw it again with: python -m tests.picture.chat"
    assert chat.PICTURE.read_text(encoding="utf-8") == chat.drawn(chat.chat_screen()), message


@pytest.mark.parametrize(
    ("picture", "page"),
    [(pages.SESSION, pages.session_page), (pages.REPORT, pages.batch_report)],
    ids=["session", "report"],
)
def test_the_pictures_of_pages_are_current(picture: Path, page: Callable[[], str]) -> None:
    def parts(svg: str) -> list[str]:
        """Its style, elements and words, without numbers and charts, which differ from run to run."""
        elements = ElementTree.fromstring(svg).iter()
        return [
            re.sub(r"[\d.,]+ ?(ms|s)?", "#", f"{element.tag} {element.text}")
            for element in elements
            if "svg" not in element.tag or element.tag.endswith("style")
        ]

    message = "draw it again with: python -m tests.picture.pages"
    assert parts(picture.read_text(encoding="utf-8")) == parts(pages.drawn(page(), "A page")), (
        message
    )
