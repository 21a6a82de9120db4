"""Layouts of command output."""

from __future__ import annotations

from amplifier_app.chat.slash.layout import wrapped_source
from amplifier_app.render.ansi import Lines
from tests.app.chat.slash import read_text


def test_lines_of_source_wrap_below_their_indentation() -> None:
    text = "tools:\n  - module: tool-filesystem  # /a/long/path/plan.yaml:12\n"
    shown = Lines(lambda width, _: wrapped_source(text, width))
    assert read_text(shown, width=40).splitlines() == [
        "tools:",
        "  - module: tool-filesystem  #",
        "      /a/long/path/plan.yaml:12",
    ]
