"""The keyring of the operating system, through the library `keyring`.

Importing it takes a quarter of a second, and reading from it may open a password prompt, so it is used
only to store a key, or to read one that is known to be there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from amplifier_app.base import paths

_ANSWER_SECONDS = 120.0
"""Time limit for the keyring, including the time to type a password."""

_LOWEST_PRIORITY = 1
"""`keyring` gives a lower priority to backends that store nothing, or store plain text."""

_Result = TypeVar("_Result")


class KeyringUnavailable(Exception):
    """The keyring is missing or fails; the message gives the reason."""


class Keyring:
    """The entries of this program in the keyring that `keyring` chooses.

    Values are cached: some systems prompt the user on every read.

    Raises:
        KeyringUnavailable: No keyring can store secrets.
    """

    _known: ClassVar[dict[tuple[str, str], str]] = {}

    def __init__(self) -> None:
        try:
            import keyring
        except ImportError:
            raise KeyringUnavailable(
                "the package 'keyring' is not installed; install it with: pip install 'amplifier[keyring]'"
            ) from None
        self._backend: Any = _call_with_limit(keyring.get_keyring)
        priority = _call_with_limit(lambda: self._backend.priority)
        if not isinstance(priority, (int, float)) or priority < _LOWEST_PRIORITY:
            raise KeyringUnavailable("the system has no keyring")
        # Another home means another user, or a test.
        moved = os.environ.get("AMPLIFIER_HOME")
        self._service = f"amplifier {paths.config_dir()}" if moved else "amplifier"

    @property
    def name(self) -> str:
        """The name of the backend, for the user."""
        return str(getattr(self._backend, "name", type(self._backend).__name__))

    def read(self, name: str) -> str | None:
        """The entry called `name`, if there is one.

        Raises:
            KeyringUnavailable: It is locked, refuses, or does not answer.
        """
        if (self._service, name) not in self._known:
            value = _call_with_limit(lambda: self._backend.get_password(self._service, name))
            if not (isinstance(value, str) and value):
                return None
            self._known[self._service, name] = value
        return self._known[self._service, name]

    def write(self, name: str, value: str) -> None:
        """Store `value`, and verify that it was stored.

        Raises:
            KeyringUnavailable: It is locked, refuses, or does not answer.
        """
        self._known.pop((self._service, name), None)
        _call_with_limit(lambda: self._backend.set_password(self._service, name, value))
        if self.read(name) != value:
            raise KeyringUnavailable("the keyring returned a different value than the one stored")

    def remove(self, name: str) -> None:
        """Remove the entry, if there is one.

        Raises:
            KeyringUnavailable: It is locked, refuses, or does not answer.
        """
        if self.read(name) is not None:
            del self._known[self._service, name]
            _call_with_limit(lambda: self._backend.delete_password(self._service, name))


def _call_with_limit(ask: Callable[[], _Result]) -> _Result:
    """The result of `ask`, with a time limit.

    A keyring that prompts for a password where no user can see the prompt never answers.
    """
    answers: list[_Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        # Backends are plugins for system services and may raise anything.
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="keyring", daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    if failures:
        error = failures[0]
        raise KeyringUnavailable(f"the keyring failed: {str(error) or type(error).__name__}")
    if not answers:
        raise KeyringUnavailable(f"the keyring did not answer in {_ANSWER_SECONDS:g} s")
    return answers[0]
