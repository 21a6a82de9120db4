"""Structural test suites: a module's tests inherit from one to run its validator.

from amplifier_core.validation.structural import ToolStructuralTests

class TestStructure(ToolStructuralTests):
    pass
"""

from pathlib import Path
from typing import ClassVar

import pytest

from amplifier_core.module_checks import check_on_session_ready
from amplifier_kit.validation.validators import VALIDATORS

__all__ = [
    "ContextStructuralTests",
    "HookStructuralTests",
    "OrchestratorStructuralTests",
    "ProviderStructuralTests",
    "ToolStructuralTests",
    "check_on_session_ready",
]


NO_MODULE = "no module under test: pass --module-path, or declare it in pyproject.toml under amplifier.modules"


class _StructuralSuite:
    module_kind: ClassVar[str]

    @pytest.mark.asyncio
    async def test_structural_validation(self, module_path: Path | None) -> None:
        """The module passes the validator of its kind."""
        if module_path is None:
            pytest.skip(NO_MODULE)
        result = await VALIDATORS[self.module_kind]().validate(module_path)
        if not result.passed:
            errors = "\n".join(f"  {check.name}: {check.message}" for check in result.errors)
            pytest.fail(f"{result.summary()}\n{errors}", pytrace=False)


class ProviderStructuralTests(_StructuralSuite):
    """The structure of a provider."""

    module_kind = "provider"


class ToolStructuralTests(_StructuralSuite):
    """The structure of a tool."""

    module_kind = "tool"


class HookStructuralTests(_StructuralSuite):
    """The structure of a hook."""

    module_kind = "hook"


class OrchestratorStructuralTests(_StructuralSuite):
    """The structure of an orchestrator."""

    module_kind = "orchestrator"


class ContextStructuralTests(_StructuralSuite):
    """The structure of a context manager."""

    module_kind = "context"
