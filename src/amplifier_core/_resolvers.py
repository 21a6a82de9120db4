"""Call resolvers of any version of the protocol, and read the optional attributes of sources.

Resolvers and sources are objects of the app (Module Source Protocol): attributes of the wrong
type are ignored.
"""

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["Offer", "resolve"]


class Offer(NamedTuple):
    """Optional attributes of a source (see `module_sources.ModuleSource`)."""

    installed: bool
    entry_point: str
    import_paths: Sequence[Any]
    preferred_paths: Sequence[Any]

    @classmethod
    def of(cls, source: Any) -> "Offer":
        """Read the attributes of `source`; missing ones are False or empty."""
        entry_point = getattr(source, "entry_point", None)
        return cls(
            getattr(source, "installed", False) is True,
            entry_point if isinstance(entry_point, str) else "",
            _folders(source, "import_paths"),
            _folders(source, "preferred_paths"),
        )


def _folders(source: Any, name: str) -> Sequence[Any]:
    paths = getattr(source, name, None)
    return paths if isinstance(paths, (list, tuple)) else ()


async def resolve(resolver: Any, module_id: str, hint: Any) -> Any:
    """The source of a module. Prefers the published keywords to the protocol's positional form."""
    ask = getattr(resolver, "async_resolve", None) or resolver.resolve
    parameters = inspect.signature(ask).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = [name for name in ("source_hint", "profile_hint") if takes_any or name in parameters]
    if named:
        source = ask(module_id, **dict.fromkeys(named, hint))
    else:
        source = ask(module_id, hint) if len(parameters) > 1 else ask(module_id)
    return await source if inspect.isawaitable(source) else source
