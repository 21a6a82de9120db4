"""What the bundled modules announce on the channel `observability.events`."""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.events import ALL_EVENTS
from amplifier_core.testing import ScriptedOrchestrator

_COMPACTION = {"context:pre_compact", "context:post_compact"}
_LOOP = {
    *("steer:injected", "turn:ending", "provider:fallback", "provider:switched"),
    *("context:overflow", "budget:reached"),
}

# Every bundled module is listed: a new one fails the first test until its events are.
_EVENTS: dict[str, set[str]] = {
    "context-persistent": _COMPACTION,
    "context-simple": _COMPACTION,
    "hooks-approval": {"approval:mode_changed", "proposal:made"},
    "hooks-backup": {"backup:created", "backup:restored"},
    "hooks-context-files": {"context_files:loaded"},
    "hooks-logging": set(),
    "hooks-loop-support": {"budget:reached", "provider:fallback"},
    "hooks-otel": set(),
    "hooks-redaction": set(),
    "hooks-shell": {"shell_hook:completed", "shell_hook:failed"},
    "hooks-status": set(),
    "loop-basic": _LOOP,
    "loop-events": {
        *_LOOP,
        *("provider:stream", "step:start", "step:end", "loop:next"),
        *("tools:offer", "tool:selecting", "tool:selected"),
    },
    "loop-streaming": {*_LOOP, "provider:stream"},
    "provider-anthropic": set(),
    "provider-local": set(),
    "provider-mock": set(),
    "provider-openai": set(),
    "provider-replay": set(),
    "tool-bash": {"tool:output", "sandbox:denied", "bash:background_start", "bash:background_end"},
    "tool-filesystem": set(),
    "tool-mcp": {
        *("mcp:connected", "mcp:disconnected", "mcp:failed", "mcp:log", "mcp:progress"),
        *("tool:unanswered", "skill:loaded"),
    },
    "tool-search": set(),
    "tool-skills": {"skill:loaded"},
    "tool-task": {"task:start", "task:end"},
    "tool-todo": {"todo:updated"},
    "tool-web": {"web:fetched", "web:refused", "web:searched"},
}

_MODULES = {point.name: point for point in entry_points(group="amplifier.modules")}


def test_every_bundled_module_is_listed() -> None:
    assert sorted(_EVENTS) == sorted(_MODULES)


@pytest.mark.parametrize("module_id", sorted(_EVENTS))
async def test_a_module_announces_its_own_events(
    module_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path))
    coordinator = ModuleCoordinator()
    config: dict[str, Any] = {"api_key": "k"} if module_id.endswith(("anthropic", "openai")) else {}
    if module_id == "hooks-loop-support":
        await coordinator.mount("orchestrator", ScriptedOrchestrator([]))
    mounted = await _MODULES[module_id].load()(coordinator, config)
    contributed = await coordinator.collect_contributions("observability.events")
    announced = {name for names in contributed for name in names}
    if callable(mounted) and (closing := mounted()) is not None:
        await closing
    assert announced == _EVENTS[module_id]
    # Loggers listen to the kernel's events anyway, and the published one would log them twice. The
    # Context Contract has contexts announce their two.
    kernel = announced & {*ALL_EVENTS}
    assert kernel == (_COMPACTION if module_id.startswith("context-") else set())
