"""Prompts with fields of a row: `Review {{repo}} at {{commit.id}}.`"""

from __future__ import annotations

import re
from typing import Any, cast

from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.json_text import value_text
from amplifier_batch.input.rows import Row

_FIELD = re.compile(r"\\?\{\{\s*([^{}]*?)\s*\}\}")
_NAME = re.compile(r"[^.{}\s][^.{}]*(\.[^.{}]+)*")

_PLAIN_BRACES = r"Write {{field}}; for plain braces write \{{."

_DEFAULT_FIELDS = ("prompt", "text")
"""Fields that are the whole prompt if there is no template."""


class PromptTemplate:
    r"""The prompt of every row.

    `{{field}}` is replaced by a field of the row, `{{field.inner}}` by a value inside it; `\{{` is a plain `{{`.
    Texts are inserted as they are, other values as JSON; what is inserted is not expanded again.

    Args:
        text: The template; None for the row's field `prompt` or `text`.

    Raises:
        UsageError: It contains `{{…}}` that does not name a field.
    """

    def __init__(self, text: str | None) -> None:
        self._text = text
        for match in _FIELD.finditer(text or ""):
            if not match[0].startswith("\\") and not _NAME.fullmatch(match[1]):
                raise UsageError(
                    f"the prompt contains {match[0]!r}, which names no field",
                    hint=_PLAIN_BRACES,
                )
        rest = _FIELD.sub("", text or "").replace(r"\{{", "")
        if "{{" in rest:
            found = rest[rest.index("{{") :][:20]
            raise UsageError(f"the prompt contains {found!r} without '}}}}'", hint=_PLAIN_BRACES)

    def render(self, row: Row) -> str:
        """The prompt of a row.

        Raises:
            ConfigError: The row lacks a field, or the prompt is empty.
        """
        if self._text is None:
            name = next((one for one in _DEFAULT_FIELDS if one in row.fields), _DEFAULT_FIELDS[0])
            value = _value(row, name)
            prompt = "" if value is None else value_text(value)
        else:
            prompt = _FIELD.sub(lambda match: _replaced(match, row), self._text)
        if not prompt.strip():
            raise ConfigError(f"the prompt of row {row.id!r} is empty", location=row.where)
        return prompt


def _replaced(match: re.Match[str], row: Row) -> str:
    if match[0].startswith("\\"):
        return match[0][1:]
    return value_text(_value(row, match[1]))


def _value(row: Row, path: str) -> Any:
    # A column may have a dot in its name.
    if path in row.fields:
        return row.fields[path]
    value: Any = row.fields
    for name in path.split("."):
        if isinstance(value, dict) and name in value:
            value = cast("dict[str, Any]", value)[name]
        elif (
            isinstance(value, list)
            and name.isascii()
            and name.isdecimal()
            and int(name) < len(value)
        ):
            value = cast("list[Any]", value)[int(name)]
        else:
            raise ConfigError(
                f"the row has no field {path!r}",
                hint=f"Its fields: {', '.join(row.fields) or 'none'}. Refer to them as {{{{field}}}} in --prompt.",
                location=row.where,
            )
    return value
