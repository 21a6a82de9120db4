"""The app's errors; each type has its own exit code.

    AppError                     what happened to what, and the next step
    ├── UsageError               the command line itself (exit 2)
    ├── ConfigError              plan, profile, settings, environment, trust (exit 78, or 2
    │                            if what the user named does not exist)
    ├── ModuleError              resolve, install, load, mount (exit 3)
    └── SessionError             locked, unknown, damaged, storage (exit 6)

    KeyboardInterrupt
    └── Terminated               SIGTERM or SIGHUP arrived (exit 143)

Errors of a model provider are the kernel's (`amplifier_core.llm_errors`);
`amplifier_app.base.outcome` maps both trees to one `Outcome`.
"""

from __future__ import annotations

from amplifier_support.named_tuple import NamedTuple


class Location(NamedTuple):
    """A location in a file of the user. `line` and `column` count from 1."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = [self.file, *(str(n) for n in (self.line, self.column) if n is not None)]
        return ":".join(parts)

    @property
    def is_option(self) -> bool:
        """True for a value on the command line, such as `--set session.budget`."""
        return self.file.startswith("--")


class AppError(Exception):
    """An error with a message for the user.

    Args:
        message: What happened to what.
        hint: The next step, if there is one.
        location: Where in the user's own files the cause is.
    """

    def __init__(
        self, message: str, *, hint: str | None = None, location: Location | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.location = location

    def __str__(self) -> str:
        text = f"{self.location}: {self.message}" if self.location else self.message
        return f"{text}\n  {self.hint}" if self.hint else text


class UsageError(AppError):
    """The command line is invalid."""


class ConfigError(AppError):
    """A plan, a profile, a setting, the environment or trust prevents the command.

    Args:
        message: See `AppError`.
        hint: See `AppError`.
        location: See `AppError`.
        is_usage: True if the user passed the name of something that does not exist; always for a
            location on the command line. The exit code is then 2.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        location: Location | None = None,
        is_usage: bool = False,
    ) -> None:
        super().__init__(message, hint=hint, location=location)
        self.is_usage = is_usage or (location is not None and location.is_option)


class ModuleError(AppError):
    """A module cannot be resolved, installed, loaded or mounted."""


class SessionError(AppError):
    """A saved session is locked, unknown or damaged, or cannot be stored."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived. A KeyboardInterrupt, so that it passes through an event loop."""
