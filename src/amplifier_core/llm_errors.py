"""Errors that providers raise.

LLMError
├── RateLimitError              too many requests or tokens; retryable
│   └── QuotaExceededError      the account's quota is used up; not retryable
├── AuthenticationError         credentials are missing or wrong
│   └── AccessDeniedError       credentials are valid but lack permission
├── ContextLengthError          the request is longer than the model's window
├── ContentFilterError          rejected by the vendor's filter
├── InvalidRequestError         the request is malformed
├── ProviderUnavailableError    the service is down or overloaded; retryable
│   └── NetworkError            the service cannot be reached; retryable
├── LLMTimeoutError             no answer in time; retryable
├── NotFoundError               the model or resource does not exist
├── StreamError                 the answer was cut off; retryable
├── AbortError                  the caller cancelled the call
├── ConfigurationError          the provider's settings are invalid
└── InvalidToolCallError        the model's tool call cannot be parsed
"""

from typing import Any, ClassVar, Final

_PROGRAMMING_ERRORS: Final = (TypeError, AttributeError, NameError, ImportError, LookupError)


class LLMError(Exception):
    """A failed model call.

    Args:
        message: What failed and why.
        provider: Name of the provider that failed.
        model: Model that was called.
        status_code: HTTP status, if there was one.
        retryable: Whether the same request may succeed later; default: depends on the class. Never true
            of an error that was raised from a mistake in code, such as a TypeError.
        retry_after: Seconds the service asked to wait.
        delay_multiplier: Factor for the backoff delay before the next attempt.
    """

    _retryable_default: ClassVar[bool] = False
    _shown: ClassVar[tuple[tuple[str, Any], ...]] = (
        ("provider", None),
        ("model", None),
        ("status_code", None),
        ("retryable", False),
        ("retry_after", None),
        ("delay_multiplier", 1.0),
    )

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        model: str | None = None,
        status_code: int | None = None,
        retryable: bool | None = None,
        retry_after: float | None = None,
        delay_multiplier: float = 1.0,
    ) -> None:
        super().__init__(message)
        self.provider = provider
        self.model = model
        self.status_code = status_code
        self.retryable = self._retryable_default if retryable is None else retryable
        self.retry_after = retry_after
        self.delay_multiplier = delay_multiplier

    @property
    def retryable(self) -> bool:
        return self._retryable and programming_error(self) is None

    @retryable.setter
    def retryable(self, retryable: bool) -> None:
        self._retryable = retryable

    def __repr__(self) -> str:
        parts = [repr(str(self))]
        parts += [
            f"{name}={getattr(self, name)!r}"
            for name, default in self._shown
            if getattr(self, name) != default
        ]
        return f"{type(self).__name__}({', '.join(parts)})"


class RateLimitError(LLMError):
    """The service rejected the call because of too many requests or tokens."""

    _retryable_default = True


class QuotaExceededError(RateLimitError):
    """The account's quota or credit is used up; waiting does not help."""

    _retryable_default = False


class AuthenticationError(LLMError):
    """Credentials are missing or wrong."""


class AccessDeniedError(AuthenticationError):
    """Credentials are valid but lack permission."""


class ContextLengthError(LLMError):
    """The request does not fit the model's context window."""


class ContentFilterError(LLMError):
    """The vendor's content filter rejected the request or the answer."""


class InvalidRequestError(LLMError):
    """The service rejected the request as malformed."""


class ProviderUnavailableError(LLMError):
    """The service is down or overloaded."""

    _retryable_default = True


class NetworkError(ProviderUnavailableError):
    """The service could not be reached, or the connection was lost."""


class LLMTimeoutError(LLMError):
    """The service did not answer in time."""

    _retryable_default = True


class NotFoundError(LLMError):
    """The model or resource does not exist."""


class StreamError(LLMError):
    """A streamed answer was cut off."""

    _retryable_default = True


class AbortError(LLMError):
    """The caller cancelled the call."""


class ConfigurationError(LLMError):
    """The provider's configuration is invalid."""


class InvalidToolCallError(LLMError):
    """The model's tool call cannot be parsed.

    Args:
        tool_name: Name of the tool, if it could be parsed.
        raw_arguments: The arguments as the model wrote them.
    """

    _shown = (("tool_name", None), ("raw_arguments", None), *LLMError._shown)

    def __init__(
        self,
        message: str,
        *,
        tool_name: str | None = None,
        raw_arguments: str | None = None,
        provider: str | None = None,
        model: str | None = None,
        status_code: int | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(
            message, provider=provider, model=model, status_code=status_code, retryable=retryable
        )
        self.tool_name = tool_name
        self.raw_arguments = raw_arguments


def programming_error(error: BaseException | None) -> Exception | None:
    """Return the mistake in code that an exception is, or that a model error was raised from."""
    seen: list[BaseException] = []
    while isinstance(error, LLMError) and error not in seen:
        seen.append(error)
        error = error.__cause__
    return error if isinstance(error, _PROGRAMMING_ERRORS) else None
