"""Messages for a running turn, with orchestrators that support them to different degrees."""

from typing import Any, NamedTuple

import pytest

from amplifier_app.runtime.steering import Steering
from amplifier_core.testing import MockCoordinator
from amplifier_modules import context_simple, loop_streaming


def steering(capability: Any = None) -> Steering:
    coordinator = MockCoordinator()
    if capability is not None:
        coordinator.register_capability("session.steer", capability)
    return Steering(AmplifierSessionOf(coordinator))


class AmplifierSessionOf(NamedTuple):
    """What `Steering` needs of a session."""

    coordinator: MockCoordinator

    @property
    def config(self) -> dict[str, Any]:
        return self.coordinator.config


async def test_a_bundled_loop_queues_texts_and_returns_them() -> None:
    coordinator = MockCoordinator()
    await loop_streaming.mount(coordinator, {})
    it = Steering(AmplifierSessionOf(coordinator))
    assert it.send("one")
    assert it.send("two")
    assert it.waiting() == ["one", "two"]
    assert await it.take_arrived() == []
    assert it.take_back() == ["one", "two"]
    assert it.waiting() == it.take_back() == []


@pytest.mark.parametrize("capability", [None, "not a function"])
def test_without_the_capability_nothing_is_accepted(capability: Any) -> None:
    it = steering(capability)
    assert not it.send("one")
    assert it.waiting() == it.take_back() == []


async def test_messages_to_a_plain_function_are_kept_until_they_are_in_the_conversation() -> None:
    coordinator = MockCoordinator()
    await context_simple.mount(coordinator, {})
    context = coordinator.get("context")
    sent: list[str] = []
    coordinator.register_capability("session.steer", sent.append)
    it = Steering(AmplifierSessionOf(coordinator))

    async def say(text: str) -> None:
        await context.add_message({"role": "user", "content": text})

    await say("again")
    await it.begin("go")
    for text in ("go", "again", "again"):
        assert it.send(text)
    await say("go")  # the prompt
    assert await it.take_arrived() == []
    assert it.waiting() == sent == ["go", "again", "again"]
    await context.add_message({"role": "user", "content": [{"type": "text", "text": "again"}]})
    assert await it.take_arrived() == ["again"]
    await context.add_message({"role": "assistant", "content": "go"})
    assert await it.take_arrived() == []
    assert it.take_back() == ["go", "again"]
    assert it.waiting() == it.take_back() == []


async def test_messages_are_kept_if_the_context_does_not_list_its_messages() -> None:
    it = steering(lambda text: None)  # no context at all
    await it.begin("go")
    assert it.send("one")
    assert await it.take_arrived() == []
    assert it.take_back() == ["one"]


@pytest.mark.parametrize("method", ["waiting", "take_back"])
async def test_half_of_the_methods_neither_loses_nor_doubles_a_message(method: str) -> None:
    coordinator = MockCoordinator()
    await context_simple.mount(coordinator, {})
    queued: list[str] = []

    def steer(text: str) -> None:
        queued.append(text)

    setattr(steer, method, lambda: [*queued])
    coordinator.register_capability("session.steer", steer)
    it = Steering(AmplifierSessionOf(coordinator))
    await it.begin("go")
    assert it.send("one")
    assert it.send("one")
    assert it.waiting() == ["one", "one"]
    assert await it.take_arrived() == []
    assert it.take_back() == ["one", "one"]


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
