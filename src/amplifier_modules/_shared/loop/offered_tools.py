"""The tools offered to a model: their names, and which tool a name refers to.

A tool is offered under the name it is mounted as. If vendors reject that name, the tool's own `name`
is used, or else the mount name in characters that vendors accept. The model may also call a tool by
its own `name` if that is unambiguous.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amplifier_core.message_models import ToolSpec
from amplifier_modules._shared.history import portable_id
from amplifier_modules._shared.loop.schema import InputChecker


def offered_tools(provider: Any, tools: Mapping[str, Any], checker: InputChecker) -> list[ToolSpec]:
    """The tools to offer as `ToolSpec`s; none to a provider that does not support tools."""
    if not tools or not getattr(provider, "supports_tools", True):
        return []
    names = offered_names(tools)
    specs: list[ToolSpec] = []
    for mounted, tool in tools.items():
        schema = checker.schema(tool, mounted)
        if schema is not None:
            spec = ToolSpec.model_construct(
                name=names[mounted],
                description=str(getattr(tool, "description", "") or ""),
                parameters=schema or {"type": "object", "properties": {}},
            )
            specs.append(spec)
    return specs


def offered_names(tools: Mapping[str, Any]) -> dict[str, str]:
    """The unique name each tool is offered under, by the name it is mounted as."""
    legal = {name for name in tools if _is_legal(name)}
    taken = set(legal)
    names = {name: name for name in tools}
    for mounted in tools.keys() - legal:
        own = _own_name(tools[mounted])
        name = wanted = own if own and _is_legal(own) else portable_id(mounted)
        number = 1
        while name in taken:
            number += 1
            name = f"{wanted[:60]}_{number}"
        taken.add(name)
        names[mounted] = name
    return names


def tool_called(name: str, tools: Mapping[str, Any]) -> str | None:
    """The mount name of the tool that a model calls `name`; None if there is no such tool."""
    if name in tools:
        return name
    for mounted, offered in offered_names(tools).items():
        if offered == name:
            return mounted
    own = [mounted for mounted, tool in tools.items() if _own_name(tool) == name]
    return own[0] if own and all(tools[other] is tools[own[0]] for other in own) else None


def _own_name(tool: Any) -> str | None:
    name = getattr(tool, "name", None)
    return name if isinstance(name, str) else None


def _is_legal(name: str) -> bool:
    return portable_id(name) == name if name else False
