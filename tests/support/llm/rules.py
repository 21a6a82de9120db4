"""What both dialects' rules are written with."""

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


def find_kind(value: Any) -> str:
    """A JSON value's type as the vendors' messages call it."""
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return names.get(type(value), "array" if isinstance(value, list) else "object")


def wrong_type(param: str, expected: str, value: Any) -> Rejected:
    """The answer to a parameter of the wrong type, in the OpenAI dialect."""
    article = "an" if find_kind(value)[0] in "aio" else "a"
    return Rejected(
        f"Invalid type for '{param}': expected {expected}, but got {article} {find_kind(value)} "
        "instead.",
        param=param,
        code="invalid_type",
    )
