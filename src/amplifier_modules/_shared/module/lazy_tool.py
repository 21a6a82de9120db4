"""A tool whose code is imported with its first call; models are offered it without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier_support.named_tuple import NamedTuple


class Offer(NamedTuple):
    """The description of a tool for models.

    Attributes:
        name: Its name.
        description: What it does.
        input_schema: JSON schema of its input.
    """

    name: str
    description: str
    input_schema: dict[str, Any]


class LazyTool:
    """A tool of the Tool Contract that is created with its first call.

    Args:
        offer: Its description for models.
        create: Creates the tool that carries out the calls.

    Attributes:
        defined_in: The Python module that creates it.
    """

    def __init__(self, offer: Offer, create: Callable[[str], Any]) -> None:
        self.name = offer.name
        self.description = offer.description
        self.input_schema = offer.input_schema
        self.defined_in = create.__module__
        self._create = create
        self._tool: Any = None

    def get_schema(self) -> dict[str, Any]:
        """JSON schema of the input."""
        return self.input_schema

    async def execute(self, input: dict[str, Any]) -> Any:
        """Run the tool; see `CheckedTool.execute`."""
        if self._tool is None:
            self._tool = self._create(self.name)
        return await self._tool.execute(input)
