"""Check a module without running a session: its mount function, and what it mounted.

The loader and `mounting` import this for modules from a source; the validators of
`amplifier_kit` use the same checks.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Literal

from amplifier_core._foreign import OPEN_ENDED
from amplifier_core.models import ProviderInfo
from amplifier_support.named_tuple import NamedTuple

Severity = Literal["error", "warning", "info"]

MANY = sys.maxsize
"""Arity of a callable that takes any number of arguments."""


@dataclass
class ValidationCheck:
    """The outcome of one check.

    Attributes:
        name: stable identifier, such as ``mount_exists``.
        passed: whether the check passed.
        message: what was found and, after a failure, how to fix it.
        severity: severity of a failure; only an ``error`` makes the whole result fail.
    """

    name: str
    passed: bool
    message: str
    severity: Severity = "error"


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if ``function`` is async, as far as inspection shows.

    Handles ``functools.partial``, ``functools.wraps``, async mocks and objects with an async
    ``__call__``.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    candidates = (function, type(function).__call__)
    return any(inspect.iscoroutinefunction(candidate) for candidate in candidates)


def positional_arity(function: Callable[..., Any]) -> int:
    """Number of arguments of ``function``; ``MANY`` if it takes any number or has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return MANY
    if any(parameter.kind in OPEN_ENDED for parameter in parameters):
        return MANY
    return len(parameters)


def check_on_session_ready(module: object) -> ValidationCheck | None:
    """A failed check if the module's ``on_session_ready`` cannot be awaited with a coordinator.

    Returns:
        None if the function is missing or valid.
    """
    function = getattr(module, "on_session_ready", None)
    if function is None:
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not is_async(function):
        fault = "is not async"
    elif not any(
        parameter.kind in positional and parameter.default is inspect.Parameter.empty
        for parameter in inspect.signature(function).parameters.values()
    ):
        fault = "takes no required argument"
    else:
        return None
    return ValidationCheck(
        "on_session_ready_async",
        passed=False,
        message=f"on_session_ready {fault}; write `async def on_session_ready(coordinator)`",
    )


Form = Literal["text", "schema", "provider_info", "callable", "async"]
"""The kind of a member, which decides how it is checked."""


_TYPES: Final[dict[str, type]] = {"text": str, "schema": dict}
"""The type of a value, by form."""


@dataclass(frozen=True)
class Member:
    """One member of a protocol and its check.

    Attributes:
        name: attribute of the mounted object.
        form: how the attribute's value is checked.
        signature: the expected type or signature.
        arity: minimum number of named arguments of a callable.
        severity: severity of a failure.
        required: whether an object must have it to conform to the protocol.
    """

    name: str
    form: Form
    signature: str
    arity: int = 0
    severity: Severity = "error"
    required: bool = True

    @property
    def expected(self) -> str:
        """The expected definition."""
        if self.form in _TYPES:
            return f"{self.name}: {self.signature}"
        return f"{'async ' if self.form == 'async' else ''}def {self.name}{self.signature}"


@dataclass(frozen=True)
class Kind:
    """A kind of module.

    Attributes:
        name: ``provider``, ``tool``, ``hook``, ``orchestrator`` or ``context``.
        members: what a mounted object must have.
    """

    name: str
    members: tuple[Member, ...]

    def check_name(self, member: Member) -> str:
        """Name of the check of a member, such as ``tool_execute``."""
        return f"{self.name}_{member.name.strip('_')}"


_EXECUTE = "(self, prompt, context, providers, tools, hooks, **kwargs) -> str"
_KINDS: Final = (
    Kind(
        "provider",
        (
            Member("name", "text", "str"),
            Member("get_info", "provider_info", "(self) -> ProviderInfo"),
            Member("list_models", "async", "(self) -> list[ModelInfo]"),
            Member("complete", "async", "(self, request, **kwargs) -> ChatResponse", arity=1),
            Member("parse_tool_calls", "callable", "(self, response) -> list[ToolCall]"),
        ),
    ),
    Kind(
        "tool",
        (
            Member("name", "text", "str"),
            Member("description", "text", "str", severity="warning"),
            Member("input_schema", "schema", "dict", severity="warning", required=False),
            Member("execute", "async", "(self, input: dict) -> ToolResult", arity=1),
        ),
    ),
    Kind(
        "hook",
        (Member("__call__", "async", "(self, event, data) -> HookResult", 2, required=False),),
    ),
    Kind("orchestrator", (Member("execute", "async", _EXECUTE, arity=5),)),
    Kind(
        "context",
        (
            Member("add_message", "async", "(self, message: dict) -> None", arity=1),
            Member("get_messages_for_request", "async", "(self, token_budget=None, provider=None)"),
            Member("get_messages", "async", "(self) -> list[dict]"),
            Member("set_messages", "async", "(self, messages: list[dict]) -> None", arity=1),
            Member("clear", "async", "(self) -> None"),
        ),
    ),
)

