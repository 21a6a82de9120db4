"""Batch prices for the rows of a batch: checks the provider and starts the broker of a run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable

from amplifier_app.base.outcome import Ending, outcome_of
from amplifier_app.base.stdio import Output
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.run.choose import Chosen, choose, sources_of
from amplifier_app.commands.run.request import Request
from amplifier_batch.dispatch import Dispatcher, Stop
from amplifier_batch.economy.broker import Broker
from amplifier_batch.economy.services import batch_services
from amplifier_batch.engines.engine import Engine
from amplifier_batch.record.writer import BatchWriter

_STDERR = 2
_SMALLER = "Continue with: amplifier batch resume FOLDER, with --waiting N for smaller batches"


def require_batches(request: Request, chosen: Chosen) -> None:
    """Check that the plan's provider has batches.

    Raises:
        ConfigError: It has none, or no provider is available.
    """

    async def check() -> None:
        async with batch_services(chosen.plan, await sources_of(request, chosen)):
            pass

    run_loop(check())


@contextlib.asynccontextmanager
async def open_broker(
    request: Request,
    writer: BatchWriter,
    dispatcher: Dispatcher,
    engine: Engine,
    changed: Callable[[], None],
    notice: Callable[[str], None],
) -> AsyncGenerator[Broker]:
    """Give the rows of a dispatcher their answers at batch prices.

    Raises:
        AppError: The plan or its providers are unavailable.
    """

    async def fail(error: Exception) -> None:
        outcome = outcome_of(error)
        hint = _SMALLER if outcome.ending is Ending.PROVIDER else outcome.hint
        await dispatcher.stop(Stop(outcome.ending, outcome.message, hint))

    chosen = choose(request, Output(_STDERR))
    async with batch_services(chosen.plan, await sources_of(request, chosen)) as services:
        deadline = writer.folder.facts.get("deadline")
        broker = Broker(
            services,
            writer.progress.sent,
            writer.note,
            engine.reply,
            fail,
            changed,
            notice,
            deadline,
        )
        dispatcher.broker = broker
        try:
            yield broker
        finally:
            await broker.close()
