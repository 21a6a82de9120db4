"""Regular expressions that are compiled when they are first used."""

from __future__ import annotations

import re
from typing import Any, cast


class _Pattern:
    def __init__(self, text: str, flags: int) -> None:
        self._source = text, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._source), name)
        # From now on the attribute is found without this method.
        setattr(self, name, value)
        return value


def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """`re.compile`, later: for modules that every run imports and few runs use."""
    return cast("re.Pattern[str]", _Pattern(text, flags))
