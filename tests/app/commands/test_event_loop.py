"""The event loop of a run ends, whatever modules leave in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from amplifier_app.commands import event_loop


def test_a_task_that_ignores_its_cancellation_keeps_no_run_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                ended.append("ignored")

    async def orderly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append("cleaned up")

    async def main() -> str:
        tasks.extend([asyncio.create_task(stubborn()), asyncio.create_task(orderly())])
        await asyncio.sleep(0)
        return "answer"

    tasks: list[asyncio.Task[None]] = []
    monkeypatch.setattr(event_loop, "_END_SECONDS", 0.5)
    assert event_loop.run_loop(main()) == "answer"
    assert ended == ["ignored", "cleaned up"]
    assert [task.done() for task in tasks] == [False, True]
    # Its loop is closed, so it can only be left.
    tasks[0].get_coro().close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_generator_that_a_signal_has_interrupted_is_not_reported(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    generators: list[AsyncGenerator[None]] = []

    async def open_and_never_close() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            raise OSError

    async def main() -> None:
        generators.append(open_and_never_close())
        await anext(generators[0])
        raise error

    with pytest.raises(error):
        event_loop.run_loop(main())
    assert ("asynchronous generator" in caplog.text) is (error is RuntimeError)
