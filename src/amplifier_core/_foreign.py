"""Report what module code did: whose code raised an exception and on which line, and what it logged.

Module code is "foreign" here: it may raise anything, and an error report has to name its author's file.
"""

import functools
import inspect
import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from pydantic import ValidationError

from amplifier_core.llm_errors import programming_error
from amplifier_support.named_tuple import NamedTuple


class Origin(NamedTuple):
    """The module whose code raised an exception.

    Attributes:
        kind: provider, tool, hook, context, orchestrator, cleanup …
        name: Its name in the plan, or else the module's own name.
        text: A sentence with the module, the exception and the source line.
        path: The folder of its code, or its single file, if it has one.
        is_mistake: True if its code or a package that it uses raised a `TypeError` or the like.
        hint: How to fix it, if known.
    """

    kind: str
    name: str
    text: str
    path: Path | None = None
    is_mistake: bool = False
    hint: str | None = None


class Owner(NamedTuple):
    """The module that registered a callable with the kernel."""

    kind: str
    module_id: str

    def __str__(self) -> str:
        return f"{self.kind} '{self.module_id}'"


_owner_in_context: ContextVar[Owner | None] = ContextVar("amplifier_owner", default=None)

current_owner = _owner_in_context.get


@contextmanager
def belonging_to(kind: str, module_id: str) -> Generator[None]:
    """Attribute everything registered in this context, and in tasks started in it, to this module."""
    token = _owner_in_context.set(Owner(kind, module_id))
    try:
        yield
    finally:
        _owner_in_context.reset(token)


def describe_owner(code: Any, owner: Owner | None) -> str:
    """The owner of `code`: the module's kind and id, or else the Python module that defines it."""
    return str(owner) if owner else str(_owner(code).__module__)


def code_name(code: Any, owner: Owner | None) -> str:
    """Qualified name of a callable, such as ``hooks-guard.Guard.on_tool``."""
    code = _without_partial(code)
    name = getattr(code, "__qualname__", None)
    name = name if isinstance(name, str) else type(code).__qualname__
    module = owner.module_id if owner else _owner(code).__module__
    return f"{module}.{name.rpartition('<locals>.')[2]}"


def log_failure(
    logger: logging.Logger,
    what: str,
    code: Any,
    owner: Owner | None,
    error: BaseException,
    then: str,
    *,
    event: str = "",
) -> None:
    """Log in one line that `code` failed, with its owner and source line; the traceback at DEBUG.

    Args:
        logger: Logger to use.
        what: What failed, such as ``Cleanup 'close'``.
        code: The callable.
        owner: The module that registered it.
        error: The exception.
        then: The consequence, such as ``it was skipped``.
        event: The event it was called on, if any.
    """
    text = _describe_with_place(error, code)
    whose, on = describe_owner(code, owner), f" on {event}" if event else ""
    logger.error("%s of %s failed%s: %s; %s", what, whose, on, text, then)
    logger.debug("Traceback of the failure of %s", what, exc_info=error)


def describe_foreign(
    error: BaseException, *, kind: str, obj: Any, name: str | None = None, call: str = ""
) -> str:
    """A sentence that names the module, the exception and the source line.

    Args:
        error: The exception.
        kind: provider, tool, hook, context, orchestrator, cleanup …
        obj: The object, function or class that was called.
        name: Its name in the plan; default: its package.
        call: The method that was called, if not obvious.
    """
    whose = f"{kind} '{name or _package(obj)}'" + (f": {call}()" if call else "")
    return f"{whose} raised {_describe_with_place(error, obj)}"


def _describe_with_place(error: BaseException, code: Any) -> str:
    """An exception of `code` with its line in the module, or else the line where `code` is defined."""
    root = _find_home(code)
    text = describe_exception(error, root)
    # It may have failed before its first line, for example because of a wrong number of arguments.
    return text if describe_place(error, root) else f"{text} ({where_defined(code)})"


def blame(
    error: BaseException,
    *,
    kind: str,
    obj: Any,
    name: str | None = None,
    call: str = "",
    fault: str = "",
) -> None:
    """Record on an exception which module raised it, unless that is already recorded.

    The exception keeps its type and text, which callers may depend on. Arguments as for
    `describe_foreign`; `fault` describes what the module did wrong if it raised nothing itself.
    """
    if find_origin(error) is None:
        name = name or _package(obj)
        mistake = None if fault else programming_error(error)
        described = describe_foreign(mistake or error, kind=kind, obj=obj, name=name, call=call)
        text = f"{kind} '{name}': {fault}" if fault else described
        path = _find_home(obj)
        is_mistake = mistake is not None and bool(describe_place(mistake, path))
        vars(error)["_amplifier_origin"] = Origin(kind, name, text, path, is_mistake)


def add_hint(error: BaseException, hint: str) -> None:
    """Add to the recorded origin of an exception how to fix it."""
    if (origin := find_origin(error)) is not None:
        vars(error)["_amplifier_origin"] = origin._replace(hint=hint)


def find_origin(error: BaseException) -> Origin | None:
    """The origin that `blame` recorded on an exception, if any."""
    return vars(error).get("_amplifier_origin")


