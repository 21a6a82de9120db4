"""The hook: the status added to a request."""

from __future__ import annotations

import os
import platform
from collections.abc import AsyncIterator, Iterator
from typing import Any

from amplifier_core.models import HookResult
from amplifier_modules.hooks_status.config import MODULE_ID, StatusConfig
from amplifier_modules.hooks_status.repository import GitState, git_state
from amplifier_support.clock import utc_now
from amplifier_support.printable import printable_in_tags
from amplifier_support.session_capabilities import WORKING_DIR


class StatusHook:
    """Add the status to each request; it is created each time and never stored."""

    def __init__(self, coordinator: Any, config: StatusConfig) -> None:
        self._coordinator = coordinator
        self._config = config

    async def on_request(self, event: str, data: dict[str, Any]) -> HookResult:
        """Handle `provider:request`."""
        lines = [line async for line in self._lines()]
        if not lines:
            return HookResult()
        text = "\n".join([f'<system-reminder source="{MODULE_ID}">', *lines, "</system-reminder>"])
        return HookResult(
            action="inject_context",
            context_injection=text,
            context_injection_role="user",
            ephemeral=True,
            append_to_last_tool_result=True,
            suppress_output=True,
        )

    async def _lines(self) -> AsyncIterator[str]:
        config = self._config
        folder = WORKING_DIR.of(self._coordinator) or os.getcwd()
        if config.time:
            yield f"Time: {utc_now().astimezone():%A %Y-%m-%d %H:%M %Z (UTC%z)}"
        if config.directory:
            yield f"Working directory: {printable_in_tags(folder)}"
            yield f"System: {platform.system()} {platform.release()} ({platform.machine()})"
        if config.git:
            state = await git_state(folder, config.git_timeout)
            if state is not None:
                for line in git_lines(state, config.max_files):
                    yield line


def git_lines(state: GitState, max_files: int) -> Iterator[str]:
    """Describe the state of a repository.

    Args:
        state: The state.
        max_files: Changed files to list.
    """
    commit = f"at {state.commit[:12]}" if state.commit else "without a commit yet"
    where = f"on branch {printable_in_tags(state.branch)}" if state.branch else "on no branch"
    line = f"Git: {where}, {commit}"
    if state.upstream:
        apart = [f"{count} {word}" for count, word in _apart(state) if count]
        line += f", {' and '.join(apart) or 'level with'} {printable_in_tags(state.upstream)}"
    yield line
    if not state.changes:
        yield "Git: no changes"
        return
    yield f"Git: {len(state.changes)} changed:"
    for change in state.changes[:max_files]:
        yield f"  {printable_in_tags(change)}"
    rest = len(state.changes) - max_files
    if rest > 0:
        yield f"  … and {rest} more"


def _apart(state: GitState) -> tuple[tuple[int, str], ...]:
    return (state.ahead, "ahead of"), (state.behind, "behind")
