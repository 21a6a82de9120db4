"""Messages for a running turn, whatever its orchestrator makes of them."""

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


async def test_a_bundled_loop_takes_texts_and_gives_them_back() -> None:
    coordinator = MockCoordinator()
    await loop_streaming.mount(coordinator, {})
    it = Steering(coordinator)
    assert it.say("one")
    assert it.say("two")
    assert it.waiting() == ["one", "two"]
    assert it.take_back() == ["one", "two"]
    assert it.waiting() == it.take_back() == []


@pytest.mark.parametrize("capability", [None, "no function"])
def test_without_the_capability_nothing_is_taken(capability: Any) -> None:
    it = steering(capability)
    assert not it.say("one")
    assert it.waiting() == it.take_back() == []


def test_a_plain_function_takes_texts_and_tells_nothing() -> None:
    said: list[str] = []
    it = steering(said.append)
    assert it.say("one")
    assert said == ["one"]
    assert it.waiting() == it.take_back() == []


class Broken:
    def __call__(self, text: str) -> None:
        raise RuntimeError("not now")

    def waiting(self) -> Any:
        raise RuntimeError("not now either")

    def take_back(self) -> Any:
        return 7


def test_one_that_fails_is_told_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    it = steering(Broken())
    assert not it.say("one")
    assert it.waiting() == it.take_back() == []
    assert "did not take a message" in caplog.text
