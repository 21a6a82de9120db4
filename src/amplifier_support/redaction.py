"""Replaces secrets in text: known values first, then anything that has the shape of a secret.

Every event of a session comes through here, so most of a text is passed over: what looks like
tokens is cut out, and a pattern is compiled and applied only if one of its hints is there.
"""

from __future__ import annotations

import binascii
import json
import math
import os
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, cast

from amplifier_support.secret_shapes import (
    SENSITIVE_KEYS,
    Shape,
    compiled,
    is_secret_name,
    names_variable,
    refers_to_variables,
    secret_shapes,
)

MAX_DEPTH = 128
"""Levels to look into: more than the input of a tool call may have."""

KNOWN = "secret"
"""Kind of a known value."""

_REDACTED = "[REDACTED]"
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")

RUN = 14
"""Characters of the shortest token."""

_SHORTEST_SECRET = 8
_UNRESERVED = frozenset(f"{string.ascii_letters}{string.digits}-._~")
_SHORT = 64
_LONG = 50_000
_DATA = re.compile(r"[A-Za-z0-9+/]++={0,2}")
"""Matches long encoded data, such as an image, in which every prefix occurs by chance."""

_IN_RUN = frozenset(f"{string.ascii_letters}{string.digits}+/=_.~%-".encode())
_MASK = bytes(ord("x") if byte in _IN_RUN else ord(" ") for byte in range(256))
_RUN_MASK = b"x" * RUN
"""The form of a run after `_MASK`: finding that is several times faster than a regular expression.
"""

_DIGIT = re.compile("[0-9]")
_WORDS = 20
"""Letters from which a run with capitals may be a token."""

_PARTS = ("key", "token", "pass", "-----", "@")
"""Texts that several hints have in common."""

_BEFORE = 100
"""Characters before a token that say what it is: ``ACME_KEY: "…``."""

_REMEMBERED = 2048
"""Recent texts without secrets: keys, names and ids come with every event."""


def secrets_in(
    environment: Mapping[str, str] | None = None, names: Iterable[str] = ()
) -> list[str]:
    """Values of environment variables that are among `names` or named like secrets, longest first."""
    variables = os.environ if environment is None else environment
    known = set(names)
    secrets = {variables[name] for name in variables if name in known or is_secret_name(name)}
    long = (value for value in secrets if len(value) >= _SHORTEST_SECRET)
    return sorted(long, key=len, reverse=True)


def configured_secrets(config: Any) -> list[str]:
    """The secrets in a config, by the names of their keys, whatever variables they came from."""
    return [value for value in _configured(config, 0) if len(value) >= _SHORTEST_SECRET]


