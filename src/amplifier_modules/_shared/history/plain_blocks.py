"""The kernel's blocks and counts as plain data, without asking pydantic.

`model_dump` builds a model's serializer first. That costs as much as a request's other work, and a
conversation of plain text needs none: the values of these models are JSON's own types already.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from amplifier_core.message_models import RedactedThinkingBlock, TextBlock, ThinkingBlock, Usage

_FLAT = (TextBlock, ThinkingBlock, RedactedThinkingBlock)


def plain_block(block: BaseModel) -> dict[str, Any]:
    """A content block as a dict, without fields that are None."""
    if type(block) not in _FLAT:
        return block.model_dump(exclude_none=True)
    return {key: value for key, value in _fields(block) if value is not None}


def plain_usage(usage: BaseModel) -> dict[str, Any]:
    """A usage report as a dict, without what is not known; money is text."""
    if type(usage) is not Usage:
        return usage.model_dump(exclude_none=True)
    return {
        key: str(value) if isinstance(value, Decimal) else value
        for key, value in _fields(usage)
        if value is not None
    }


def _fields(model: BaseModel) -> list[tuple[str, Any]]:
    return [*model.__dict__.items(), *(model.model_extra or {}).items()]
