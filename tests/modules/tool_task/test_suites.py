"""The suites every module author runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from amplifier_core.validation.behavioral import ToolBehaviorTests
from amplifier_core.validation.structural import ToolStructuralTests
from amplifier_modules import tool_task


class Package:
    @pytest.fixture
    def module_path(self) -> Path:
        return Path(tool_task.__file__).parent


class TestBehaviour(Package, ToolBehaviorTests):
    pass


class TestStructure(Package, ToolStructuralTests):
    pass
