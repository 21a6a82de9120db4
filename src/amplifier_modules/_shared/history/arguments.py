"""Parses the arguments of tool calls, which a model wrote as JSON."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn, cast

from amplifier_modules._shared.history.values import MAX_DEPTH, is_deeper

TOO_DEEP = f"the input is nested more than {MAX_DEPTH} levels deep"
_SHOWN = 500


class InvalidArguments(ValueError):
    """The text is not a JSON object that a tool can get; the message is for the model."""


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments in a JSON text; none for a blank text. If a key is repeated, the last one counts.

    Raises:
        InvalidArguments: It is not JSON, not an object, nested more than `MAX_DEPTH` levels deep, or
            has a number that is not finite.
    """
    if not text or text.isspace():
        return {}
    try:
        value: Any = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise InvalidArguments(TOO_DEEP) from None
    except ValueError as error:
        problem = f"the input is not valid JSON ({error}): {text[:_SHOWN]}"
        raise InvalidArguments(problem) from error
    if not isinstance(value, dict):
        raise InvalidArguments(f"the input must be a JSON object, not {type(value).__name__}")
    # Only a text with this many brackets can be so deep.
    if text.count("{") + text.count("[") > MAX_DEPTH and is_deeper(value, MAX_DEPTH):
        raise InvalidArguments(TOO_DEEP)
    return cast("dict[str, Any]", value)


def arguments_or_text(text: str) -> tuple[dict[str, Any], str | None]:
    """The arguments in a JSON text and None; or none and the text, if it is not valid."""
    try:
        return parse_arguments(text), None
    except InvalidArguments:
        return {}, text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is out of range")
    return number
