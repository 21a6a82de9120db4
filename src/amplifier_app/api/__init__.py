"""Amplifier as a library: run plans from Python.

    from amplifier_app import api

    plan = api.load_plan("default", provider="anthropic")
    answer = await api.run(plan, "Which tests cover src/app.py?")
    print(answer.text, answer.cost)

    async with api.open_session(plan) as session:
        await session.run("Read src/app.py.")
        async for event in session.stream("Explain it."):
            if event["type"] == "text":
                print(event["delta"], end="")

    async for row in api.batch(plan, "repos.jsonl", prompt="Review {{repo}}.", folder="out"):
        print(row.id, row.answer.outcome)

Sessions are independent: run as many at once as you like in one event loop. All of them work in the
current directory. What this module documents stays compatible within a major version; anything else in
`amplifier_app` may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from amplifier_app.api.answers import Answer, RowAnswer
from amplifier_app.api.plans import Plan, load_plan
from amplifier_app.api.sessions import Session, open_session, run
from amplifier_app.base.errors import AppError, ConfigError, ModuleError, SessionError, UsageError

if TYPE_CHECKING:
    from amplifier_batch.api import BatchStopped, batch

__all__ = [
    "Answer",
    "AppError",
    "BatchStopped",
    "ConfigError",
    "ModuleError",
    "Plan",
    "RowAnswer",
    "Session",
    "SessionError",
    "UsageError",
    "batch",
    "load_plan",
    "open_session",
    "run",
]


def __getattr__(name: str) -> Any:
    # Programs that run no batches do not import them.
    if name in ("BatchStopped", "batch"):
        return getattr(import_module("amplifier_batch.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
