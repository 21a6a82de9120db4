"""The folders that a setting of a module grants."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from amplifier_modules._shared.files.roots import PathGuard
from amplifier_support.session_capabilities import WORKING_DIR


class Grants:
    """The folders that a setting grants, resolved once for each working directory.

    They are resolved when this is created, for the session's working directory: a command that runs
    later may replace a granted folder with a link.

    Args:
        coordinator: The coordinator of the session.
        paths: Value of the setting; `~` is expanded. None grants the working directory.
        setting: Name of the setting, for messages.
        writing: See `PathGuard`.
        denied: Value of the setting that excludes folders; see `PathGuard`.
    """

    def __init__(
        self,
        coordinator: Any,
        paths: Sequence[str] | None,
        *,
        setting: str,
        writing: bool = False,
        denied: Sequence[str] = (),
    ) -> None:
        self._coordinator = coordinator
        self._roots = None if paths is None else [os.path.expanduser(path) for path in paths]
        self._denied = [os.path.expanduser(path) for path in denied]
        self._setting = setting
        self._writing = writing
        self._guards = {self.base: self._resolve()}

    @property
    def base(self) -> str:
        """The working directory, absolute."""
        return WORKING_DIR.of(self._coordinator) or os.getcwd()

    @property
    def guard(self) -> PathGuard:
        """The guard for the folders."""
        base = self.base
        if base not in self._guards:
            self._guards[base] = self._resolve()
        return self._guards[base]

    def _resolve(self) -> PathGuard:
        return PathGuard(
            self._roots,
            base=self.base,
            writing=self._writing,
            setting=self._setting,
            denied=self._denied,
        )
