"""The suites every module author runs, on the bundled modules that need no server."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from amplifier_core.testing import MockCoordinator
from amplifier_core.validation import behavioral, structural
from amplifier_extras import hooks_otel
from amplifier_modules import (
    hooks_backup,
    hooks_context_files,
    hooks_logging,
    hooks_redaction,
    hooks_shell,
    provider_mock,
    tool_filesystem,
    tool_task,
)


class Package:
    """A module under test.

    Attributes:
        module: Its package.
        folder: The capability that names the folder it writes to, if it needs one.
    """

    module: ClassVar[ModuleType]
    folder: ClassVar[str | None]

    @pytest.fixture
    def module_path(self) -> Path:
        assert self.module.__file__ is not None
        return Path(self.module.__file__).parent

    @pytest.fixture
    def coordinator(self, tmp_path: Path) -> MockCoordinator:
        coordinator = MockCoordinator()
        if self.folder is not None:
            coordinator.register_capability(self.folder, str(tmp_path))
        return coordinator


for _kind, _module, _folder in (
    ("Hook", hooks_backup, "session.dir"),
    ("Hook", hooks_context_files, None),
    ("Hook", hooks_logging, "session.dir"),
    ("Hook", hooks_otel, None),
    ("Hook", hooks_redaction, None),
    ("Hook", hooks_shell, None),
    ("Provider", provider_mock, None),
    ("Tool", tool_filesystem, "session.working_dir"),
    ("Tool", tool_task, None),
):
    _name = _module.__name__.rpartition(".")[2].title().replace("_", "")
    for _suite in (
        getattr(behavioral, f"{_kind}BehaviorTests"),
        getattr(structural, f"{_kind}StructuralTests"),
    ):
        _test = f"Test{_name}{_suite.__name__}"
        globals()[_test] = type(_test, (Package, _suite), {"module": _module, "folder": _folder})
