"""Suggestions for misspelt names."""

import pytest

from amplifier_support.text import nearest

OPTIONS = ("--mode", "--model", "--max-steps", "--timeout", "--tools", "-m")
PROVIDERS = ("anthropic", "openai", "local", "mock")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("--modle", "--model"),
        ("--mdoe", "--mode"),
        ("--modes", "--mode"),
        ("--max-step", "--max-steps"),
        ("--image", None),
        ("--input", None),
    ],
)
def test_options(name: str, meant: str | None) -> None:
    assert nearest(name, OPTIONS) == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tool-echo", None),
        ("tool-serch", "tool-search"),
        ("tool-fs", None),
        ("hook-bash", "tool-bash"),
    ],
)
def test_modules(name: str, meant: str | None) -> None:
    assert nearest(name, ("tool-search", "tool-bash", "tool-filesystem", "tool-todo")) == meant


@pytest.mark.parametrize(
    ("name", "meant"), [("Antropic", "anthropic"), ("opneai", "openai"), ("nope", None), ("", None)]
)
def test_names(name: str, meant: str | None) -> None:
    assert nearest(name, PROVIDERS) == meant
