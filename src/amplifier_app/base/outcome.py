"""The outcome of a command: one value for the exit code, the final JSON and the line on stderr."""

from __future__ import annotations

import enum
import errno
from typing import NamedTuple

from amplifier_app.base.errors import (
    AppError,
    ConfigError,
    ModuleError,
    SessionError,
    Terminated,
    UsageError,
)


class Ending(enum.Enum):
    """Every way a command can end; the value is its name in JSON."""

    OK = "ok"
    ERROR = "error"
    USAGE = "usage"
    MODULE = "module"
    AUTHENTICATION = "authentication"
    PROVIDER = "provider"
    SESSION = "session"
    BUDGET = "budget"
    DENIED = "denied"
    CHECK_FAILED = "check_failed"
    UNAVAILABLE = "unavailable"
    CONFIGURATION = "configuration"
    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"
    PIPE_CLOSED = "pipe_closed"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Ending.OK: 0,
    Ending.ERROR: 1,
    Ending.USAGE: 2,
    Ending.MODULE: 3,
    Ending.AUTHENTICATION: 4,
    Ending.PROVIDER: 5,
    Ending.SESSION: 6,
    Ending.BUDGET: 7,
    Ending.DENIED: 8,
    Ending.CHECK_FAILED: 9,
    Ending.UNAVAILABLE: 75,
    Ending.CONFIGURATION: 78,
    Ending.INTERRUPTED: 130,
    Ending.TERMINATED: 143,
    Ending.PIPE_CLOSED: 141,
}


class Outcome(NamedTuple):
    """The ending of a command and its message.

    Attributes:
        ending: The ending.
        message: What happened, for stderr and the JSON result; empty on success.
        hint: The next step.
        retry_after: Seconds the provider asked to wait, with `Ending.UNAVAILABLE` only.
    """

    ending: Ending
    message: str = ""
    hint: str | None = None
    retry_after: float | None = None

    @property
    def exit_code(self) -> int:
        return self.ending.exit_code


OK = Outcome(Ending.OK)

_APP_ENDINGS: tuple[tuple[type[AppError], Ending], ...] = (
    (UsageError, Ending.USAGE),
    (ConfigError, Ending.CONFIGURATION),
    (ModuleError, Ending.MODULE),
    (SessionError, Ending.SESSION),
)


def outcome_of(error: BaseException) -> Outcome:
    """The outcome of an exception; unknown exceptions are unexpected errors."""
    if isinstance(error, AppError):
        ending = next((e for kind, e in _APP_ENDINGS if isinstance(error, kind)), Ending.ERROR)
        where = f"{error.location}: " if error.location else ""
        return Outcome(ending, f"{where}{error.message}", error.hint)
    if isinstance(error, Terminated):
        return Outcome(Ending.TERMINATED, "terminated")
    if isinstance(error, KeyboardInterrupt):
        return Outcome(Ending.INTERRUPTED, "interrupted")
    if isinstance(error, BrokenPipeError):
        return Outcome(Ending.PIPE_CLOSED, "the reader of the output closed the pipe")
    return _kernel_outcome(error)


def _kernel_outcome(error: BaseException) -> Outcome:
    from amplifier_core import llm_errors
    from amplifier_core._foreign import origin_of
    from amplifier_core.load_errors import ModuleMountError
    from amplifier_core.loader import ModuleValidationError
    from amplifier_core.module_sources import ModuleLoadError, ModuleNotFoundError

    text = str(error) or type(error).__name__
    if isinstance(error, llm_errors.LLMError):
        return _llm_outcome(error, text)
    if isinstance(error, ModuleMountError) and isinstance(error.__cause__, llm_errors.LLMError):
        # The message names the module; the exception it raised decides the exit code.
        return _llm_outcome(error.__cause__, text)
    if isinstance(error, (ModuleValidationError, ModuleLoadError, ModuleNotFoundError)):
        return Outcome(Ending.MODULE, text)
    origin = origin_of(error)
    if origin is not None:
        ending = Ending.PROVIDER if origin.kind == "provider" else Ending.MODULE
        hint = (
            f"The cause is in the code or configuration of the {origin.kind}. Check it with: "
            "amplifier module validate MODULE --behavioral. For the traceback, run again with -v."
        )
        return Outcome(ending, origin.text, hint)
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename is not None else ""
        hint = "Free some space and run again." if error.errno == errno.ENOSPC else None
        return Outcome(Ending.ERROR, f"{error.strerror}{where}", hint)
    return Outcome(Ending.ERROR, f"{type(error).__name__}: {text}")


def _llm_outcome(error: Exception, text: str) -> Outcome:
    from amplifier_core import llm_errors as llm

    # A replayed run whose requests differ from the recording.
    if getattr(error, "is_failed_check", False) is True:
        return Outcome(Ending.CHECK_FAILED, text)
    if isinstance(error, llm.AuthenticationError):
        return Outcome(Ending.AUTHENTICATION, text, "Set a new key: amplifier init")
    if isinstance(error, llm.ConfigurationError):
        return Outcome(Ending.CONFIGURATION, text)
    if isinstance(error, llm.ContextLengthError):
        hint = "Use a model with a larger context window (--model), or start a new session."
        return Outcome(Ending.PROVIDER, text, hint)
    if isinstance(error, llm.NotFoundError):
        hint = "If the model is not offered (any more), choose another: amplifier provider models"
        return Outcome(Ending.PROVIDER, text, hint)
    if isinstance(error, llm.LLMError) and error.retryable:
        later = "Use" if error.retry_after else "Try again later, or use"
        hint = f"{later} another model: --model NAME, --provider NAME."
        return Outcome(Ending.UNAVAILABLE, text, hint, error.retry_after)
    hint = "Use another model (--model NAME), or run again with -v for the details."
    return Outcome(Ending.PROVIDER, text, hint)
