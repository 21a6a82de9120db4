"""The published names of the checks' common parts."""

from amplifier_core.loader import import_from_path as import_module_from_path
from amplifier_core.module_checks import (
    Severity,
    ValidationCheck,
    check_on_session_ready,
    is_async,
    positional_arity,
)
from amplifier_kit.validation.validators import CheckReport, ValidationResult

__all__ = [
    "CheckReport",
    "Severity",
    "ValidationCheck",
    "ValidationResult",
    "check_on_session_ready",
    "import_module_from_path",
    "is_async",
    "positional_arity",
]
