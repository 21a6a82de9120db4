"""Checking modules and mount plans before they are relied on.

``structural`` and ``behavioral`` hold suites for module authors and need pytest; nothing else here does.
"""

from amplifier_core.validation._validators import (
    ContextValidator,
    HookValidator,
    OrchestratorValidator,
    ProviderValidator,
    ToolValidator,
)
from amplifier_core.validation.base import ValidationCheck, ValidationResult
from amplifier_core.validation.mount_plan import MountPlanValidationResult, MountPlanValidator

__all__ = [
    "ContextValidator",
    "HookValidator",
    "MountPlanValidationResult",
    "MountPlanValidator",
    "OrchestratorValidator",
    "ProviderValidator",
    "ToolValidator",
    "ValidationCheck",
    "ValidationResult",
]
