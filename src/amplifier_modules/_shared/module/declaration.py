"""The declaration in the package of a bundled module, so that its code is imported only when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import resolve_name
from typing import Any

from amplifier_support.named_tuple import NamedTuple


class ModuleDeclaration:
    """A module's config and what it mounts, by name: imported only when they are used.

    Args:
        package: `__name__` of the package.
        module_id: Its id, such as ``tool-todo``.
        config: The model of its config, such as ``.config:TodoConfig``.
        home: The package that has it.
        code: The module with `mount(coordinator, settings)`, such as ``.mounting``, and
            `on_session_ready(coordinator)` if the package has one.

    Attributes:
        mount: The `mount` of the package: parses the config and calls that of `code`. Raises
            ValueError if the config is not valid.
    """

    def __init__(
        self,
        package: str,
        module_id: str,
        config: str,
        code: str,
        *,
        home: str = "amplifier_modules",
    ) -> None:
        self._module_id = module_id
        self._config = config
        self._code = code
        # Not `__name__`: validation imports a module under a name of its own.
        self._package = f"{home}.{module_id.replace('-', '_')}"

        async def mount(coordinator: Any, config: Mapping[str, Any] | None = None) -> Any:
            return await self._mount(coordinator, config)

        # The loader takes `on_session_ready` from the package that its mount function is defined in.
        mount.__module__ = package
        self.mount = mount

    def config_schema(self) -> dict[str, Any]:
        """Return the config that `mount` accepts, as JSON Schema."""
        from amplifier_modules._shared.module.config_schema import build_config_schema

        return build_config_schema(self._model())

    async def _mount(self, coordinator: Any, config: Mapping[str, Any] | None) -> Any:
        from amplifier_modules._shared.module.config import parse_config

        settings = parse_config(self._model(), config, self._module_id)
        return await self._import(self._code).mount(coordinator, settings)

    async def on_session_ready(self, coordinator: Any) -> None:
        """Complete the module once all others are mounted."""
        await self._import(self._code).on_session_ready(coordinator)

    def _model(self) -> Any:
        module, _, name = self._config.partition(":")
        return getattr(self._import(module), name)

    def _import(self, module: str) -> Any:
        # Faster than `import_module` for each session after the first one.
        return __import__(resolve_name(module, self._package), fromlist=("__name__",))


class Listening:
    """The handlers of a module, removed together.

    Args:
        coordinator: See `amplifier_core.coordinator.ModuleCoordinator`.
        module_id: The module's id.
        priority: Order among the handlers of an event; see `amplifier_core.hooks.HookRegistry`.
    """

    def __init__(self, coordinator: Any, module_id: str, priority: int = 0) -> None:
        self._register = partial(coordinator.hooks.register, priority=priority, name=module_id)
        self._unregister: dict[str, Callable[[], None]] = {}

    def on(self, event: str, handler: Callable[[str, Any], Any]) -> None:
        """Call `handler` on `event`, unless the module listens to that already."""
        if event not in self._unregister:
            self._unregister[event] = self._register(event, handler)

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        while self._unregister:
            self._unregister.popitem()[1]()


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
        return await self._created().execute(input)

    async def check(self, input: Mapping[str, Any], span: str | None = None) -> bool:
        """The capability `*.check`, for a tool that has it."""
        return await self._created().check(input, span)

    def _created(self) -> Any:
        if self._tool is None:
            self._tool = self._create(self.name)
        return self._tool
