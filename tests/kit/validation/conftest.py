"""The fixtures of modules' sources serve here as well."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_kit.validation import isolation
from tests.app.sources.conftest import home, repository, seed_tool
from tests.support.cli import child_environment
from tests.support.warm_interpreter import WarmInterpreter, WarmLimitedProgram

__all__ = ["home", "repository", "seed_tool"]


@pytest.fixture
def warm_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks of modules run in processes that have imported their own code already."""
    interpreter = WarmInterpreter.suited_to(child_environment(Path(os.environ["AMPLIFIER_HOME"])))
    if interpreter is None:
        return

    def start(args: list[str], **options: Any) -> WarmLimitedProgram:
        return WarmLimitedProgram(interpreter, args, **options)

    patched = SimpleNamespace(**{**vars(subprocess), "Popen": start})
    monkeypatch.setattr(isolation, "subprocess", patched)
