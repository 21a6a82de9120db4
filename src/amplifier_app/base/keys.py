"""Stored provider keys: in the system's keyring, or else in a file.

    config_dir()/keys/           0700
        keys.json                0600: the names and addresses of stored keys, and the keys not in a keyring

A stored key acts like an environment variable of its name, and the address it was stored for like one next to it.
A real environment variable wins, even an empty one: `ANTHROPIC_API_KEY= amplifier run` ignores the stored key.
So does a real variable with another address, because a key only goes to the address it was stored for.

Importing the library `keyring` takes a quarter of a second, and reading from it may open a password
prompt, so it is used only to store a key, or to read one that is known to be there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from amplifier_app.base import file_writing as files
from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.locks import changing_private
from amplifier_app.base.redact import treat_as_secret
from amplifier_support.environment import set_for_modules, set_key_for_modules
from amplifier_support.files import open_regular
from amplifier_support.installation import install_command
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.provider_access import is_same_address
from amplifier_support.text import without_login

Where = Literal["keyring", "file"]

_VERSION = 1
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_MAX_BYTES = 1 << 20
_AGAIN = "Store the keys again with: amplifier init"


class Stored(NamedTuple):
    """The result of storing a key.

    Attributes:
        where: Where it is stored.
        note: Why it is not in the keyring, if that was tried.
    """

    where: Where
    note: str | None = None


class Address(NamedTuple):
    """The address a key was stored for.

    Attributes:
        variable: The environment variable that providers read it from; empty if there is none.
        url: The address, also if it is the provider's own.
    """

    variable: str
    url: str


class StoredKey(NamedTuple):
    """A stored key, without the key itself.

    Attributes:
        where: Where it is stored.
        address: The address it was stored for; None if its provider has no setting for one, or if an earlier version
            stored it.
    """

    where: Where
    address: Address | None = None

    def overriding(self, name: str, environ: Mapping[str, str]) -> str | None:
        """The environment variable that replaces the key called `name`, if one does."""
        if name in environ:
            return name
        variable, url = self.address or ("", "")
        is_other = bool(environ.get(variable)) and not is_same_address(environ[variable], url)
        return variable if is_other else None

    def unused(self, name: str, by: str) -> str:
        """Why the key called `name` is not used, if the variable `by` overrides it."""
        if by == name or self.address is None:
            return f"the stored {name} is overridden by an environment variable"
        url = without_login(self.address.url)
        return f"the stored {name} is not used: it is for {url}, and {by} is another address"


class KeyStore:
    """The stored keys of one user, by the names of the variables they replace.

    Args:
        folder: The folder of the file; by default `keys/` next to the settings.
        again: What to do about keys that are lost, for the user.
    """

    def __init__(self, folder: Path | None = None, again: str = _AGAIN) -> None:
        self._folder = folder
        self._again = again

    @property
    def folder(self) -> Path:
        return self._folder or paths.config_dir() / "keys"

    @property
    def file(self) -> Path:
        """The file with the names of stored keys."""
        return self.folder / "keys.json"

    def names(self) -> dict[str, StoredKey]:
        """The stored keys by name. A single disk access if there are none.

        Raises:
            ConfigError: The file cannot be trusted or read, or is damaged.
        """
        return {
            name: StoredKey(
                _where(entry), Address(**entry["address"]) if "address" in entry else None
            )
            for name, entry in self._entries().items()
        }

    def notes(self) -> dict[str, str]:
        """The notes on the stored keys, by the names of the keys.

        Raises:
            ConfigError: See `names`.
        """
        return {name: entry.get("note", "") for name, entry in self._entries().items()}

    def read(self, name: str, *, cached: bool = True) -> str:
        """A stored key.

        Args:
            name: The name it is stored under.
            cached: False for a key that another process may have replaced.

        Raises:
            KeyError: It is not stored.
            ConfigError: It is unavailable.
        """
        entry = self._entries()[name]
        if _where(entry) == "file":
            return entry["value"]
        problem = "it is missing"
        try:
            value = Keyring().read(name, cached=cached)
        except KeyringUnavailable as error:
            value, problem = None, str(error)
        if value is None:
            # Only the keys of the user stand for variables.
            instead = f", or set {name}" if self._folder is None else ""
            raise ConfigError(
                f"cannot read the key {name} from the keyring: {problem}",
                hint=f"Unlock the keyring{instead}. {self._again}",
            )
        return value

    def store(
        self,
        name: str,
        value: str,
        where: Where | None = None,
        *,
        note: str = "",
        address: Address | None = None,
    ) -> Stored:
        """Store a key, replacing any key of that name.

        Args:
            name: The environment variable it replaces.
            value: The key.
            where: Where to store it; by default the keyring, or the file if there is none.
            note: A text about the key that is not secret; always in the file.
            address: The address it is for.

        Raises:
            ConfigError: It cannot be stored there, or the file of stored keys is damaged; the file
                is then not changed.
        """
        problem = problem_of_key(value)
        if problem or not re.fullmatch(_NAME, name):
            raise ConfigError(f"cannot store {name}: {problem or 'not a valid variable name'}")
        with self._changing() as entries:
            before = entries.get(name)
            stored = Stored("file")
            if where != "file":
                try:
                    Keyring().write(name, value)
                    stored = Stored("keyring")
                except KeyringUnavailable as error:
                    if where == "keyring":
                        message = f"cannot store {name} in the keyring: {error}"
                        raise ConfigError(message) from error
                    stored = Stored("file", str(error))
            entries[name] = {"note": note} if note else {}
            entries[name]["where"] = stored.where
            if address is not None:
                entries[name]["address"] = address._asdict()
            if stored.where == "file":
                entries[name]["value"] = value
        if before is not None and _where(before) == "keyring" and stored.where == "file":
            _remove_from_keyring(name)
        return stored

    def forget(self, name: str) -> bool:
        """Remove a key; returns whether it was stored.

        Raises:
            ConfigError: The file cannot be written or is damaged.
        """
        if name not in self._entries():
            return False
        with self._changing() as entries:
            entry = entries.pop(name, None)
        if entry is not None and _where(entry) == "keyring":
            _remove_from_keyring(name)
        return entry is not None

    # -- the file ----------------------------------------------------------------------------

    def _entries(self) -> dict[str, dict[str, Any]]:
        try:
            descriptor = open_regular(self.file, os.O_RDONLY)
        except FileNotFoundError:
            return {}
        except OSError as error:
            what = "is a link" if self.file.is_symlink() else f"cannot be read ({error.strerror})"
            raise self._unusable(f"{self.file} {what}") from error
        with open(descriptor, "rb") as stream:
            problem = _distrust(self.folder, os.fstat(stream.fileno()))
            if problem:
                raise self._unusable(problem)
            return _parse(stream.read(_MAX_BYTES + 1), self.file, self._again)

    def _unusable(self, problem: str) -> ConfigError:
        return ConfigError(f"cannot use the stored keys: {problem}", hint=self._again)

    @contextlib.contextmanager
    def _changing(self) -> Generator[dict[str, dict[str, Any]]]:
        """Yield the entries for modification, and write them if the block succeeds."""
        with changing_private(self.folder / "keys.lock", "store keys in"):
            entries = self._entries()
            yield entries
            data = {"version": _VERSION, "keys": entries}
            files.write_private(self.file, json.dumps(data, indent=2) + "\n")


def problem_of_key(value: str) -> str | None:
    """Why a string cannot be a key; None if it can."""
    if not value:
        return "the key is empty"
    if any(character.isspace() for character in value):
        return "the key contains white space"
    if not (value.isascii() and value.isprintable()):
        return "the key contains characters other than printable ASCII"
    return None


def _remove_from_keyring(name: str) -> None:
    # The key is not used any more; leaving it in a locked keyring is harmless.
    with contextlib.suppress(KeyringUnavailable):
        Keyring().remove(name)


def _where(entry: Mapping[str, Any]) -> Where:
    return "keyring" if entry["where"] == "keyring" else "file"


def _distrust(folder: Path, facts: os.stat_result) -> str | None:
    """Why the content of the file may come from another user."""
    file = folder / "keys.json"
    if folder.is_symlink():
        return f"{folder} is a link"
    if os.name == "nt":
        return None
    if facts.st_uid != os.geteuid() != 0:
        return f"{file} belongs to another user"
    if facts.st_mode & 0o022:
        return f"{file} is writable by others; if its content is still yours: chmod 600 '{file}'"
    return None


def _parse(data: bytes, file: Path, again: str) -> dict[str, dict[str, Any]]:
    def damaged(why: str, line: int | None = None) -> ConfigError:
        hint = f"Fix or remove the file. {again}"
        where = Location(str(file), line)
        return ConfigError(f"the stored keys are damaged: {why}", location=where, hint=hint)

    if len(data) > _MAX_BYTES:
        raise damaged("the file is too large")
    try:
        read: Any = json.loads(data)
    except json.JSONDecodeError as error:
        # Its message quotes nothing of the text.
        raise damaged(f"not valid JSON ({error.msg})", error.lineno) from None
    except (ValueError, RecursionError):  # such as a number of 5,000 digits
        raise damaged("not valid JSON") from None
    version = read.get("version") if isinstance(read, dict) else None
    if isinstance(version, int) and version > _VERSION:
        message = "the stored keys were written by a newer version of this program"
        raise ConfigError(message, location=Location(str(file)), hint="Update the program.")
    entries = read.get("keys") if version == _VERSION else None
    if not isinstance(entries, dict):
        raise damaged("unexpected content")
    for name, entry in entries.items():
        if not (re.fullmatch(_NAME, name) and _is_entry(entry)):
            raise damaged("unexpected content in an entry")
    return entries


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("note", ""), str):
        return False
    address = entry.get("address", {"variable": "A", "url": ""})
    if not isinstance(address, dict) or {*address} != {*Address._fields}:
        return False
    if not re.fullmatch(f"({_NAME})?", str(address["variable"])) or not isinstance(
        address["url"], str
    ):
        return False
    if entry.get("where") == "keyring":
        return True
    value = entry.get("value")
    return entry.get("where") == "file" and isinstance(value, str) and not problem_of_key(value)


# -- as variables ------------------------------------------------------------------------


class Environment(Mapping[str, str]):
    """An environment with the stored keys as fallbacks, each with its address; the keyring is read on access.

    Attributes:
        secret: The names of all stored keys, including those overridden by a variable.
        used: The stored keys that no variable overrides.
        unused: The stored keys that are for another address than a variable sets → why they are not used.
        addresses: The addresses of the keys in `used`, by their variables.
    """

    def __init__(
        self, real: Mapping[str, str], store: KeyStore, stored: Mapping[str, StoredKey]
    ) -> None:
        overriding = {name: key.overriding(name, real) for name, key in stored.items()}
        self.secret = frozenset(stored)
        self.used = {name: key for name, key in stored.items() if overriding[name] is None}
        known = [key.address for key in self.used.values() if key.address is not None]
        self.addresses = {address.variable: address.url for address in known if address.variable}
        self.unused = {
            name: stored[name].unused(name, variable)
            for name, variable in overriding.items()
            if variable not in (None, name)
        }
        self._real = real
        self._store = store

    def __getitem__(self, name: str) -> str:
        if name in self.used:
            return self._store.read(name)
        return self.addresses[name] if name in self.addresses else self._real[name]

    def __contains__(self, name: object) -> bool:
        return name in self.used or name in self.addresses or name in self._real

    def __iter__(self) -> Iterator[str]:
        return iter({**self._real, **self.used, **self.addresses})

    def __len__(self) -> int:
        return len({**self._real, **self.used, **self.addresses})


def environment() -> Mapping[str, str]:
    """The variables of this process, and the stored keys with their addresses.

    Accessing a key that cannot be read from the keyring raises `ConfigError`: ignoring it would
    silently use another model than the one chosen.

    Raises:
        ConfigError: See `KeyStore.names`.
    """
    store = KeyStore()
    stored = store.names()
    return Environment(os.environ, store, stored) if stored else os.environ


class Filled(NamedTuple):
    """The result of `fill_environment`.

    Attributes:
        secret: The names of all stored keys, used or not.
        added: The names of the keys that were set.
        problems: One sentence for each key that could not be set.
    """

    secret: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def use_key(name: str, value: str, address: Address | None) -> None:
    """Set a key and its address as environment variables of this process, for its modules."""
    set_key_for_modules(name, value, None if address is None else address.url)
    if address is None or not address.variable:
        return
    if not is_same_address(os.environ.get(address.variable, ""), address.url):
        # A command that finds it there would send keys of its own to it.
        set_for_modules(address.variable, address.url)


def fill_environment() -> Filled:
    """Set the stored keys and their addresses as environment variables of this process, for its modules.

    Raises:
        ConfigError: See `KeyStore.names`.
    """
    store = KeyStore()
    stored = store.names()
    treat_as_secret(stored)
    added: list[str] = []
    environ = Environment(os.environ, store, stored)
    problems = [*environ.unused.values()]
    for name, key in environ.used.items():
        try:
            use_key(name, store.read(name), key.address)
            added.append(name)
        except ConfigError as error:
            problems.append(error.message)
    return Filled(tuple(stored), tuple(added), tuple(problems))


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
                f"the package 'keyring' is not installed; install it with: {install_command('keyring')}"
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

    def read(self, name: str, *, cached: bool = True) -> str | None:
        """The entry called `name`, if there is one.

        Raises:
            KeyringUnavailable: It is locked, refuses, or does not answer.
        """
        if not cached or (self._service, name) not in self._known:
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
