"""Check one member of a mounted object: its presence, its type and its arguments."""

import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from amplifier_core.models import ProviderInfo
from amplifier_core.validation._kinds import Form, Member
from amplifier_core.validation.base import (
    Severity,
    ValidationCheck,
    is_async,
    positional_arity,
)

__all__ = ["check_member"]


class _Fault(NamedTuple):
    """A fault of a member; ``severity`` overrides that of the member."""

    found: str
    severity: Severity | None = None


_MISSING: Final = object()


def check_member(member: Member, instance: object, label: str) -> ValidationCheck:
    """Check one member of ``instance``, called ``label`` in messages."""
    fault = _look(member, instance)
    if fault is None:
        return ValidationCheck(
            member.check, True, f"{label}: {member.name} conforms to the contract"
        )
    return ValidationCheck(
        member.check,
        False,
        f"{label}: {_source(member, instance)} {fault.found}; expected `{member.expected}`",
        fault.severity or member.severity,
    )


def _source(member: Member, instance: object) -> str:
    """Name of the attribute or method that provides a member; a schema may come from a method."""
    by_method = member.form == "schema" and not hasattr(type(instance), member.name)
    return "get_schema()" if by_method and hasattr(type(instance), "get_schema") else member.name


def _look(member: Member, instance: object) -> _Fault | None:
    try:
        value = _read(member, instance)
        return _Fault("is missing") if value is _MISSING else _FORMS[member.form](member, value)
    # Reading a member runs the module's code.
    except Exception as error:
        return _Fault(f"raised {type(error).__name__}: {error}")


def _read(member: Member, instance: object) -> Any:
    if member.name == "__call__":
        # The object itself: the __call__ of a plain function does not show that it is async.
        return instance if callable(instance) else _MISSING
    value = getattr(instance, member.name, _MISSING)
    if value is _MISSING and member.form == "schema":
        # Tool Contract, Tool Schema: a tool may return its schema from a method instead.
        return getattr(instance, "get_schema", lambda: _MISSING)()
    return value


def _text(member: Member, value: Any) -> _Fault | None:
    if not isinstance(value, str):
        return _Fault(f"is {_type(value)}, not str")
    return None if value.strip() else _Fault("is empty")


def _schema(member: Member, value: Any) -> _Fault | None:
    return None if isinstance(value, dict) else _Fault(f"is {_type(value)}, not dict")


def _callable(member: Member, value: Any) -> _Fault | None:
    if not callable(value):
        return _Fault(f"is {_type(value)}, not callable")
    arity = positional_arity(value)
    return None if arity >= member.arity else _Fault(f"takes {arity} arguments, not {member.arity}")


def _async(member: Member, value: Any) -> _Fault | None:
    fault = _callable(member, value)
    if fault is None and not is_async(value):
        return _Fault("is not async")
    return fault


def _provider_info(member: Member, value: Any) -> _Fault | None:
    fault = _callable(member, value)
    if fault is not None:
        return fault
    try:
        info = value()
    # Foreign code that may require a configured provider, so this is only a warning.
    except Exception as error:
        return _Fault(f"raised {type(error).__name__}: {error}", "warning")
    if inspect.iscoroutine(info):
        info.close()
    return None if isinstance(info, ProviderInfo) else _Fault(f"returned {_type(info)}")


def _type(value: object) -> str:
    return type(value).__name__


_FORMS: Final[dict[Form, Callable[[Member, Any], _Fault | None]]] = {
    "text": _text,
    "schema": _schema,
    "callable": _callable,
    "async": _async,
    "provider_info": _provider_info,
}
