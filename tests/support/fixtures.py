"""Fixtures for the whole suite; registered by `tests/conftest.py`."""

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support.llm_server import Item, ScriptedLLM
from tests.support.network_guard import sitecustomize as network

_SCRUBBED_ENDINGS = ("_API_KEY", "_AUTH_TOKEN", "_BASE_URL", "_PROXY")


def _is_scrubbed(name: str) -> bool:
    return name.upper().endswith(_SCRUBBED_ENDINGS) or name.startswith("AMPLIFIER_")


def scrubbed(environment: dict[str, str]) -> dict[str, str]:
    """The environment without what points a program at a provider, a proxy or a user's settings."""
    return {name: value for name, value in environment.items() if not _is_scrubbed(name)}


class _Homes:
    """Empty homes. Most tests leave theirs untouched, and the next test uses it again."""

    def __init__(self, folder: Path) -> None:
        self._folders = (folder / str(number) for number in itertools.count())
        self._make()

    def _make(self) -> None:
        self._home = next(self._folders)
        self._home.mkdir()
        self._access = self._access_now()

    def _access_now(self) -> tuple[int, int]:
        status = self._home.lstat()
        return status.st_mode, status.st_uid

    def empty(self) -> Path:
        """A home without any content."""
        try:
            is_untouched = not os.listdir(self._home) and self._access_now() == self._access
        except OSError:
            is_untouched = False
        if not is_untouched:
            self._make()
        return self._home


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> _Homes:
    return _Homes(tmp_path_factory.mktemp("amplifier-homes"))


@pytest.fixture(scope="session")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders for tests. A hundred lie in one, since a sandbox has a rule for each neighbour of its folder."""
    base = tmp_path_factory.getbasetemp()
    return (base / str(number // 100) / str(number) for number in itertools.count())


@pytest.fixture
def tmp_path(_folders: Iterator[Path]) -> Path:
    """Like pytest's, but made by two system calls instead of twelve."""
    folder = next(_folders)
    folder.parent.mkdir(exist_ok=True)
    folder.mkdir(0o700)
    return folder


def pytest_configure() -> None:
    """Files of tests that look for a home while they are imported find none."""
    os.environ["AMPLIFIER_HOME"] = "/proc/amplifier-home"


@pytest.fixture(scope="session", autouse=True)
def _environment() -> Iterator[None]:
    """No prompts of git, no settings and no keyring of the user who runs the suite."""
    with pytest.MonkeyPatch.context() as patch:
        _remove_keys(patch)
        patch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        patch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
        patch.setenv("GIT_TERMINAL_PROMPT", "0")
        for role in ("AUTHOR", "COMMITTER"):
            patch.setenv(f"GIT_{role}_NAME", "Test")
            patch.setenv(f"GIT_{role}_EMAIL", "test@example.invalid")
        yield


def _remove_keys(patch: pytest.MonkeyPatch) -> None:
    for name in filter(_is_scrubbed, list(os.environ)):
        patch.delenv(name)


@pytest.fixture(autouse=True)
def _isolated(request: pytest.FixtureRequest, _environment: None, _homes: _Homes) -> Iterator[None]:
    """Every test starts with an empty home and without keys; those marked `local_model` fetch weights."""
    with pytest.MonkeyPatch.context() as patch:
        # The program itself puts keys there.
        _remove_keys(patch)
        patch.setenv("AMPLIFIER_HOME", str(_homes.empty()))
        network.allowed = request.node.get_closest_marker("local_model") is not None
        yield
        network.allowed = False


@pytest.fixture
def home() -> Path:
    """The home of the running test."""
    return Path(os.environ["AMPLIFIER_HOME"])


class StartLLM(Protocol):
    async def __call__(self, replies: list[Item] | None = None, **options: Any) -> ScriptedLLM: ...


@pytest.fixture
async def llm_server() -> AsyncIterator[StartLLM]:
    """Factory: `server = await llm_server([...replies], **options)`; stopped after the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(replies: list[Item] | None = None, **options: Any) -> ScriptedLLM:
            return await stack.enter_async_context(ScriptedLLM(replies or [], **options))

        yield start
