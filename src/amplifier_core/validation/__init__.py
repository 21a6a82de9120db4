"""Check modules and mount plans before they are used.

``structural`` and ``behavioral`` contain test suites for module authors; only these require pytest.
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
