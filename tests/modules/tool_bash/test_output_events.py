"""Output events while a command runs never split text where a secret could be."""

from typing import Any

import pytest

from amplifier_core.testing import MockCoordinator
from amplifier_modules.tool_bash import shell
from amplifier_modules.tool_bash.shell import MOST, OutputReporter
from amplifier_support.redaction import Redactor

KEY = "sk-ant-api03-" + "aB3x" * 24
PEM = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADAN\n" * 20 + "-----END PRIVATE KEY-----\n"


async def reported(monkeypatch: pytest.MonkeyPatch, *pieces: str) -> list[str]:
    """The texts of the events, with an event after each piece that has something to report."""
    monkeypatch.setattr(shell, "INTERVAL", 0)
    coordinator = MockCoordinator()
    texts: list[str] = []

    def note(event: str, data: dict[str, Any]) -> None:
        texts.append(data["text"])

    coordinator.hooks.register("tool:output", note)
    reporter = OutputReporter(coordinator.hooks, "bash")
    for piece in pieces:
        reporter.feed(piece.encode())
        assert reporter._task is not None
        await reporter._task
    await reporter.close()
    return texts


@pytest.mark.parametrize(
    "pieces",
    [
        (f"key {KEY[:40]}", f"{KEY[40:]}\nmore\n"),
        (f"one\nkey {KEY[:40]}", KEY[40:]),
        (f"{KEY}{'.' * (MOST - 50)}", "\nlast\n"),
        (f"{KEY} {'x' * MOST}\n{'y' * (MOST - 20)}\n",),
        (f"{'x' * 5 * MOST}{KEY[:50]}", f"{KEY[50:]}\nlast\n"),
        (PEM[:100], PEM[100:] + "last\n"),
        (PEM + "x\n" * (MOST // 2 - 100), "last\n"),
    ],
)
async def test_a_secret_is_never_split_between_events(
    monkeypatch: pytest.MonkeyPatch, pieces: tuple[str, ...]
) -> None:
    texts = await reported(monkeypatch, *pieces)
    shown = "".join(map(Redactor().text, texts))
    assert "aB3x" not in shown
    assert "MIIE" not in shown
    assert max(map(len, texts), default=0) <= MOST + len(KEY)


async def test_complete_lines_are_reported_at_once_and_the_rest_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = await reported(monkeypatch, "one\ntw", "o\r50 %\r", "end")
    assert texts == ["one\n", "two\r50 %\r", "end"]
