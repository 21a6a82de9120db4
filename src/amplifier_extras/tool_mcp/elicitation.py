"""Questions of servers to the user: forms to fill in, and pages to open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from mcp_types import ElicitRequestURLParams, ElicitResult

from amplifier_app.base.sanitize import one_line, visible
from amplifier_app.plan.source_spec import LOOPBACK
from amplifier_core.approval import AnswerSystem, ApprovalTimeoutError
from amplifier_extras.tool_mcp.login import open_page
from amplifier_support.fields import to_mapping

_DECLINE = "Decline"
_OPEN = "Open the page"
_ANSWER = "Answer"
_NONE = "(no answer)"
_MAX_TEXT = 4000
_MAX_LABEL = 80
_MAX_FIELDS = 40
_MAX_LISTED = 12
_ATTEMPTS = 3


class _Declined(Exception):
    """The user does not answer, or there is no one to ask."""


async def ask_user(system: Any, server: str, params: Any) -> ElicitResult:
    """Ask the user what a server asks.

    Args:
        system: The session's approval system; unless it is an `AnswerSystem`, the answer is no.
        server: The server's name.
        params: The SDK's parameters of `elicitation/create`.

    Returns:
        What the user answered; `decline` if no one can answer.
    """
    if not isinstance(system, AnswerSystem):
        return ElicitResult(action="decline")
    try:
        if isinstance(params, ElicitRequestURLParams):
            await _ask_to_open(system, server, params)
            return ElicitResult(action="accept")
        form = _Form(system, server, params.message, params.requested_schema)
        return ElicitResult(action="accept", content=await form.fill_in())
    except (_Declined, ApprovalTimeoutError):
        return ElicitResult(action="decline")


async def _ask_to_open(system: AnswerSystem, server: str, params: ElicitRequestURLParams) -> None:
    """
    Raises:
        _Declined: The page is not opened.
    """
    parts = urlsplit(params.url)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
    # What comes before an @ looks like a host.
    is_safe = is_safe and "@" not in parts.netloc
    if not is_safe or not params.url.isascii() or not params.url.isprintable():
        raise _Declined
    question = (
        f"The MCP server {server} asks you to open a page of {parts.netloc}:\n"
        f"{_quote(params.url)}\n{_quote(params.message)}"
    )
    if await system.request_answer(question, [_OPEN, _DECLINE], None) != _OPEN:
        raise _Declined
    open_page(params.url)


class _Form:
    """A form of a server.

    Args:
        system: Asks the user.
        server: The server's name.
        message: What the form is for.
        schema: The JSON schema of the answer, an object of simple values.
    """

    def __init__(self, system: AnswerSystem, server: str, message: str, schema: Any) -> None:
        self._system = system
        self._server = server
        self._message = message
        properties = to_mapping(to_mapping(schema).get("properties"))
        self._fields = {name: to_mapping(each) for name, each in properties.items()}
        self._required = to_mapping(schema).get("required") or ()

    async def fill_in(self) -> dict[str, Any]:
        """Return the user's answers by the names of the fields.

        Raises:
            _Declined: There are none.
            ApprovalTimeoutError: The user did not answer in time.
        """
        if len(self._fields) > _MAX_FIELDS:
            raise _Declined
        titles = ", ".join(_title(name, field) for name, field in self._fields.items())
        wants = f"\nIt wants to know: {titles}" if titles else ""
        question = f"The MCP server {self._server} asks:\n{_quote(self._message)}{wants}"
        if await self._system.request_answer(question, [_ANSWER, _DECLINE], None) != _ANSWER:
            raise _Declined
        answers = {name: await self._ask(name, field) for name, field in self._fields.items()}
        return {name: answer for name, answer in answers.items() if answer is not None}

    async def _ask(self, name: str, field: Mapping[str, Any]) -> Any:
        """The answer to one field; None for none."""
        choices = dict(_choices(field))
        is_optional = name not in self._required
        default = field.get("default")
        lines = [f"{_title(name, field)} (for {self._server})"]
        if about := field.get("description"):
            lines.append(_quote(str(about)))
        if field.get("type") != "array" and 0 < len(choices) <= _MAX_LISTED:
            usual = [label for label, value in choices.items() if value == default]
            rest = [label for label in choices if label not in usual]
            options = [*usual, *rest, *([_NONE] if is_optional else []), _DECLINE]
            answer = await self._system.request_answer("\n".join(lines), options, None)
            if answer is None or answer == _DECLINE:
                raise _Declined
            return choices.get(answer)
        if choices:
            lines.append(f"Choose from: {', '.join(choices)}")
        if field.get("type") == "array":
            lines.append("Separate several answers by commas.")
        if default is not None:
            lines.append(f"Empty for: {one_line(_text(default), 200)}")
        elif is_optional:
            lines.append("Empty for no answer.")
        note: list[str] = []
        for _ in range(_ATTEMPTS):
            typed = await self._system.request_answer("\n".join([*lines, *note]), None, None)
            if typed is None:
                raise _Declined
            if not typed.strip() and (is_optional or default is not None):
                return default
            try:
                return _read(typed.strip(), field, choices)
            except (ValueError, ValidationError) as error:
                problem = error.message if isinstance(error, ValidationError) else str(error)
                note = [f"Not valid: {one_line(problem, 200)}"]
        raise _Declined


def _title(name: str, field: Mapping[str, Any]) -> str:
    return visible(str(field.get("title") or name), _MAX_LABEL)


def _quote(text: str) -> str:
    """Mark the lines of a text, so that none looks like part of the question."""
    return "\n".join(f"  | {visible(line, _MAX_TEXT)}" for line in text[:_MAX_TEXT].splitlines())


def _choices(field: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the labels of the answers to a field, and the answers; none if they are not listed."""
    if field.get("type") == "boolean":
        yield from (("Yes", True), ("No", False))
    holder = to_mapping(field.get("items")) if field.get("type") == "array" else field
    values: Sequence[Any] = holder.get("enum") or ()
    names: Sequence[Any] = holder.get("enumNames") or values
    for value, name in zip(values, names, strict=False):
        yield visible(str(name), _MAX_LABEL), value
    titled = cast("Sequence[Any]", holder.get("oneOf") or holder.get("anyOf") or ())
    for option in map(to_mapping, titled):
        value = option.get("const")
        yield visible(str(option.get("title") or value), _MAX_LABEL), value


def _text(value: Any) -> str:
    return ", ".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)


def _read(typed: str, field: Mapping[str, Any], choices: Mapping[str, Any]) -> Any:
    """The answer that was typed.

    Raises:
        ValueError: It is not of the field's type.
        ValidationError: It does not match the field's schema.
    """
    value: Any = typed
    kind = field.get("type")
    if kind == "array":
        words = [word.strip() for word in typed.split(",") if word.strip()]
        value = [choices.get(word, word) for word in words]
    elif kind in ("integer", "number"):
        try:
            value = int(typed) if kind == "integer" else float(typed)
        except ValueError:
            raise ValueError(
                f"expected {'a whole number' if kind == 'integer' else 'a number'}"
            ) from None
    elif choices:
        value = choices.get(typed, typed)
    validator = Draft202012Validator(
        dict(field), format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    try:
        validator.validate(value)
    # The schema is the server's own mistake, which it has to deal with.
    except SchemaError:
        pass
    return value
