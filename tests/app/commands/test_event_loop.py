"""The event loop of a run ends, whatever modules leave in it."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable

import pytest

from amplifier_app.base.errors import ModuleError
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


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda main: main.cancel(), "a module cancelled the task of the run"),
        (lambda main: asyncio.get_running_loop().stop(), "a module stopped the event loop"),
    ],
    ids=["cancels the task", "stops the loop"],
)
def test_a_module_that_ends_the_loop_is_reported(
    spoil: Callable[[asyncio.Task[None]], object], said: str
) -> None:
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(spoil, task)
        await asyncio.Event().wait()

    with pytest.raises(ModuleError, match=said):
        event_loop.run_loop(main())


def test_a_task_that_fails_in_the_background_is_reported_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def poll() -> None:
        raise ValueError("no such host")

    async def main() -> None:
        task = asyncio.create_task(poll())
        await asyncio.sleep(0)
        del task
        gc.collect()

    event_loop.run_loop(main())
    ours = [record for record in caplog.records if record.name == event_loop.__name__]
    (message,) = [record.getMessage() for record in ours if record.levelname == "ERROR"]
    assert message.startswith("The background task 'test_a_task_that_fails_in_the_background_is_")
    assert "poll' failed: ValueError: no such host (commands/test_event_loop.py, line " in message
    assert "\n" not in message


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
