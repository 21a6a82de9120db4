"""The outcome of a command: one value for the exit code, the final JSON and the line on stderr."""

from __future__ import annotations

import enum
import errno
import json
import re
import shlex
from typing import Any

from amplifier_app.base.errors import (
    AppError,
    ConfigError,
    ModuleError,
    SessionError,
    Terminated,
    UsageError,
)
from amplifier_app.base.own_packages import MODULE_PACKAGES
from amplifier_app.base.paths import temporary_dir, working_dir
from amplifier_app.base.redact import redact
from amplifier_support.files import NoTemporaryFolder
from amplifier_support.named_tuple import NamedTuple


class Ending(enum.Enum):
    """Every way a command can end; the value is its name in JSON."""

    _value_: str
    exit_code: int

    OK = "ok", 0
    ERROR = "error", 1
    USAGE = "usage", 2
    MODULE = "module", 3
    AUTHENTICATION = "authentication", 4
    PROVIDER = "provider", 5
    SESSION = "session", 6
    BUDGET = "budget", 7
    DENIED = "denied", 8
    CHECK_FAILED = "check_failed", 9
    WAITING = "waiting", 10
    UNAVAILABLE = "unavailable", 75
    CONFIGURATION = "configuration", 78
    INTERRUPTED = "interrupted", 130
    TERMINATED = "terminated", 143
    PIPE_CLOSED = "pipe_closed", 141

    def __new__(cls, name: str, exit_code: int) -> Ending:
        ending = object.__new__(cls)
        ending._value_ = name
        ending.exit_code = exit_code
        return ending


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


_STORAGE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
"""Nothing can be stored; any other error of the operating system is one of the environment."""

_MAX_CAUSES = 10
"""Chains of causes may be circular."""

_PERMISSIONS = "Check the permissions of the file and of the folders above it."
_HINTS = {
    errno.ENOSPC: "Free some space and run again.",
    errno.EDQUOT: "Free some space, or have the quota raised, and run again.",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f) and run again.",
    errno.EROFS: "Use a file system that can be written to.",
    errno.EIO: "Check the disk, then run again.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.EBADF: "Check how the standard streams are redirected.",
    errno.EMFILE: "Raise the limit on open files (ulimit -n) and run again.",
    errno.EACCES: _PERMISSIONS,
    errno.EPERM: _PERMISSIONS,
}


def has_storage_error(error: BaseException | None) -> bool:
    """Return True if the error is that nothing can be stored, as on a full disk, or follows from that."""
    for _ in range(_MAX_CAUSES):
        if isinstance(error, OSError) and error.errno in _STORAGE:
            return True
        error = None if error is None else error.__cause__
    return False


def to_outcome(error: BaseException) -> Outcome:
    """The outcome of an exception, without secrets; unknown exceptions are unexpected errors."""
    outcome = _to_outcome(error)
    hint = None if outcome.hint is None else redact(outcome.hint)
    return outcome._replace(message=redact(outcome.message), hint=hint)


def _to_outcome(error: BaseException) -> Outcome:
    if isinstance(error, AppError):
        ending = next((e for kind, e in _APP_ENDINGS if isinstance(error, kind)), Ending.ERROR)
        if isinstance(error, ConfigError) and error.is_usage:
            ending = Ending.USAGE
        where = f"{error.location}: " if error.location else ""
        hint = error.hint
        # An error raised from another app error has the cause of that one; chains may be circular.
        cause = error.__cause__
        if isinstance(cause, AppError):
            cause = cause.__cause__
        if isinstance(cause, OSError):
            hint = hint or _HINTS.get(cause.errno or 0)
            if cause.errno in _STORAGE:
                # The disk is the reason, no matter what could not be stored.
                ending = Ending.SESSION
        return Outcome(ending, f"{where}{error.message}", hint)
    if isinstance(error, Terminated):
        return Outcome(Ending.TERMINATED, "terminated")
    if isinstance(error, KeyboardInterrupt):
        return Outcome(Ending.INTERRUPTED, "interrupted")
    if isinstance(error, BrokenPipeError):
        return Outcome(Ending.PIPE_CLOSED, "the reader of the output closed the pipe")
    return _kernel_outcome(error)


