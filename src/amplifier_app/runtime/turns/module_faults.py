"""Attribute the exceptions of a turn to the module and line that raised them."""

from __future__ import annotations

import inspect
import shlex
from asyncio import CancelledError
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from amplifier_app.base.errors import AppError, ModuleError
from amplifier_app.base.own_packages import OWN_PACKAGES
from amplifier_app.sessions import recording_context
from amplifier_app.sessions.recording_context import RecordingContext
from amplifier_core._foreign import (
    add_hint,
    blame,
    describe_exception,
    find_module,
    find_origin,
    find_root,
    line_in,
    where_defined,
)
from amplifier_core.cancellation import is_failure, task_cancel_count
from amplifier_core.llm_errors import LLMError, programming_error
from amplifier_support.fields import read_field, to_mapping
from amplifier_support.named_tuple import NamedTuple

_RECORDING: Any = vars(recording_context)


class _Part(NamedTuple):
    """A mounted module.

    Attributes:
        kind: Its kind.
        name: Its name in the plan.
        obj: The object it mounted.
    """

    kind: str
    name: str
    obj: Any

    @property
    def root(self) -> Path | None:
        """The folder of its code; None for bundled ones and for stand-ins, which share theirs."""
        module = find_module(self.obj)
        if module is None or module.__name__.partition(".")[0] in OWN_PACKAGES:
            return None
        return find_root(module)


@contextmanager
def blaming(session: Any) -> Generator[None]:
    """Record on each exception which mounted module raised it.

    Args:
        session: An `amplifier_core.session.AmplifierSession`.
    """
    cancels = task_cancel_count()
    try:
        yield
    # Modules are foreign code and may raise anything.
    except BaseException as error:
        # A turn that is stopped runs in a task of its own, which is cancelled, not the caller's.
        is_stopped = (
            isinstance(error, CancelledError) and session.coordinator.cancellation.is_cancelled
        )
        # Nothing closes this block, so a GeneratorExit was raised by a module.
        is_failed = isinstance(error, GeneratorExit) or is_failure(error, cancels)
        mistake = programming_error(error)
        speaks_for_itself = isinstance(error, LLMError) and mistake is None
        if is_stopped or isinstance(error, AppError) or speaks_for_itself or not is_failed:
            raise
        part = _module_that_raised(session, mistake or error)
        if isinstance(error, Exception):
            if part is not None:
                blame_module(error, kind=part.kind, obj=part.obj, name=part.name)
            raise
        whose = "a module" if part is None else f"{part.kind} '{part.name}'"
        raise ModuleError(f"{whose} raised {describe_exception(error, None)}") from error


def blame_module(error: Exception, *, kind: str, obj: Any, name: str, call: str = "") -> None:
    """Record which module raised an exception, with the package to limit if that is the cause.

    Args:
        error: The exception.
        kind: The module's kind.
        obj: The object it mounted.
        name: Its name in the plan.
        call: The method that was called, if not obvious.
    """
    blame(error, kind=kind, obj=obj, name=name, call=call)
    origin, mistake = find_origin(error), programming_error(error)
    if origin is None or origin.path is None or mistake is None:
        return
    from amplifier_app.sources.requirements.missing_packages import incompatibility_hint

    if (hint := incompatibility_hint(mistake, origin.path)) is not None:
        add_hint(error, hint[0].upper() + hint[1:])


def checked_answer(session: Any, answer: Any) -> str:
    """Return the answer of an orchestrator, or the text of its blocks.

    Raises:
        ModuleError: It is neither.
    """
    if isinstance(answer, str):
        return answer
    # Some loops return the blocks of the answer that they get at their limit on steps.
    if isinstance(answer, list) and all(read_field(block, "type") for block in answer):
        texts = (read_field(block, "text") for block in answer)
        return "\n\n".join(text for text in texts if isinstance(text, str) and text)
    raise _wrong_answer(_orchestrator(session), "execute", answer, "the answer as a string")


async def read_messages(session: Any) -> list[Any]:
    """Return all messages in a session's context.

    Raises:
        ModuleError: The context returned something else.
    """
    part = _context(session)
    held = part.obj.get_messages()
    if inspect.isawaitable(held):
        held = await held
    if not isinstance(held, list):
        raise _wrong_answer(part, "get_messages", held, "a list of messages")
    return held


def _wrong_answer(part: _Part, call: str, answer: Any, expected: str) -> ModuleError:
    actual = "None" if answer is None else f"a value of type {type(answer).__name__}"
    where = where_defined(getattr(part.obj, call))
    module = shlex.quote(str(part.root or part.name))
    return ModuleError(
        f"{part.kind} '{part.name}': {call}() returned {actual}, expected {expected} ({where})",
        hint=f"Fix {call}() of the module, or check it with: "
        f"amplifier module validate {module} --behavioral",
    )


def _module_that_raised(session: Any, error: BaseException) -> _Part | None:
    """Return the module with the innermost frame of an exception."""
    roots = [(part, root) for part in _parts(session) if (root := part.root) is not None]
    module = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        # A call that the context does not accept has no frame of the context.
        if trace.tb_next is None and trace.tb_frame.f_globals is _RECORDING:
            return _context(session)
        for part, root in roots:
            if line_in(root, trace.tb_frame, trace.tb_lineno):
                module = part
        trace = trace.tb_next
    return module


def _parts(session: Any) -> Iterator[_Part]:
    yield _orchestrator(session)
    yield _context(session)
    for kind, point in (("provider", "providers"), ("tool", "tools")):
        for name, obj in session.coordinator.get(point).items():
            yield _Part(kind, name, obj)


def _orchestrator(session: Any) -> _Part:
    return _Part(
        "orchestrator", _module(session, "orchestrator"), session.coordinator.get("orchestrator")
    )


def _context(session: Any) -> _Part:
    context = session.coordinator.get("context")
    if isinstance(context, RecordingContext):
        context = context.inner
    return _Part("context", _module(session, "context"), context)


def _module(session: Any, part: str) -> str:
    # A module may have changed the plan of the session meanwhile.
    named = to_mapping(session.config.get("session")).get(part, part)
    return str(named["module"] if isinstance(named, dict) else named)
