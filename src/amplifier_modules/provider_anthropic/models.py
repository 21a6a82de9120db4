"""What this provider knows of Claude models; the facts themselves are in `models.json`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from amplifier_modules._shared.providers.catalogue import Catalogue, Model

UNKNOWN_CONTEXT_WINDOW = 200_000
UNKNOWN_MAX_OUTPUT = 8_192
USUAL_MAX_OUTPUT = 32_000

# A snapshot's date, a cloud's or a gateway's spelling: claude-x-20250101, claude-x@20250101,
# us.anthropic.claude-x-v1:0, anthropic/claude-x.
_SPELLING = re.compile(
    r"(?:[a-z-]+[./])*(?P<id>claude-.+?)(?:[-@]\d{8}|-latest|@latest|@default)?(?:-v\d+(?::\d+)?)?"
)


def known_models() -> Iterator[Model]:
    """All models of the catalogue, the default first."""
    return iter(_catalogue())


def find_model(model_id: str) -> Model | None:
    """The model with this id, ignoring snapshot date and cloud spelling; None if unknown."""
    spelled = _SPELLING.fullmatch(model_id)
    return _catalogue().get(spelled["id"]) if spelled else None


class Features:
    """What a model supports. Unknown models are assumed to support everything.

    Attributes:
        thinking: Accepted values of `thinking.type`.
        thinks_by_default: Whether it thinks by default.
        efforts: Accepted efforts, rising; None where unknown.
        sampling: Whether it takes temperature and top_p.
        forced_tools: Whether a tool call can be forced.
        checks_prefix: Whether it refuses returned thinking if something before it has changed.
    """

    __slots__ = (
        "checks_prefix",
        "efforts",
        "forced_tools",
        "known",
        "sampling",
        "thinking",
        "thinks_by_default",
    )

    def __init__(self, model: Model | None) -> None:
        facts: dict[str, Any] = model.features if model else {}
        self.known = model is not None
        self.thinking: list[str] = facts.get("thinking", ["enabled", "adaptive", "disabled"])
        self.thinks_by_default: bool = facts.get("thinks_by_default", False)
        self.efforts: list[str] | None = facts.get("efforts")
        self.sampling: bool = facts.get("sampling", True)
        self.forced_tools: bool = facts.get("forced_tools", True)
        self.checks_prefix: bool = facts.get("checks_prefix", False)


@lru_cache(maxsize=1)
def _catalogue() -> Catalogue:
    return Catalogue(Path(__file__).with_name("models.json"))
