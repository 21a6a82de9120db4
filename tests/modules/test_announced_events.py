"""What the bundled modules announce on the channel `observability.events`."""

from __future__ import annotations

from pathlib import Path

import pytest

from amplifier_app.runtime.session import open_session
from amplifier_app.sources.loading import load
from amplifier_core.events import ALL_EVENTS
from tests.support.plans import mock_plan


@pytest.mark.parametrize("loop", ["loop-basic", "loop-streaming", "loop-events"])
async def test_events_that_every_logger_knows_are_not_announced(tmp_path: Path, loop: str) -> None:
    providers = [
        {"module": "provider-mock", "config": {"replies": ["ok"]}},
        {"module": "provider-anthropic", "config": {"api_key": "k"}},
        {"module": "provider-openai", "config": {"api_key": "k"}},
        {"module": "provider-local"},
    ]
    plan = mock_plan(
        tmp_path,
        [],
        session={"orchestrator": loop, "context": "context-simple", "budget": {"max_steps": 9}},
        providers=providers,
        tools=["tool-filesystem", "tool-bash", "tool-search", "tool-task", "tool-todo", "tool-web"],
        hooks=["hooks-approval", "hooks-backup", "hooks-context-files", "hooks-logging"],
    )
    async with open_session(load(plan=plan), save=False) as session:
        announced = await session.session.coordinator.collect_contributions("observability.events")
        names = [name for events in announced for name in events]
        assert "task:start" in names
        assert sorted({*names} & {*ALL_EVENTS}) == []
