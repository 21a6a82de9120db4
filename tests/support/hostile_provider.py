"""A provider module that returns or raises anything; also the list of what it can do.

    from tests.support import hostile_provider

    home = hostile_provider.write(tmp_path)  # the `source` of `module: provider-odd`
    config: {case: "exit 0", streams: true}  # a name in hostile_provider.CASES

The first call does what its case says, later ones answer "fine". With `streams`, the value of the case
is the only chunk of a stream.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from amplifier_core import ChatResponse, ProviderInfo

_PACKAGE = "amplifier_module_provider_odd"


def write(folder: Path) -> Path:
    """Write the module into `folder` and return its folder."""
    home = folder / "provider-odd"
    (home / _PACKAGE).mkdir(parents=True)
    code = Path(__file__).read_text(encoding="utf-8")
    (home / _PACKAGE / "__init__.py").write_text(code, encoding="utf-8")
    return home


class _Odd:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class _Base(BaseException):
    pass


class _NoText(Exception):
    def __str__(self) -> str:
        return str(1 / 0)


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    return value


def _endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = value
    return value


def _raise(error: BaseException) -> Any:
    raise error


async def _cancelled() -> None:
    raise asyncio.CancelledError("inner")


def _fine(**more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": "fine"}], **more}


def _block(**more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": "fine", **more}]}


def _calling(**call: Any) -> dict[str, Any]:
    return _fine(tool_calls=[{"id": "a", "name": "x", "arguments": {}, **call}])


_ODD_USAGE = {"input_tokens": "12", "output_tokens": float("nan"), "cost_usd": "NaN"}
_HUGE = {"input_tokens": 10**4400, "output_tokens": 1, "total_tokens": 10**4400}

CASES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "number": lambda: 7,
    "string": lambda: "hi",
    "list": lambda: [1],
    "odd object": _Odd,
    "content: none": lambda: SimpleNamespace(content=None),
    "content: number": lambda: SimpleNamespace(content=7),
    "content: anything": lambda: SimpleNamespace(content=[1, None, _Odd(), "x"]),
    "dict": _fine,
    "dict of wrong types": lambda: _fine(
        tool_calls="abc", usage=[1], finish_reason=[1], metadata=5
    ),
    "blocks: deep": lambda: _block(x=_deep()),
    "blocks: endless": lambda: _block(x=_endless()),
    "blocks: text is a number": lambda: _block(text=7),
    "blocks: type is a list": lambda: _block(type=["text"]),
    "blocks: bytes": lambda: _block(text=b"x"),
    "calls: strings": lambda: _fine(tool_calls=["read_file"]),
    "calls: number": lambda: _fine(tool_calls=5),
    "calls: odd object": lambda: _fine(tool_calls=[_Odd()]),
    "calls: odd id": lambda: _calling(id=_Odd(), name=5),
    "calls: deep": lambda: _calling(arguments={"a": _deep()}),
    "calls: endless": lambda: _calling(arguments=_endless()),
    "calls: surrogates": lambda: _calling(
        id="\udc80", name="\ud800\x1b[2J", arguments={"\udc80": 1}
    ),
    "usage: wrong types": lambda: _fine(usage=_ODD_USAGE),
    "usage: huge": lambda: _fine(usage=_HUGE),
    "usage: odd object": lambda: _fine(usage=_Odd()),
    "metadata: deep": lambda: _fine(metadata={"model": _deep(), "x": _endless()}),
    "unvalidated model": lambda: ChatResponse.model_construct(
        content=[5, None, {"type": "text"}],  # type: ignore[list-item]
        usage="x",  # type: ignore[arg-type]
        tool_calls=[None],  # type: ignore[list-item]
    ),
    "exit 0": lambda: sys.exit(0),
    "exit 1": lambda: sys.exit(1),
    "exit with text": lambda: sys.exit("bye\x1b[2J"),
    "base exception": lambda: _raise(_Base("b")),
    "cancelled": _cancelled,
    "generator exit": lambda: _raise(GeneratorExit()),
    "key error": lambda: {}["x"],
    "recursion error": lambda: str(_deep()),
    "memory error": lambda: _raise(MemoryError()),
    "stop iteration": lambda: next(iter(())),
    "error without text": lambda: _raise(_NoText()),
    "error group": lambda: _raise(ExceptionGroup("g", [ValueError("x")])),
}


class OddProvider:
    """Does what its case says."""

    name = "odd"

    def __init__(self, case: str) -> None:
        self._case: str | None = case

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="odd", display_name="Odd")

    async def list_models(self) -> list[Any]:
        return []

    def parse_tool_calls(self, response: Any) -> Any:
        if isinstance(response, dict):
            return response.get("tool_calls") or []
        return getattr(response, "tool_calls", None) or []

    async def complete(self, request: Any, **_: Any) -> Any:
        case, self._case = self._case, None
        value = CASES[case]() if case else _fine()
        return await value if asyncio.iscoroutine(value) else value


class StreamingOddProvider(OddProvider):
    async def stream_complete(self, request: Any, **_: Any) -> Any:
        yield await self.complete(request)


async def mount(coordinator: Any, config: dict[str, Any]) -> None:
    kind = StreamingOddProvider if config.get("streams") else OddProvider
    await coordinator.mount("providers", kind(config["case"]), name="odd")
