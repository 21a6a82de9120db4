"""Messages for a running turn, with orchestrators that support them to different degrees."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier_app.runtime.steering import Steering
from amplifier_core.testing import MockCoordinator
from amplifier_modules import loop_streaming


def steering(capability: Any = None) -> Steering:
    coordinator = MockCoordinator()
    if capability is not None:
        coordinator.register_capability("session.steer", capability)
    return Steering(coordinator)


async def test_a_bundled_loop_queues_texts_and_returns_them() -> None:
    coordinator = MockCoordinator()
    await loop_streaming.mount(coordinator, {})
    it = Steering(coordinator)
    assert it.send("one")
    assert it.send("two")
    assert it.waiting() == ["one", "two"]
    assert it.take_back() == ["one", "two"]
    assert it.waiting() == it.take_back() == []


@pytest.mark.parametrize("capability", [None, "not a function"])
def test_without_the_capability_nothing_is_accepted(capability: Any) -> None:
    it = steering(capability)
    assert not it.send("one")
    assert it.waiting() == it.take_back() == []


def test_a_plain_function_accepts_texts_and_lists_none() -> None:
    sent: list[str] = []
    it = steering(sent.append)
    assert it.send("one")
    assert sent == ["one"]
    assert it.waiting() == it.take_back() == []


class Broken:
    def __call__(self, text: str) -> None:
        raise RuntimeError("not now")

    def waiting(self) -> Any:
        raise RuntimeError("not now either")

    def take_back(self) -> Any:
        return 7


def test_a_failing_capability_is_logged_and_keeps_the_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = steering(Broken())
    assert not it.send("one")
    assert it.waiting() == it.take_back() == []
    assert "did not accept a message" in caplog.text
