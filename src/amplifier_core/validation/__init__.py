"""The published names of the validators, see `amplifier_kit.validation`.

``structural`` and ``behavioral`` contain test suites for module authors; only these require pytest.
"""

from amplifier_core.module_checks import ValidationCheck
from amplifier_kit.validation.mount_plan import MountPlanValidationResult, MountPlanValidator
from amplifier_kit.validation.validators import (
    ContextValidator,
    HookValidator,
    OrchestratorValidator,
    ProviderValidator,
    ToolValidator,
    ValidationResult,
)

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
