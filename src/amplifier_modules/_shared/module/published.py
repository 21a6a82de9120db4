"""Config keys of the published modules that bundled ones share their names with.

A plan written for a published module runs here without its source as well, so each of its keys has
a meaning here, is ignored with a warning, or, where ignoring it would allow what the plan forbids,
is refused with the reason. A config model lists those that are no settings of its own as
`published`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

logger = logging.getLogger(__name__)


class Published(NamedTuple):
    """What a key of the published module comes to here.

    Attributes:
        setting: The setting it is another name of, with dots where that is inside another one;
            None where there is none.
        note: Why there is none, and what to use instead.
        harmless: Values of a refused key that ask for nothing; None where the key is ignored.
        convert: Turns its value into the setting's.
        schema: JSON Schema of its value, where it differs from the setting's.
    """

    setting: str | None = None
    note: str = ""
    harmless: tuple[Any, ...] | None = None
    convert: Callable[[Any], Any] | None = None
    schema: Mapping[str, Any] | None = None

    @property
    def description(self) -> str:
        """What to say about the key in a schema."""
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
    """A key without an equivalent whose absence allows nothing more."""
    return Published(note=note)


def refused(note: str, *harmless: Any) -> Published:
    """A key that restricts and has no equivalent; None and `harmless` values are accepted."""
    return Published(note=note, harmless=(None, *harmless))


class PublishedKeyError(Exception):
    """A published key cannot be used as given; the message starts with the key."""


def with_own_names(
    table: Mapping[str, Published], given: Mapping[str, Any], module_id: str
) -> dict[str, Any]:
    """A module's config with published keys replaced by the module's own; warns of ignored ones.

    A null is an absent key. Of an ignored key, only a value that asks for something is worth a
    warning.

    Raises:
        PublishedKeyError: A key is refused, or a setting is given under two names.
    """
    own = {key: value for key, value in given.items() if key not in table}
    for key, value in given.items():
        if key not in table or value is None:
            continue
        meaning = table[key]
        if meaning.setting is not None:
            _put(own, key, meaning, value)
        elif meaning.harmless is None:
            if value not in (False, 0, "", [], {}):
                logger.warning("%s: '%s' has no effect: %s", module_id, key, meaning.note)
        elif value not in meaning.harmless:
            raise PublishedKeyError(f"'{key}' is not supported: {meaning.note}")
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
    raise PublishedKeyError(f"'{key}' and '{outer}' set the same; give only '{outer}'")
