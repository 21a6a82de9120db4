"""Mount single modules of a plan without the rest, for commands that need only what these do."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from amplifier_app.base.errors import AppError, ConfigError, ModuleError
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.stdio import to_stderr
from amplifier_app.plan import ResolvedPlan
from amplifier_app.runtime.capabilities import (
    register_capabilities,
    register_mentions,
    register_trusted_dir,
)
from amplifier_app.runtime.sandbox import register_sandbox
from amplifier_app.sources.resolver import resolver_for
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.loader import ModuleLoader
from amplifier_core.module_sources import ModuleLoadError, ModuleNotFoundError


@contextlib.asynccontextmanager
async def mount_entries(
    plan: ResolvedPlan, entries: Sequence[Mapping[str, Any]], *, runs_commands: bool = False
) -> AsyncGenerator[ModuleCoordinator]:
    """A coordinator on which only these modules of a plan are mounted.

    Args:
        plan: The plan.
        entries: Their entries in its mount plan.
        runs_commands: Whether they start programs, and read files of the project.

    Raises:
        ConfigError: The config of a module is invalid.
        ModuleError: A module cannot be mounted.
        SourceError: A module is not available.
    """
    mount_plan = plan.mount_plan()
    sources = resolver_for(plan)
    coordinator = ModuleCoordinator()
    coordinator.config.update(mount_plan)
    register_capabilities(coordinator, sources)
    if runs_commands:
        register_trusted_dir(coordinator, plan.chosen.reads_project)
        register_sandbox(coordinator, mount_plan, plan)
    for text in await register_mentions(coordinator, plan.namespaces, sources.offline):
        to_stderr(for_terminal(f"amplifier: warning: {text}"))
    await sources.prefetch_modules((entry["module"], entry.get("source")) for entry in entries)
    await coordinator.mount("module-source-resolver", sources)
    loader = ModuleLoader(coordinator)
    try:
        for entry in entries:
            try:
                mount = await loader.load(entry["module"], entry["config"], entry.get("source"))
                coordinator.register_cleanup(await mount(coordinator))
            except ValueError as error:
                raise ConfigError(str(error)) from error
            except (AppError, ModuleLoadError, ModuleNotFoundError):
                raise
            # Mount functions are foreign code, which may raise anything.
            except Exception as error:
                raise ModuleError(f"cannot mount {entry['module']}: {error}") from error
        yield coordinator
    finally:
        await coordinator.cleanup()
