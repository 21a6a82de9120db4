"""The five validators: one class for each kind of module, on the engine in ``_runner``."""

from pathlib import Path
from typing import Any, ClassVar

from amplifier_core.validation._kinds import KINDS, Kind
from amplifier_core.validation._runner import run_checks
from amplifier_core.validation.base import ValidationResult

__all__ = [
    "VALIDATORS",
    "ContextValidator",
    "HookValidator",
    "ModuleValidator",
    "OrchestratorValidator",
    "ProviderValidator",
    "ToolValidator",
]


class ModuleValidator:
    """Checks a module against the contract of one kind."""

    kind: ClassVar[Kind]

    async def validate(
        self,
        module_path: Path | str,
        entry_point: str | None = None,
        config: dict[str, Any] | None = None,
    ) -> ValidationResult:
        """Import, mount, inspect and clean up the module. Exceptions of the module become failed checks.

        Args:
            module_path: package folder, Python file, or dotted name.
            entry_point: ``function`` or ``package.module:function``; default: ``mount``.
            config: passed to ``mount``.
        """
        return await run_checks(self.kind, module_path, entry_point, config)


class ProviderValidator(ModuleValidator):
    """Provider Contract: a model service."""

    kind = KINDS["provider"]


class ToolValidator(ModuleValidator):
    """Tool Contract: a function that the model can call."""

    kind = KINDS["tool"]


class HookValidator(ModuleValidator):
    """Hook Contract: handlers of events."""

    kind = KINDS["hook"]


class OrchestratorValidator(ModuleValidator):
    """Orchestrator Contract: the loop that runs a turn."""

    kind = KINDS["orchestrator"]


class ContextValidator(ModuleValidator):
    """Context Contract: the memory of a conversation."""

    kind = KINDS["context"]


VALIDATORS: dict[str, type[ModuleValidator]] = {
    "provider": ProviderValidator,
    "tool": ToolValidator,
    "hook": HookValidator,
    "orchestrator": OrchestratorValidator,
    "context": ContextValidator,
}
"""The validators by kind."""
