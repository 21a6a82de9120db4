"""The published names of the validators, see `amplifier_kit.validation`.

``structural`` and ``behavioral`` contain test suites for module authors; only these require pytest.
"""

from amplifier_core.module_checks import ValidationCheck as ValidationCheck
from amplifier_kit.validation.validators import ContextValidator as ContextValidator
from amplifier_kit.validation.validators import HookValidator as HookValidator
from amplifier_kit.validation.validators import (
    MountPlanValidationResult as MountPlanValidationResult,
)
from amplifier_kit.validation.validators import MountPlanValidator as MountPlanValidator
from amplifier_kit.validation.validators import OrchestratorValidator as OrchestratorValidator
from amplifier_kit.validation.validators import ProviderValidator as ProviderValidator
from amplifier_kit.validation.validators import ToolValidator as ToolValidator
from amplifier_kit.validation.validators import ValidationResult as ValidationResult
