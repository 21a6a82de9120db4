"""Real pytest runs in separate folders, inside this process."""

import textwrap
from pathlib import Path

import pytest

# Imported here so that the kernel is already loaded for the runs inside this process.
import amplifier_core.testing
import amplifier_core.validation.behavioral
import amplifier_core.validation.structural  # noqa: F401

CONFIG = """
    [pytest]
    asyncio_mode = strict
    asyncio_default_fixture_loop_scope = function
    filterwarnings = error
"""

# Plugins of this environment that these runs do not need and that are slow to start.
UNUSED_PLUGINS = [
    f"-pno:{name}"
    for name in ("cacheprovider", "hypothesispytest", "benchmark", "xdist", "pytest_cov", "timeout")
]


class Project:
    """A folder with pytest settings, in which pytest is run."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.root = pytester.path
        self.write("pytest.ini", CONFIG)

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return file

    def module(self, module_id: str, code: str, **files: str) -> Path:
        """A module's repository: ``amplifier-module-<id>/amplifier_module_<id>``; returns the package."""
        package = f"amplifier-module-{module_id}/amplifier_module_{module_id.replace('-', '_')}"
        for stem, text in files.items():
            self.write(f"{package}/{stem}.py", text)
        return self.write(f"{package}/__init__.py", code).parent

    def run(self, *arguments: str) -> pytest.RunResult:
        ini = str(self.root / "pytest.ini")
        # Tracebacks as Python writes them: pytest parses the source of each frame for its own.
        options = ("-c", ini, "--tb=native", *UNUSED_PLUGINS)
        return self.pytester.runpytest_inprocess(*options, *arguments)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return Project(pytester)
