"""The keyring of the operating system, through the library `keyring`.

Importing it costs a quarter of a second, and asking it may open a window that asks for a password:
it is touched only when a key is being stored, or is known to be in it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from amplifier_app.base import paths

_ANSWER_SECONDS = 120.0
"""How long a keyring may take, a person who types a password included."""

_LOWEST_PRIORITY = 1
"""`keyring` gives less to its stand-ins that store nothing, or store in the clear."""

_Result = TypeVar("_Result")


class KeyringUnavailable(Exception):
    """There is no keyring, or it does not do as it is told; the message says why."""


class Keyring:
    """The entries of this program in the keyring that `keyring` chooses.

    What was read once is remembered: some systems ask the user at each reading.

    Raises:
        KeyringUnavailable: There is none that keeps secrets.
    """

    _known: ClassVar[dict[tuple[str, str], str]] = {}

    def __init__(self) -> None:
        try:
            import keyring
        except ImportError:
            raise KeyringUnavailable("the package 'keyring' is not installed") from None
        self._backend: Any = _answered(keyring.get_keyring)
        priority = _answered(lambda: self._backend.priority)
        if not isinstance(priority, (int, float)) or priority < _LOWEST_PRIORITY:
            raise KeyringUnavailable("the system offers no keyring")
        # A home that was moved is another person's, or a test's.
        moved = os.environ.get("AMPLIFIER_HOME")
        self._service = f"amplifier {paths.config_dir()}" if moved else "amplifier"

    @property
    def name(self) -> str:
        """What kind it is, for a person."""
        return str(getattr(self._backend, "name", type(self._backend).__name__))

    def read(self, name: str) -> str | None:
        """The entry called `name`, if there is one.

        Raises:
            KeyringUnavailable: It is locked, refuses, or does not answer.
        """
        if (self._service, name) not in self._known:
            value = _answered(lambda: self._backend.get_password(self._service, name))
            if not (isinstance(value, str) and value):
                return None
            self._known[self._service, name] = value
        return self._known[self._service, name]

    def write(self, name: str, value: str) -> None:
        """Keep `value`, and see that it is kept.

        Raises:
            KeyringUnavailable: It is locked, refuses, or does not answer.
        """
        self._known.pop((self._service, name), None)
        _answered(lambda: self._backend.set_password(self._service, name, value))
        if self.read(name) != value:
            raise KeyringUnavailable("the keyring does not give back what it was given")

    def remove(self, name: str) -> None:
        """Take the entry out, if there is one.

        Raises:
            KeyringUnavailable: It is locked, refuses, or does not answer.
        """
        if self.read(name) is not None:
            del self._known[self._service, name]
            _answered(lambda: self._backend.delete_password(self._service, name))


def _answered(ask: Callable[[], _Result]) -> _Result:
    """What `ask` gives, waited for no longer than a person takes to answer.

    A keyring that asks for a password where there is nobody to see the question never answers.
    """
    answers: list[_Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        # Backends are plugins over system services and raise whatever these raise.
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="keyring", daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    if failures:
        error = failures[0]
        raise KeyringUnavailable(f"the keyring says: {str(error) or type(error).__name__}")
    if not answers:
        raise KeyringUnavailable(f"the keyring did not answer in {_ANSWER_SECONDS:g} s")
    return answers[0]
