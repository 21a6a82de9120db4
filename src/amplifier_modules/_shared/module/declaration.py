"""What the package of a bundled module declares about its config; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class ConfigDeclaration:
    """A module's config model by name, imported only to mount the module or build its schema.

    Args:
        module_id: What error messages call the module, such as ``tool-todo``.
        model: Where the model is, such as ``amplifier_modules.tool_todo.config:TodoConfig``. Not
            relative to `__name__`: validation imports a module under a name of its own.
    """

    def __init__(self, module_id: str, model: str) -> None:
        self._module_id = module_id
        self._model = model

    def schema(self) -> dict[str, Any]:
        """Return the config that `mount` accepts, as JSON Schema."""
        from amplifier_modules._shared.module.config_schema import config_schema_of

        return config_schema_of(self._load())

    def parsed(
        self, function: Callable[[Any, Any], Awaitable[ResultT]]
    ) -> Callable[..., Awaitable[ResultT]]:
        """Turn a `mount` that takes validated settings into one that takes a config mapping.

        Raises:
            ValueError: The config is not valid; raised by the function that is returned.
        """

        async def mount(coordinator: Any, config: Mapping[str, Any] | None = None) -> ResultT:
            from amplifier_modules._shared.module.config import parse_config

            settings = parse_config(self._load(), config, self._module_id)
            return await function(coordinator, settings)

        # Not functools.wraps: validators inspect the signature of `mount(coordinator, config)`.
        mount.__module__ = function.__module__
        mount.__doc__ = function.__doc__
        return mount

    def _load(self) -> Any:
        module, _, name = self._model.partition(":")
        return getattr(import_module(module), name)
