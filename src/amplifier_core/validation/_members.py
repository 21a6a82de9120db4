"""Looking at one member of a mounted object: is it there, of the right form, with enough arguments?"""

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
    """What is wrong with a member; ``severity`` overrides that of the member."""

    found: str
    severity: Severity | None = None


_MISSING: Final = object()


def check_member(member: Member, instance: object, label: str) -> ValidationCheck:
    """Look at one member of ``instance``, which messages call ``label``."""
    fault = _look(member, instance)
    if fault is None:
        return ValidationCheck(
            member.check, True, f"{label}: {member.name} is as the contract says"
        )
    return ValidationCheck(
        member.check,
        False,
        f"{label}: {_source(member, instance)} {fault.found}; expected `{member.expected}`",
        fault.severity or member.severity,
    )


def _source(member: Member, instance: object) -> str:
    """What gives a member: for a schema that may be a method."""
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
        # The object itself: a plain function's own __call__ does not tell that it is async.
        return instance if callable(instance) else _MISSING
    value = getattr(instance, member.name, _MISSING)
    if value is _MISSING and member.form == "schema":
        # Tool Contract, Tool Schema: a tool may give its schema by a method instead.
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
    # Foreign code; it may need what only a configured provider has, hence no more than a warning.
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
