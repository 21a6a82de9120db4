"""Helpers that modules share with the kernel."""

from amplifier_core.utils.retry import RetryConfig, classify_error_message, retry_with_backoff
from amplifier_core.utils.truncate import (
    SECRET_NAME,
    SENSITIVE_KEYS,
    redact_secrets,
    truncate_values,
)

__all__ = [
    "SECRET_NAME",
    "SENSITIVE_KEYS",
    "RetryConfig",
    "classify_error_message",
    "redact_secrets",
    "retry_with_backoff",
    "truncate_values",
]