def _configured(value: Any, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[Any, Any]", value).items():
            if not isinstance(inner, str):
                yield from _configured(inner, depth + 1)
            elif names_variable(str(key), inner) or refers_to_variables(inner):
                continue
            elif is_sensitive(key) or is_secret_name(str(key)):
                yield inner
    elif isinstance(value, (list, tuple)):
        for inner in cast("list[Any]", value):
            yield from _configured(inner, depth + 1)


def is_sensitive(key: Any) -> bool:
    """Return True for a key whose value is secret whatever it looks like."""
    return isinstance(key, str) and key.lower() in SENSITIVE_KEYS


def is_repeated(value: Any, above: tuple[int, ...]) -> bool:
    """Return True if a value contains itself, and so did one before.

    With two references to itself it would otherwise be looked into 2**depth times.

    Args:
        value: The value.
        above: The ids of the values that contain it.
    """
    return id(value) in above and len({*above}) < len(above)


class Redactor:
    """Replaces secrets by ``[REDACTED:kind]``.

    Args:
        known: Values that are secret whatever they look like.
        shapes: What else to look for; earlier ones win. By default everything known to be a secret.
        allowlist: Keys, or dotted paths of keys, whose values are left alone.
    """

    def __init__(
        self,
        known: Iterable[str] = (),
        shapes: Iterable[Shape] | None = None,
        allowlist: Iterable[str] = (),
    ) -> None:
        values = {value for value in known if value}
        forms = {form for value in values for form in _forms(value)}
        self._known = sorted(forms, key=len, reverse=True)
        self._of_words = [
            form for form in self._known if not form.isalnum() and len(form.split()) > 1
        ]
        self._shapes = None if shapes is None else tuple(shapes)
        self._index: _Index | None = None
        self._allowlist = frozenset(allowlist)
        self._clean: set[str] = set()

    def begun_at(self, text: str, end: int) -> int:
        """Return the start of a known value of several words that may continue after `end`.

        It is `end` if there is none.
        """
        first = end
        for value in self._of_words:
            at = text.find(value[0], max(0, end - len(value) + 1), first)
            while at >= 0:
                if value.startswith(text[at:end]):
                    first = at
                    break
                at = text.find(value[0], at + 1, first)
        return first

    def text(self, text: str) -> str:
        """`text` without secrets; the same object if there are none."""
        if text in self._clean:
            return text
        changed = self._replaced(text)
        if changed is text and len(text) <= _SHORT:
            if len(self._clean) >= _REMEMBERED:
                self._clean.clear()
            self._clean.add(text)
        return changed

    def may_change(self, text: str) -> bool:
        """Return False if certainly neither `text` nor a part of it has secrets."""
        return any(value in text for value in self._known) or bool(self._likely(text))

    def _likely(self, text: str) -> list[Shape]:
        if self._index is None:
            self._index = _index(secret_shapes() if self._shapes is None else self._shapes)
        return self._index.likely(text)

    def _replaced(self, text: str) -> str:
        for value in self._known:
            if value in text:
                text = text.replace(value, f"[REDACTED:{KNOWN}]")
        if len(text) >= _LONG and _DATA.fullmatch(text):
            return text
        original = text
        for shape in self._likely(text):
            text = _replace(shape, text)
        return original if text == original else text

    def value(self, value: Any, path: str = "", above: tuple[int, ...] = ()) -> Any:
        """`value` with the secrets in its strings replaced; the same object if it has none.

        Mappings, lists, tuples, pydantic models and dataclasses are looked into and copied where
        something changes; other values are left alone. In mappings, strings under keys that suggest
        a secret are replaced as well. A value that contains itself is looked into once more, and then
        named; `above` has the ids of the values that contain this one.
        """
        if isinstance(value, str):
            return self.text(value)
        if len(above) > MAX_DEPTH:
            return value
        if is_repeated(value, above):
            return f"<{type(value).__name__} nested too deeply>"
        above = (*above, id(value))
        if isinstance(value, Mapping):
            return self._mapping(cast("Mapping[Any, Any]", value), path, above)
        if isinstance(value, (list, tuple)):
            items = cast("list[Any]", value)
            changed = [self.value(item, f"{path}[{i}]", above) for i, item in enumerate(items)]
            if all(new is old for new, old in zip(changed, items, strict=True)):
                return items
            return changed if isinstance(value, list) else tuple(changed)
        if hasattr(type(value), "model_copy"):
            held = {**value.__dict__, **(value.model_extra or {})}
            changes = self._changes(held, path, above)
            return value.model_copy(update=changes) if changes else value
        if is_dataclass(value) and not isinstance(value, type):
            held = {f.name: getattr(value, f.name) for f in fields(value) if hasattr(value, f.name)}
            return _with_fields(value, self._changes(held, path, above))
        return value

    def _mapping(self, value: Mapping[Any, Any], path: str, above: tuple[int, ...]) -> Any:
        # The values themselves: event data would hand out a copy of each.
        held = (
            {key: dict.__getitem__(value, key) for key in value}
            if isinstance(value, dict)
            else dict(value)
        )
        changes = self._changes(held, path, above)
        keys = {key: self.text(key) for key in held if isinstance(key, str)}
        renamed = any(new is not old for old, new in keys.items())
        if not changes and not renamed:
            return value
        return {keys.get(key, key): changes.get(key, item) for key, item in held.items()}

    def _changes(
        self, held: Mapping[Any, Any], path: str, above: tuple[int, ...]
    ) -> dict[Any, Any]:
        changes: dict[Any, Any] = {}
        for key, item in held.items():
            inner = f"{path}.{key}" if path else str(key)
            if key in self._allowlist or inner in self._allowlist:
                continue
            if is_sensitive(key) and isinstance(item, str) and item:
                is_safe = item.startswith("[REDACTED") or refers_to_variables(item)
                new: Any = item if is_safe else f"[REDACTED:{KNOWN}]"
            else:
                new = self.value(item, inner, above)
            if new is not item:
                changes[key] = new
        return changes


@lru_cache(maxsize=8)
def shared_redactor(known: frozenset[str]) -> Redactor:
    """Return a `Redactor` of these values, the same one for all sessions of a process that know them."""
    return Redactor(known)


@lru_cache(maxsize=256)
def _forms(value: str) -> frozenset[str]:
    """A value and what it becomes in JSON, URLs, UTF-16 and Base64."""
    raw = value.encode("utf-8", "surrogatepass")
    forms = {value, json.dumps(value)[1:-1], "".join(map(_in_url, raw))}
    if len(raw) >= _SHORTEST_SECRET:
        forms.add("\0".join(value))
        forms |= {text for lead in range(3) for text in _in_base64(raw, lead)}
    return frozenset(forms)


def _in_url(byte: int) -> str:
    return chr(byte) if chr(byte) in _UNRESERVED else f"%{byte:02X}"


def _in_base64(raw: bytes, lead: int) -> tuple[str, str]:
    """Base64 of a value after `lead` other bytes: the part that depends only on the value."""
    encoded = binascii.b2a_base64(bytes(lead) + raw, newline=False).decode()
    stable = encoded[-(-lead * 8 // 6) : (lead + len(raw)) * 8 // 6]
    return stable, stable.replace("+", "-").replace("/", "_")


def _with_fields(value: Any, changes: Mapping[str, Any]) -> Any:
    if not changes:
        return value
    twin = copy(value)
    for name, item in changes.items():
        # object's own setter: frozen dataclasses refuse theirs.
        object.__setattr__(twin, name, item)
    return twin


class _Index:
    """The shapes by their hints."""

    def __init__(self, shapes: tuple[Shape, ...]) -> None:
        self._shapes = shapes
        everywhere: dict[str, list[int]] = {}
        self._in_runs: dict[str, list[int]] = {}
        for number, shape in enumerate(shapes):
            hints = everywhere if shape.everywhere else self._in_runs
            for hint in shape.hints or ("",):
                hints.setdefault(hint, []).append(number)
        # By a part that many of them share: one search then passes over all of these.
        self._everywhere: dict[str, list[tuple[str, list[int]]]] = {}
        for hint, numbers in everywhere.items():
            part = next((part for part in _PARTS if part in hint), hint)
            self._everywhere.setdefault(part, []).append((hint, numbers))
        # By their first three characters: most of them are in no text at all.
        self._by_start: dict[tuple[str, ...], list[str]] = {}
        self._short: list[str] = []
        for hint in self._in_runs:
            if len(hint) < 3:
                self._short.append(hint)
            else:
                self._by_start.setdefault(tuple(hint[:3]), []).append(hint)

    def likely(self, text: str) -> list[Shape]:
        """The shapes that `text` may contain, in their order."""
        lowered = text.lower()
        likely = {
            number
            for part, hints in self._everywhere.items()
            if part in lowered
            for hint, numbers in hints
            if hint in lowered
            for number in numbers
        }
        if self._in_runs and (runs := _runs(text)):
            starts = self._by_start.keys() & set(zip(runs, runs[1:], runs[2:], strict=False))
            hints = [*self._short, *(hint for start in starts for hint in self._by_start[start])]
            likely.update(n for hint in hints if hint in runs for n in self._in_runs[hint])
        return [self._shapes[number] for number in sorted(likely)] if likely else []


@lru_cache(maxsize=8)
def _index(shapes: tuple[Shape, ...]) -> _Index:
    return _Index(shapes)


def _runs(text: str) -> str:
    """Return the possible tokens of a text, each with the text before it, in lower case."""
    # One byte for each character, whatever it is.
    mask = text.encode("ascii", "replace").translate(_MASK)
    parts: list[str] = []
    end = 0
    begin = mask.find(_RUN_MASK)
    while begin >= 0:
        stop = mask.find(b" ", begin)
        stop = len(mask) if stop < 0 else stop
        run = text[begin:stop]
        if _DIGIT.search(run) or (len(run) >= _WORDS and run != run.lower()):
            start = max(end, begin - _BEFORE)
            parts.append(text[start:stop] if start == end else f" {text[start:stop]}")
            end = stop
        begin = mask.find(_RUN_MASK, stop)
    return "".join(parts).lower()


def _replace(shape: Shape, text: str) -> str:
    def marked(match: re.Match[str]) -> str:
        kept = match.groupdict().get("keep") or ""
        if shape.entropy and _entropy(match[0][len(kept) :]) < shape.entropy:
            return match[0]
        return f"{kept}[REDACTED:{shape.kind}]"

    return compiled(shape).sub(marked, text)


def _entropy(text: str) -> float:
    """Bits per character."""
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares)


def redact_config(config: Any, secrets: Iterable[str] = ()) -> Any:
    """A copy of a mount plan that can be shown and logged.

    Replaces the values of sensitive keys, strings whose keys match `amplifier_support.secret_shapes.SECRET_NAME`, user names and
    passwords in URLs, and all occurrences of `secrets` that have at least 8 characters.
    """
    known = sorted(
        {text for text in secrets if len(text) >= _SHORTEST_SECRET}, key=len, reverse=True
    )

    def redacted(value: Any, key: str = "") -> Any:
        if key.lower() in SENSITIVE_KEYS or (isinstance(value, str) and is_secret_name(key)):
            return _REDACTED
        if isinstance(value, Mapping):
            entries = cast("Mapping[Any, Any]", value).items()
            return {name: redacted(inner, str(name)) for name, inner in entries}
        if isinstance(value, (list, tuple)):
            return [redacted(inner, key) for inner in cast("list[Any]", value)]
        if isinstance(value, str):
            value = _USERINFO.sub(_REDACTED, value)
            for secret in known:
                value = value.replace(secret, _REDACTED)
        return value

    return redacted(config)
