"""The suites every module author runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from amplifier_core.testing import MockCoordinator
from amplifier_core.validation.behavioral import ToolBehaviorTests
from amplifier_core.validation.structural import ToolStructuralTests
from amplifier_modules import tool_filesystem


class Package:
    @pytest.fixture
    def module_path(self) -> Path:
        return Path(tool_filesystem.__file__).parent

    @pytest.fixture
    def coordinator(self, tmp_path: Path) -> MockCoordinator:
        coordinator = MockCoordinator()
        coordinator.register_capability("session.working_dir", str(tmp_path))
        return coordinator


class TestBehaviour(Package, ToolBehaviorTests):
    pass


class TestStructure(Package, ToolStructuralTests):
    pass
