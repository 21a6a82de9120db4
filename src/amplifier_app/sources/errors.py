"""Sources that cannot be had: one error for the app and for the kernel."""

from __future__ import annotations

from amplifier_app.errors import ModuleError
from amplifier_core.module_sources import ModuleLoadError


class SourceError(ModuleError, ModuleLoadError):
    """A source that the plan names cannot be fetched, installed or understood.

    Not the kernel's `ModuleNotFoundError`: on that one the loader would look for an
    installed module of the same name, and quietly run another one than the plan says.
    """