def _kernel_outcome(error: BaseException) -> Outcome:
    from amplifier_core import llm_errors
    from amplifier_core._foreign import find_origin
    from amplifier_core.loader import ModuleValidationError
    from amplifier_core.module_sources import ModuleLoadError, ModuleMountError, ModuleNotFoundError

    text = str(error) or type(error).__name__
    origin = find_origin(error)
    if isinstance(error, llm_errors.LLMError) and origin is None:
        return _llm_outcome(error, _message_in(text, error.provider))
    if isinstance(error, ModuleMountError) and isinstance(error.__cause__, llm_errors.LLMError):
        # The message names the module; the exception it raised decides the exit code.
        return _llm_outcome(error.__cause__, text)
    if isinstance(error, (ModuleValidationError, ModuleLoadError, ModuleNotFoundError)):
        return Outcome(Ending.MODULE, text)
    if origin is not None and isinstance(error, OSError) and error.errno in _STORAGE:
        # Not the module but the disk is why.
        return Outcome(Ending.SESSION, error.strerror or text, hint_for(error))
    if origin is not None:
        answers = origin.kind == "provider" and not origin.is_mistake
        ending = Ending.PROVIDER if answers else Ending.MODULE
        if origin.hint is not None:
            check = origin.hint
        elif origin.path is not None and origin.path.name in MODULE_PACKAGES:
            check = (
                f"This is a fault of the bundled {origin.kind}. Report it with: amplifier report"
            )
        else:
            module = shlex.quote(str(origin.path or origin.name))
            check = (
                f"The cause is in the code or configuration of the {origin.kind}. Check it with: "
                f"amplifier module validate {module} --behavioral"
            )
        return Outcome(ending, origin.text, f"{check}\nFor the traceback, run again with -v.")
    if isinstance(error, NoTemporaryFolder) or (
        isinstance(error, FileNotFoundError) and error.filename is None
    ):
        try:
            working_dir()
            temporary_dir()
        except ConfigError as missing:
            return to_outcome(missing)
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename is not None else ""
        if isinstance(error, (ConnectionError, TimeoutError)):
            ending = Ending.UNAVAILABLE
        else:
            ending = Ending.SESSION if error.errno in _STORAGE else Ending.CONFIGURATION
        return Outcome(ending, f"{error.strerror}{where}", hint_for(error))
    return Outcome(Ending.ERROR, f"{type(error).__name__}: {text}")


FOR_TRACEBACK = "Run again with AMPLIFIER_DEBUG=1 for the traceback."
"""A hint that holds for every command; not all of them have -v."""


def hint_for(error: OSError) -> str:
    """Return advice about an error of the operating system."""
    return _HINTS.get(error.errno or 0, FOR_TRACEBACK)


def _message_in(text: str, provider: str | None) -> str:
    """The message of an error whose text is the JSON of the service, as some providers leave it."""
    if not text.startswith("{"):
        return text
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text
    inner = data.get("error")
    message = data.get("message") or (inner.get("message") if isinstance(inner, dict) else inner)
    if not isinstance(message, str):
        return text
    return f"{provider}: {message}" if provider else message


_NEW_KEY = """Set a new key: amplifier init
A variable of the environment takes precedence over it; show which key is used: amplifier provider list"""


def _llm_outcome(error: Exception, text: str) -> Outcome:
    from amplifier_core import llm_errors as llm

    # A replayed run whose requests differ from the recording.
    if getattr(error, "is_failed_check", False) is True:
        return Outcome(Ending.CHECK_FAILED, text)
    if isinstance(error, llm.AuthenticationError):
        return Outcome(Ending.AUTHENTICATION, text, _NEW_KEY)
    if isinstance(error, llm.ConfigurationError):
        return Outcome(Ending.CONFIGURATION, text)
    if isinstance(error, llm.ContextLengthError):
        hint = "Use a model with a larger context window (--model), or start a new session."
        return Outcome(Ending.PROVIDER, text, hint)
    if isinstance(error, llm.NotFoundError):
        hint = "If the model is not offered (any more), choose another: amplifier provider models"
        return Outcome(Ending.PROVIDER, text, hint)
    if isinstance(error, llm.NetworkError):
        if error.retryable:
            hint = "Try again later, or check that the service can be reached from here."
            return Outcome(Ending.UNAVAILABLE, text, hint, error.retry_after)
        return Outcome(Ending.PROVIDER, text, "Show the proxy and certificates: amplifier doctor")
    if isinstance(error, (llm.ProviderUnavailableError, llm.StreamError)) and (
        not error.retryable and 200 <= (error.status_code or 0) < 300
    ):
        hint = "Check the address, and that no proxy or login page answers in its place."
        return Outcome(Ending.PROVIDER, text, hint)
    if isinstance(error, llm.LLMError) and error.retryable:
        later = "Use" if error.retry_after else "Try again later, or use"
        hint = f"{later} another model: --model NAME, --provider NAME."
        return Outcome(Ending.UNAVAILABLE, text, hint, error.retry_after)
    hint = "Use another model (--model NAME), or run again with -v for the details."
    if isinstance(error, llm.InvalidRequestError):
        hint = _schema_hint(text) or hint
    return Outcome(Ending.PROVIDER, text, hint)


def _schema_hint(text: str) -> str | None:
    """Return advice about a schema that a service refuses; None if it refuses something else."""
    if "schema" not in text.lower():
        return None
    if match := re.search(r"function '([^']+)'|\btools[.\[]\d|\binput_schema\b", text):
        name = f" {match[1]!r}" if match[1] else ""
        return f"Fix the input schema of the tool{name}, or leave the tool out: --tools NAME,NAME."
    if re.search(r"response_format|output_config|output_format|text\.format", text):
        return "Fix the schema of the answer (--schema): the service does not support all of it."
    return None
