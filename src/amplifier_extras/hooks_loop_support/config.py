"""Settings of hooks-loop-support."""

from __future__ import annotations

from amplifier_modules._shared.module.config import ModuleConfig

MODULE_ID = "hooks-loop-support"


class LoopSupportConfig(ModuleConfig):
    """Settings of hooks-loop-support.

    Attributes:
        budget: Apply `session.budget`.
        fallbacks: Apply `session.fallbacks`.
    """

    budget: bool = True
    fallbacks: bool = True