def find_module(obj: Any) -> ModuleType | None:
    """The Python module that defines a function, a class or an object's class."""
    return sys.modules.get(_owner(obj).__module__)


def where_defined(obj: Any) -> str:
    """Return a function's file and line, or the qualified name of an object's class."""
    obj = inspect.unwrap(_without_partial(obj))
    function = obj.__func__ if inspect.ismethod(obj) else obj
    if not isinstance(function, (FunctionType, type)):
        function = type(obj).__call__
    root = _find_home(obj)
    if isinstance(function, FunctionType) and root is not None:
        code = function.__code__
        if file := _shown(code.co_filename, root):
            return f"{file}, line {code.co_firstlineno}, in {code.co_name}"
    owner = _owner(obj)
    return f"{owner.__module__}.{owner.__qualname__}"


def _package(obj: Any) -> str:
    return _owner(obj).__module__.partition(".")[0]


def _owner(obj: Any) -> Any:
    """The function or class that `obj` is defined by."""
    obj = _without_partial(obj)
    if inspect.ismethod(obj):
        obj = obj.__self__
    # Not type(obj): an object that stands in front of another one has its class here.
    return obj if isinstance(obj, (type, FunctionType)) else obj.__class__


def _without_partial(code: Any) -> Any:
    while isinstance(code, functools.partial):
        code = code.func
    return code


def _find_home(obj: Any) -> Path | None:
    """`find_root` of the module that defines `obj`."""
    module = find_module(obj)
    return None if module is None else find_root(module)


def find_root(module: ModuleType) -> Path | None:
    """Folder of a module's top-level package, or its file if it is a single file."""
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    if not hasattr(top, "__path__"):
        file = getattr(top, "__file__", None)
        return Path(file).resolve() if file else None
    # A namespace package has no file of its own; use the module's folder.
    file = getattr(top, "__file__", None) or getattr(module, "__file__", None)
    return Path(file).resolve().parent if file else None


def describe_exception(error: BaseException, root: Path | None) -> str:
    """Describe an exception: its type, its message, and the line in `root` it came from."""
    named = type(error).__name__
    text = _message(error)
    place = describe_place(error, root)
    return (f"{named}: {text}" if text else named) + (f" ({place})" if place else "")


def _message(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        # Its text repeats the file and line, which `describe_place` reports.
        return error.msg
    if not isinstance(error, ValidationError):
        try:
            return str(error).strip()
        # The class may be the module's own, and its __str__ may raise anything.
        except Exception:
            return "(its text is not available)"
    # Pydantic's own text is long and contains the input, which may be a secret.
    problems = error.errors(include_url=False, include_input=False)
    listed = (f"{'.'.join(map(str, p['loc'])) or error.title}: {p['msg']}" for p in problems)
    return "; ".join(listed)


def describe_place(error: BaseException, root: Path | None) -> str:
    """The innermost line below `root` in an exception's traceback; empty if there is none."""
    if root is None:
        return ""
    if isinstance(error, SyntaxError) and error.filename:
        file = _shown(error.filename, root)
        return f"{file}, line {error.lineno}" if file else ""
    innermost = ""
    trace = error.__traceback__
    while trace is not None:
        innermost = line_in(root, trace.tb_frame, trace.tb_lineno) or innermost
        trace = trace.tb_next
    return innermost


def line_in(root: Path, frame: FrameType, line: int) -> str:
    """Describe a line of a frame whose code is below `root`; empty if it is elsewhere."""
    file = _shown(frame.f_code.co_filename, root)
    if not file:
        return ""
    name = frame.f_code.co_name
    return f"{file}, line {line}" + (f", in {name}" if name.isidentifier() else "")


def _shown(filename: str, root: Path) -> str:
    path = Path(filename).resolve()
    if path != root and root not in path.parents:
        return ""
    return str(path.relative_to(root.parent))


_logged: ContextVar[list[str] | None] = ContextVar("amplifier_warnings_logged", default=None)


class _WarningCollector(logging.Handler):
    """Collects the messages of the context (task) it was installed for."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        if _logged.get() is self._messages:
            self._messages.append(record.getMessage())


@contextmanager
def warnings_logged() -> Generator[list[str]]:
    """The messages of level WARNING and above that this task logs while the block runs, in order.

    A module's own warning explains best why it mounted nothing.
    """
    messages: list[str] = []
    collector = _WarningCollector(messages)
    token = _logged.set(messages)
    root = logging.getLogger()
    root.addHandler(collector)
    try:
        yield messages
    finally:
        root.removeHandler(collector)
        _logged.reset(token)


OPEN_ENDED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""The kinds of parameters that take any number of arguments."""


def required_arguments(function: Any) -> str:
    """Names of the required arguments of `function`, quoted and separated by commas."""
    plain = getattr(function, "__func__", function)
    # To read a signature takes as long as many modules take to mount.
    if type(plain) is FunctionType and not vars(plain):
        code = plain.__code__
        if code.co_argcount + code.co_kwonlyargcount == (plain is not function):
            return ""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        # Not callable, or compiled code without a signature.
        return ""
    return ", ".join(
        repr(parameter.name)
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty and parameter.kind not in OPEN_ENDED
    )
