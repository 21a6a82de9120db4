"""What both dialects' rules are written with."""

from __future__ import annotations

from typing import Any


class Rejected(Exception):
    """The request breaks a rule of the vendor's API.

    Attributes:
        error: Vendor's error type, or code in the OpenAI dialect.
        param: Name of the parameter, in the OpenAI dialect.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        error: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.error = error
        self.param = param
        self.code = code


def kind_of(value: Any) -> str:
    """A JSON value's type as the vendors' messages call it."""
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return names.get(type(value), "array" if isinstance(value, list) else "object")
