"""Keys of providers that are kept for runs to come: in the system's keyring, else in a file.

    config_dir()/keys/           0700
        keys.json                0600: which keys are stored, and those that no keyring holds

A stored key acts like an environment variable of its name. A variable that really is set wins,
also when it is set to nothing: `ANTHROPIC_API_KEY= amplifier run` leaves the stored key out.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location, SessionError
from amplifier_support.private_files import open_regular

Where = Literal["keyring", "file"]

_VERSION = 1
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_MAX_BYTES = 1 << 20
_AGAIN = "Store the keys again with: amplifier init"


class Stored(NamedTuple):
    """What was done with a key.

    Attributes:
        where: Where it is kept now.
        note: Why it is not in the keyring, if that was tried.
    """

    where: Where
    note: str | None = None


class KeyStore:
    """The stored keys of one user, by the names of the variables they stand in for.

    Args:
        folder: Where the file lies, `keys/` in the folder of the settings by default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        return self._folder or paths.config_dir() / "keys"

    @property
    def file(self) -> Path:
        """The file that knows which keys are stored."""
        return self.folder / "keys.json"

    def names(self) -> dict[str, Where]:
        """The stored keys and where each one is. Costs one look at the disk if there are none.

        Raises:
            ConfigError: The file cannot be trusted or read, or is damaged.
        """
        return {name: _where(entry) for name, entry in self._entries().items()}

    def read(self, name: str) -> str:
        """A stored key.

        Raises:
            KeyError: It is not stored.
            ConfigError: It cannot be had.
        """
        entry = self._entries()[name]
        return entry["value"] if _where(entry) == "file" else _from_keyring(name)

    def store(self, name: str, value: str, where: Where | None = None) -> Stored:
        """Keep a key, in place of the one of that name.

        Args:
            name: The environment variable it stands in for.
            value: The key.
            where: Where to; the keyring by default, and the file if there is none.

        Raises:
            ConfigError: It cannot be kept there, or the file of stored keys is damaged, which it
                stays.
        """
        problem = problem_of_key(value)
        if problem or not re.fullmatch(_NAME, name):
            raise ConfigError(f"cannot store {name}: {problem or 'that is no name of a variable'}")
        with self._changing() as entries:
            before = entries.get(name)
            stored = (
                _into_keyring(name, value, must=where == "keyring") if where != "file" else None
            )
            if stored is None or stored.where == "file":
                entries[name] = {"where": "file", "value": value}
            else:
                entries[name] = {"where": "keyring"}
        now = stored or Stored("file")
        if before is not None and _where(before) == "keyring" and now.where == "file":
            _out_of_keyring(name)
        return now

    def forget(self, name: str) -> bool:
        """Remove a key; whether there was one.

        Raises:
            ConfigError: The file cannot be written or is damaged.
        """
        if name not in self._entries():
            return False
        with self._changing() as entries:
            entry = entries.pop(name, None)
        if entry is not None and _where(entry) == "keyring":
            _out_of_keyring(name)
        return entry is not None

    # -- the file ----------------------------------------------------------------------------

    def _entries(self) -> dict[str, dict[str, str]]:
        try:
            descriptor = open_regular(self.file, os.O_RDONLY)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._refused(_why_not_opened(self.file, error)) from error
        with open(descriptor, "rb") as stream:
            problem = _distrust(self.folder, os.fstat(stream.fileno()))
            if problem:
                raise self._refused(problem)
            return _parsed(stream.read(_MAX_BYTES + 1), self.file)

    def _refused(self, problem: str) -> ConfigError:
        return ConfigError(f"the stored keys are not used: {problem}", hint=_AGAIN)

    @contextlib.contextmanager
    def _changing(self) -> Generator[dict[str, dict[str, str]]]:
        """The entries, to be changed; written when the block ends without an error."""
        import json

        from amplifier_app.base import private_files as files
        from amplifier_app.base.locks import locked

        lock = self.folder / "keys.lock"
        try:
            files.make_private_folder(self.folder)
            self.folder.chmod(files.FOLDER_MODE)
            os.close(files.open_private(lock, os.O_RDWR | os.O_CREAT))
            with locked(lock, None):
                entries = self._entries()
                yield entries
                data = {"version": _VERSION, "keys": entries}
                files.write_private(self.file, json.dumps(data, indent=2) + "\n")
        except SessionError as error:
            raise ConfigError(error.message, hint=error.hint) from error
        except OSError as error:
            raise ConfigError(f"cannot store keys in {self.folder}: {error.strerror}") from error


def problem_of_key(value: str) -> str | None:
    """What is wrong with a text that is to be a key; None if it could be one."""
    if not value:
        return "the key is empty"
    if any(character.isspace() for character in value):
        return "the key has white space in it"
    if not (value.isascii() and value.isprintable()):
        return "the key has characters in it that no key has"
    return None


def _where(entry: Mapping[str, str]) -> Where:
    return "keyring" if entry["where"] == "keyring" else "file"


def _why_not_opened(file: Path, error: OSError) -> str:
    what = "is a link" if file.is_symlink() else f"cannot be read ({error.strerror})"
    return f"{file} {what}"


