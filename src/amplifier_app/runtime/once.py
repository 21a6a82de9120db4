"""Text of an answer is shown once, though a provider may begin the answer again.

Bundled providers never try again once something was handed out. Others may: they tell of it by
`provider:retry` and stream from the beginning. What was shown already is then left out; where the
second answer differs from the first, it is shown from its beginning on a new line.
"""

from __future__ import annotations

from typing import Any

from amplifier_app.runtime.turn import EventHandler, peek

_DELTA = "content_block:delta"


def shown_once(handlers: dict[str, EventHandler]) -> dict[str, EventHandler]:
    """Handlers of a renderer that are not told of text a second time."""
    inner = handlers.get(_DELTA)
    if inner is None:
        return handlers
    once = _Once(inner)
    begin, retry = handlers.get("provider:request"), handlers.get("provider:retry")

    def on_request(event: str, data: dict[str, Any]) -> None:
        once.begin()
        if begin is not None:
            begin(event, data)

    def on_retry(event: str, data: dict[str, Any]) -> None:
        once.again()
        if retry is not None:
            retry(event, data)

    return {
        **handlers,
        _DELTA: once.on_delta,
        "provider:request": on_request,
        "provider:retry": on_retry,
    }


class _Once:
    """The text of one answer, by kind of block.

    Args:
        handler: What shows it.
    """

    def __init__(self, handler: EventHandler) -> None:
        self._handler = handler
        self.begin()

    def begin(self) -> None:
        """Another request was made."""
        self._shown: dict[Any, list[str]] = {}
        self._awaited: dict[Any, str] = {}

    def again(self) -> None:
        """The same answer begins anew."""
        self._awaited = {kind: "".join(texts) for kind, texts in self._shown.items()}

    def on_delta(self, event: str, data: dict[str, Any]) -> None:
        kind, delta = peek(data, "block_type"), peek(data, "delta")
        if not isinstance(delta, str):
            self._handler(event, data)
        elif awaited := self._awaited.get(kind):
            self._compare(event, data, kind, delta, awaited)
        else:
            self._shown.setdefault(kind, []).append(delta)
            self._handler(event, data)

    def _compare(
        self, event: str, data: dict[str, Any], kind: Any, delta: str, awaited: str
    ) -> None:
        same = _common(delta, awaited)
        if same == len(delta):
            self._awaited[kind] = awaited[same:]
            return
        del self._awaited[kind]
        if same == len(awaited):
            news = delta[same:]
            self._shown[kind].append(news)
        else:
            before = "".join(self._shown[kind])
            whole = before[: len(before) - len(awaited)] + delta
            news = f"\n{whole}"
            self._shown[kind] = [whole]
        self._handler(event, {**data, "delta": news})


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