KINDS: Final[dict[str, Kind]] = {kind.name: kind for kind in _KINDS}
"""Every kind by its name."""


class _Fault(NamedTuple):
    """A fault of a member; ``severity`` overrides that of the member."""

    found: str
    severity: Severity | None = None


_MISSING: Final = object()


def _check_member(kind: Kind, member: Member, instance: object, label: str) -> ValidationCheck:
    """Check one member of ``instance``, called ``label`` in messages."""
    name = kind.check_name(member)
    fault = _look(member, instance)
    if fault is None:
        return ValidationCheck(name, True, f"{label}: {member.name} conforms to the contract")
    return ValidationCheck(
        name,
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
        return _Fault("is missing") if value is _MISSING else _find_fault(member, value)
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


def _find_fault(member: Member, value: Any) -> _Fault | None:
    actual, expected = type(value).__name__, _TYPES.get(member.form)
    if expected is not None:
        if not isinstance(value, expected):
            return _Fault(f"is {actual}, not {expected.__name__}")
        return _Fault("is empty") if isinstance(value, str) and not value.strip() else None
    if not callable(value):
        return _Fault(f"is {actual}, not callable")
    arity = positional_arity(value)
    if arity < member.arity:
        return _Fault(f"takes {arity} arguments, not {member.arity}")
    if member.form == "async" and not is_async(value):
        return _Fault("is not async")
    return _find_info_fault(value) if member.form == "provider_info" else None


def _find_info_fault(get_info: Callable[[], Any]) -> _Fault | None:
    try:
        info = get_info()
    # Foreign code that may require a configured provider, so this is only a warning.
    except Exception as error:
        return _Fault(f"raised {type(error).__name__}: {error}", "warning")
    if inspect.iscoroutine(info):
        info.close()
    return None if isinstance(info, ProviderInfo) else _Fault(f"returned {type(info).__name__}")


def check_mount_function(module: ModuleType, name: str) -> list[ValidationCheck]:
    """Check the function ``name`` of a module and its ``on_session_ready`` without calling them."""
    mount = getattr(module, name, None)
    if not callable(mount):
        fault = "is not callable" if mount is not None else "is missing"
        message = f"{module.__name__}.{name} {fault}; write `async def {name}(coordinator, config)`"
        return [ValidationCheck("mount_exists", False, message)]
    checks = [ValidationCheck("mount_exists", True, f"{module.__name__}.{name} is callable")]
    checks.append(_check_signature(mount))
    ready = check_on_session_ready(module)
    return checks if ready is None else [*checks, ready]


def check_instances(kind_name: str, instances: Sequence[tuple[str, Any]]) -> list[ValidationCheck]:
    """Check mounted objects, given with their names, as modules of a kind."""
    kind = KINDS[kind_name]
    checks: list[ValidationCheck] = []
    for name, instance in instances:
        label = f"{kind.name} {name!r}"
        if isinstance(instance, type):
            message = (
                f"{label} is the class {instance.__name__}, not an instance of it; "
                f"write {instance.__name__}(…) where it is mounted"
            )
            checks.append(compliance(False, message))
        else:
            checks += [_check_member(kind, member, instance, label) for member in kind.members]
    return checks


def _check_signature(mount: Callable[..., Any]) -> ValidationCheck:
    faults: list[str] = []
    arity = positional_arity(mount)
    if arity < 2:
        faults.append(f"takes {arity} arguments, not 2")
    if not is_async(mount):
        faults.append("is not async")
    if faults:
        message = f"mount {' and '.join(faults)}; write `async def mount(coordinator, config=None)`"
        return ValidationCheck("mount_signature", False, message)
    return ValidationCheck("mount_signature", True, "mount is async and takes coordinator, config")


def compliance(passed: bool, message: str) -> ValidationCheck:
    return ValidationCheck("protocol_compliance", passed, message)


def select_errors(checks: Sequence[ValidationCheck]) -> list[ValidationCheck]:
    """Return the failed checks of severity ``error``."""
    return [check for check in checks if not check.passed and check.severity == "error"]
