"""What tools answered."""

from typing import Any

from amplifier_core.models import ToolResult


def read_text(result: ToolResult) -> str:
    """The output of a call that went well."""
    assert result.success, result.error
    return str(result.output)


def to_exception(result: ToolResult) -> dict[str, Any]:
    """The error of one that did not."""
    assert not result.success, result.output
    assert result.error is not None
    return result.error
