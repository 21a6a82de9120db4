"""Config keys of published modules with the same names as bundled ones.

A plan written for a published module also runs here without that module's source. Each of its keys
is therefore mapped to a setting, ignored with a warning, or, if ignoring it would allow something that
the plan forbids, rejected with the reason. A config model lists those that are not its own settings as
`published`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

logger = logging.getLogger(__name__)


class Published(NamedTuple):
    """How a key of the published module is handled.

    Attributes:
        setting: The setting it maps to, dotted if nested; None if there is none.
        note: Why there is none, and what to use instead.
        harmless: Accepted values of a rejected key, which have no effect; None for an ignored key.
        convert: Converts its value to the setting's.
        schema: JSON Schema of its value, if it differs from the setting's.
    """

    setting: str | None = None
    note: str = ""
    harmless: tuple[Any, ...] | None = None
    convert: Callable[[Any], Any] | None = None
    schema: Mapping[str, Any] | None = None

    @property
    def description(self) -> str:
        """The key's description in a schema."""
        if self.setting is not None:
            return f"Published name of `{self.setting}`."
        return f"{'Has no effect' if self.harmless is None else 'Not supported'}: {self.note}."


def another_name_of(
    setting: str,
    convert: Callable[[Any], Any] | None = None,
    schema: Mapping[str, Any] | None = None,
) -> Published:
    """A key with the meaning of a setting."""
    return Published(setting, convert=convert, schema=schema)


def ignored(note: str) -> Published:
    """A key without an equivalent that is safe to ignore."""
    return Published(note=note)


def refused(note: str, *harmless: Any) -> Published:
    """A restrictive key without an equivalent; None and `harmless` values are accepted."""
    return Published(note=note, harmless=(None, *harmless))


class PublishedKeyError(Exception):
    """The value of a published key is not supported; the message starts with the key."""


def with_own_names(
    table: Mapping[str, Published], given: Mapping[str, Any], module_id: str
) -> dict[str, Any]:
    """Replace published keys in a config with the module's own; warn of ignored ones.

    A null counts as absent. Ignored keys cause one warning, if their values would have an effect.

    Raises:
        PublishedKeyError: A key is rejected, or a setting is given under two names.
    """
    own = {key: value for key, value in given.items() if key not in table}
    without_effect: dict[str, list[str]] = {}
    for key, value in given.items():
        if key not in table or value is None:
            continue
        meaning = table[key]
        if meaning.setting is not None:
            _put(own, key, meaning, value)
        elif meaning.harmless is None:
            if value not in (False, 0, "", [], {}):
                without_effect.setdefault(meaning.note, []).append(f"'{key}'")
        elif value not in meaning.harmless:
            raise PublishedKeyError(f"'{key}' is not supported: {meaning.note}")
    if without_effect:
        notes = (
            f"{', '.join(keys)} {'has' if len(keys) == 1 else 'have'} no effect: {note}"
            for note, keys in without_effect.items()
        )
        logger.warning("%s: %s", module_id, "; ".join(notes))
    return own


def _put(own: dict[str, Any], key: str, meaning: Published, value: Any) -> None:
    outer, _, inner = str(meaning.setting).partition(".")
    value = meaning.convert(value) if meaning.convert is not None else value
    if inner:
        before = own.get(outer) or {}
        if isinstance(before, dict) and inner not in before:
            own[outer] = {**cast("dict[str, Any]", before), inner: value}
            return
    elif outer not in own:
        own[outer] = value
        return
    raise PublishedKeyError(f"'{key}' and '{outer}' are the same setting; give only '{outer}'")
