"""Environments for child processes: without keys, or with nothing but what a program needs to start.

Any process of the same user can read the environment a program was started with, for as long as it
runs. A key therefore goes to a child only when the child is meant to use it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase

from amplifier_support.text import lazy_pattern

_VENDORS = (
    "ANTHROPIC|OPENAI|AZURE|GEMINI|GOOGLE|MISTRAL|GROQ|COHERE|XAI|DEEPSEEK|OPENROUTER|PERPLEXITY"
)
_MODEL_KEY = lazy_pattern(
    rf"(^|_)API_?KEYS?(_|$) | ^({_VENDORS})_(.*_)?(KEY|TOKEN)$", re.VERBOSE | re.IGNORECASE
)
# Fewer names than `secret_names.SECRET_NAME`, with which only texts are redacted: programs need
# variables such as GPG_KEY_ID.
_WITHHELD = lazy_pattern(
    rf"""(^|_)(
        (API|ACCESS|SECRET|PRIVATE|AUTH|SUBSCRIPTION|SERVICE|ACCOUNT|LICENSE)_?KEY
      | TOKEN | SECRET | PASSPHRASE | CREDENTIAL | PASS | PAT
    )S?(_|$)
    | PASSWORD | PASSWD | [A-Z0-9]_PWD$
    | ^({_VENDORS})_(.*_)?KEY$
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SHORTEST_SECRET = 8
# Entries that are not absolute, or empty, mean whatever folder a command works in.
_SEARCHED = frozenset(
    {"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"}
)
_LOADED = frozenset({"LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES"})
_READ_FIRST = frozenset({"BASH_ENV", "RIPGREP_CONFIG_PATH", "MAGIC", "GCONV_PATH", "LOCPATH"})
_TO_START = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")


_set_for_modules: dict[str, str] = {}
_addresses: dict[str, str | None] = {}
_withheld: Counter[str] = Counter()


def set_for_modules(name: str, value: str) -> None:
    """Set an environment variable that only the modules of this process get, not its commands."""
    _set_for_modules[name] = value
    if not _withheld[name]:
        os.environ[name] = value


def set_key_for_modules(name: str, key: str, address: str | None) -> None:
    """Like `set_for_modules`, for a key that was stored for an address; None if that is unknown."""
    set_for_modules(name, key)
    _addresses[name] = address


def is_set_for_modules(name: str) -> bool:
    """Return True if an environment variable has the value of `set_for_modules`."""
    return name in _set_for_modules and os.environ.get(name) == _set_for_modules[name]


def stored_addresses() -> dict[str, str | None]:
    """Return the variables of `set_key_for_modules`, each with the address of its key."""
    return {
        name: url for name, url in _addresses.items() if _withheld[name] or is_set_for_modules(name)
    }


@contextmanager
def withholding(names: Iterable[str]) -> Generator[None]:
    """Remove variables of `set_for_modules` from the environment of this process for a while."""
    held = [name for name in names if _withheld[name] or is_set_for_modules(name)]
    _withheld.update(held)
    for name in held:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        _withheld.subtract(held)
        for name in held:
            if not _withheld[name]:
                os.environ.setdefault(name, _set_for_modules[name])


def inherited_environment() -> dict[str, str]:
    """Return the variables of this process without those of `set_for_modules`."""
    return {name: value for name, value in os.environ.items() if not is_set_for_modules(name)}


def without_secrets(
    own: Mapping[str, str],
    *,
    secrets: Iterable[str] = (),
    passthrough: Iterable[str] = (),
    secret_names: Iterable[str] = (),
) -> dict[str, str]:
    """The variables of `own` that a command gets, without paths relative to where it works.

    Leaves out those with the name of a secret, those of `secret_names` and `set_for_modules`, and those with one of
    `secrets` or the value of one of `secret_names` in their value, unless a pattern of
    `passthrough` matches the name.
    """
    kept = list(passthrough)
    own = _without_relative_paths(own)
    named = set(secret_names)
    known = [*secrets, *(own[name] for name in named if name in own)]
    values = [secret for secret in known if len(secret) >= _SHORTEST_SECRET]
    return {
        name: value
        for name, value in own.items()
        if any(fnmatchcase(name, pattern) for pattern in kept)
        or not (
            name in named
            or is_set_for_modules(name)
            or _WITHHELD.search(name)
            or any(secret in value for secret in values)
        )
    }


def absolute_entries(path: str) -> str:
    """A PATH without relative and empty entries."""
    return os.pathsep.join(entry for entry in path.split(os.pathsep) if os.path.isabs(entry))


def _without_relative_paths(own: Mapping[str, str]) -> dict[str, str]:
    """The variables of `own` with which a folder cannot choose what a program loads or runs."""
    kept: dict[str, str] = {}
    for name, value in own.items():
        if name in _SEARCHED:
            value = absolute_entries(value) or (os.defpath if name == "PATH" else "")
        elif name in _LOADED:
            # A name alone is searched for in the folders of the system.
            entries = value.replace(" ", os.pathsep).split(os.pathsep)
            value = value if all(os.path.isabs(e) or "/" not in e for e in entries) else ""
        elif name in _READ_FIRST:
            value = value if value.startswith(("/", "~", "$")) else ""
        elif name == "CDPATH":
            value = ""
        else:
            kept[name] = value
            continue
        if value:
            kept[name] = value
    return kept


def without_model_keys(own: Mapping[str, str]) -> dict[str, str]:
    """The variables of `own` without keys of model providers.

    Other credentials stay: a package client needs those of its index, which may have any name.
    """
    kept = _without_relative_paths(own)
    return {name: value for name, value in kept.items() if not _MODEL_KEY.search(name)}


def minimal_environment() -> dict[str, str]:
    """Return the variables an interpreter or a search program needs to start; no PATH."""
    return _without_relative_paths(
        {name: os.environ[name] for name in _TO_START if name in os.environ}
    )
