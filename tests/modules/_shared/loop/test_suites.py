"""The kernel's own suites for orchestrators, run on each loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from amplifier_core.validation.behavioral import OrchestratorBehaviorTests
from amplifier_core.validation.structural import OrchestratorStructuralTests
from amplifier_extras import loop_events
from amplifier_modules import loop_basic, loop_streaming


class Basic:
    @pytest.fixture
    def module_path(self) -> Path:
        return Path(loop_basic.__file__).parent


class Streaming:
    @pytest.fixture
    def module_path(self) -> Path:
        return Path(loop_streaming.__file__).parent


class Events:
    @pytest.fixture
    def module_path(self) -> Path:
        return Path(loop_events.__file__).parent


class TestBasicBehaviour(Basic, OrchestratorBehaviorTests):
    pass


class TestBasicStructure(Basic, OrchestratorStructuralTests):
    pass


class TestStreamingBehaviour(Streaming, OrchestratorBehaviorTests):
    pass


class TestStreamingStructure(Streaming, OrchestratorStructuralTests):
    pass


class TestEventsBehaviour(Events, OrchestratorBehaviorTests):
    pass


class TestEventsStructure(Events, OrchestratorStructuralTests):
    pass