def _distrust(folder: Path, facts: os.stat_result) -> str | None:
    """Why what is in the file may be somebody else's."""
    file = folder / "keys.json"
    if folder.is_symlink():
        return f"{folder} is a link"
    if os.name == "nt":
        return None
    if facts.st_uid != os.geteuid() != 0:
        return f"{file} belongs to another user"
    if facts.st_mode & 0o022:
        return f"{file} can be written by others; if it is as you left it: chmod 600 '{file}'"
    return None


def _parsed(data: bytes, file: Path) -> dict[str, dict[str, str]]:
    import json

    def damaged(why: str, line: int | None = None) -> ConfigError:
        hint = f"Mend it, or remove it. {_AGAIN}"
        where = Location(str(file), line)
        return ConfigError(f"the stored keys are damaged: {why}", location=where, hint=hint)

    if len(data) > _MAX_BYTES:
        raise damaged("the file is too large")
    try:
        read: Any = json.loads(data)
    except json.JSONDecodeError as error:
        # Its message quotes nothing of the text.
        raise damaged(f"it is no JSON ({error.msg})", error.lineno) from None
    except (UnicodeDecodeError, RecursionError):
        raise damaged("it is no JSON") from None
    version = read.get("version") if isinstance(read, dict) else None
    if isinstance(version, int) and version > _VERSION:
        message = "the stored keys were written by a newer version of this program"
        raise ConfigError(message, location=Location(str(file)), hint="Update this one.")
    entries = read.get("keys") if version == _VERSION else None
    if not isinstance(entries, dict):
        raise damaged("it is not what this program writes")
    for name, entry in entries.items():
        if not (re.fullmatch(_NAME, name) and _is_entry(entry)):
            raise damaged("one of its entries is not what this program writes")
    return entries


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    if entry.get("where") == "keyring":
        return True
    value = entry.get("value")
    return entry.get("where") == "file" and isinstance(value, str) and not problem_of_key(value)


# -- the keyring -----------------------------------------------------------------------------


def _into_keyring(name: str, value: str, *, must: bool) -> Stored:
    from amplifier_app.base.os_keyring import Keyring, KeyringUnavailable

    try:
        Keyring().write(name, value)
    except KeyringUnavailable as error:
        if must:
            raise ConfigError(f"{name} cannot be put into the keyring: {error}") from error
        return Stored("file", str(error))
    return Stored("keyring")


def _from_keyring(name: str) -> str:
    from amplifier_app.base.os_keyring import Keyring, KeyringUnavailable

    problem = "it is not there"
    try:
        value = Keyring().read(name)
    except KeyringUnavailable as error:
        value, problem = None, str(error)
    if value is None:
        raise ConfigError(
            f"the key {name} is stored in the keyring and cannot be read: {problem}",
            hint=f"Unlock the keyring, set {name}, or store the key anew with: amplifier init",
        )
    return value


def _out_of_keyring(name: str) -> None:
    from amplifier_app.base.os_keyring import Keyring, KeyringUnavailable

    # The key is not used any more; one that stays behind in a locked keyring does no harm.
    with contextlib.suppress(KeyringUnavailable):
        Keyring().remove(name)


# -- as variables ----------------------------------------------------------------------------


class Environment(Mapping[str, str]):
    """An environment with the stored keys under it; one in the keyring is read when asked for.

    Attributes:
        secret: The names of all stored keys, those that a variable replaces included.
    """

    def __init__(self, real: Mapping[str, str], store: KeyStore, stored: Iterable[str]) -> None:
        self.secret = frozenset(stored)
        self._real = real
        self._store = store
        self._stored = self.secret - set(real)

    def __getitem__(self, name: str) -> str:
        return self._store.read(name) if name in self._stored else self._real[name]

    def __contains__(self, name: object) -> bool:
        return name in self._stored or name in self._real

    def __iter__(self) -> Iterator[str]:
        yield from self._real
        yield from self._stored

    def __len__(self) -> int:
        return len(self._real) + len(self._stored)


def environment() -> Mapping[str, str]:
    """The variables of this process and the stored keys.

    Looking up a key that is in the keyring and cannot be read is a `ConfigError`: going on as if
    it were not stored would answer with another model than the one that was chosen.

    Raises:
        ConfigError: As of `KeyStore.names`.
    """
    store = KeyStore()
    stored = store.names()
    return Environment(os.environ, store, stored) if stored else os.environ


class Filled(NamedTuple):
    """What `fill_environment` did.

    Attributes:
        secret: The names of all stored keys, whether they were needed or not.
        added: Those that are now set because they are stored.
        problems: Why others are not, a sentence each.
    """

    secret: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def fill_environment(environ: MutableMapping[str, str] | None = None) -> Filled:
    """Set the stored keys as variables of this process, where its modules look for them.

    Raises:
        ConfigError: As of `KeyStore.names`.
    """
    target = os.environ if environ is None else environ
    store = KeyStore()
    names = store.names()
    added: list[str] = []
    problems: list[str] = []
    for name in names:
        if name in target:
            continue
        try:
            target[name] = store.read(name)
            added.append(name)
        except ConfigError as error:
            problems.append(error.message)
    return Filled(tuple(names), tuple(added), tuple(problems))
