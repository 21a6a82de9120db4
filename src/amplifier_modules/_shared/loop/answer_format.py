"""The form that answers must have: capability `session.response_format`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amplifier_core.llm_errors import InvalidRequestError
from amplifier_core.message_models import ResponseFormatJsonSchema
from amplifier_support.session_capabilities import RESPONSE_FORMAT

_REFUSED = (400, 422)
"""Statuses of a request whose schema the service does not support."""


class AnswerFormat:
    """Which requests of a session carry the form of the answer.

    The form is also described in the prompt and checked afterwards, so a request can do without. It
    outlives turns, so that a schema a model has refused is not sent to it again.
    """

    def __init__(self) -> None:
        self._refused: set[tuple[str, str | None]] = set()
        self._wanted: ResponseFormatJsonSchema | None = None

    def begin(self, coordinator: Any) -> None:
        """Read what the session wants of the answers of a turn."""
        has_capabilities = callable(getattr(coordinator, "get_capability", None))
        wanted = RESPONSE_FORMAT.of(coordinator) if has_capabilities else None
        before, self._wanted = self._wanted, None
        if isinstance(wanted, Mapping):
            self._wanted = ResponseFormatJsonSchema.model_validate(wanted)
        if self._wanted != before:
            self._refused.clear()

    def fields(
        self, name: str, provider: Any, model: str | None, *, has_tools: bool
    ) -> dict[str, Any]:
        """The fields that a request gets.

        Args:
            name: Name of the provider.
            provider: The provider. Many servers let a model call no tools while its answer must
                match a schema; only those that declare otherwise get both.
            model: The model, if known.
            has_tools: Whether the request offers tools.
        """
        if self._wanted is None or (name, model) in self._refused:
            return {}
        if has_tools and getattr(provider, "supports_schema_with_tools", False) is not True:
            return {}
        return {"response_format": self._wanted}

    def drop(self, request: Any, name: str, model: str | None, error: InvalidRequestError) -> bool:
        """Whether to send a refused request again, without the form of the answer."""
        wanted = getattr(request, "response_format", None)
        if wanted is None or error.status_code not in _REFUSED or (name, model) in self._refused:
            return False
        self._refused.add((name, model))
        return True
