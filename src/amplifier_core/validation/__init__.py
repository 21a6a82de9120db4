"""Checking modules and mount plans before they are relied on.

``structural`` and ``behavioral`` hold suites for module authors and need pytest; nothing else here does.
"""

import logging
from pathlib import Path
from typing import Any

from amplifier_core.validation.base import ValidationCheck, ValidationResult
from amplifier_core.validation.mount_plan import MountPlanValidationResult, MountPlanValidator
from amplifier_core.validation.runner import run_checks
from amplifier_core.validation.validators import (
    VALIDATORS,
    ContextValidator,
    HookValidator,
    OrchestratorValidator,
    ProviderValidator,
    ToolValidator,
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
    "validate_for_loading",
]

logger = logging.getLogger(__name__)


async def validate_for_loading(
    kind: str, package_path: Path | str, module_id: str, config: dict[str, Any] | None = None
) -> ValidationResult:
    """Check a module that is about to be loaded, with the settings it will be mounted with.

    A provider may decline to mount, for want of credentials (Provider Contract, graceful
    degradation): that is no fault of the module, and the session tells the reason it gives.

    Args:
        kind: ``provider``, ``tool``, ``hook``, ``orchestrator`` or ``context``; any other kind has no
            contract and passes unchecked.
        package_path: package folder, Python file, dotted name, or ``dotted.name:function`` where the
            mount function has another name than ``mount``.
        module_id: the module's id, for the log.
        config: handed to the trial ``mount`` (a copy).
    """
    logger.debug("Checking %s at %s as a %s", module_id, package_path, kind)
    validator = VALIDATORS.get(kind)
    if validator is None:
        return ValidationResult(kind, str(package_path))
    place, function = package_path, ""
    if isinstance(package_path, str) and not Path(package_path).exists():
        place, _, function = package_path.partition(":")
    return await run_checks(
        validator.kind, place, function or None, config, may_decline=kind == "provider"
    )
