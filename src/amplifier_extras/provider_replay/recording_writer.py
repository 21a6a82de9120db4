"""Write a recording: JSON lines, each complete in itself.

    {"type": "header", "schema": 1, "created": "…", "folder": "/work"}
    {"type": "provider", "name": "anthropic", "model": "…", "priority": 100, "streams": true, "info": {…}}
    {"type": "request", "call": 1, "provider": "anthropic", "mode": "stream", "fingerprint": "…",
     "request": {"model": "…", "tools": […], "messages": […]}}
    {"type": "event", "call": 1, "at": 0.001, "event": "llm:request", "data": {…}}
    {"type": "chunk", "call": 1, "at": 0.310, "chunk": {…}}
    {"type": "response", "call": 1, "at": 0.502, "response": {…}}      or "error", or "cut"

A conversation grows at its end, so a request is stored as its difference: `"as": 1, "first": 4`
means that its first four messages are those of call 1, and `"tools_as": 1` that it has its tools.
The results of a call are written when it has ended.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

from amplifier_extras.provider_replay.plain_data import plain, plain_error
from amplifier_extras.provider_replay.requests import Comparing, Plain, fingerprint
from amplifier_extras.provider_replay.rewriting import change_deltas
from amplifier_support.clock import utc_now
from amplifier_support.private_files import open_regular
from amplifier_support.redaction import Redactor

SCHEMA = 1
_COMPARED_CALLS = 8
"""How many earlier calls to compare a request with."""

_OF_LOOPS = frozenset(
    (
        "provider:request",
        "provider:response",
        "provider:error",
        "provider:stream",
        "provider:resolve",
    )
)

_open: dict[str, Recording] = {}


class Recording:
    """A recording file, shared by the sessions of one process that name it.

    Args:
        path: The file; must be new or empty.
        folder: The working directory.
        redactor: Removes secrets.

    Raises:
        ValueError: The file cannot be written, or is not empty.
    """

    def __init__(self, path: str, folder: str, redactor: Redactor) -> None:
        self.path = path
        self._file = _create_file(path)
        self._redactor = redactor
        self._comparing = Comparing(folder)
        self._begun = time.monotonic()
        self._calls = 0
        self._users = 0
        # Until the first request: a file that stays empty can be recorded to again.
        self._preamble: list[Plain] = []
        self._providers: list[Plain] = []
        self._earlier: list[tuple[int, list[Any]]] = []
        self._tools: tuple[int, Any] = (0, None)
        created = utc_now().isoformat(timespec="seconds")
        self.write({"type": "header", "schema": SCHEMA, "created": created, "folder": folder})

    @classmethod
    def shared(cls, path: str, folder: str, redactor: Redactor) -> Recording:
        """The recording at `path`, shared with child sessions."""
        key = os.path.realpath(path)
        if key not in _open:
            _open[key] = cls(path, folder, redactor)
        _open[key]._users += 1
        return _open[key]

    def release(self) -> None:
        """Close the file once no session uses it."""
        self._users -= 1
        if self._users <= 0:
            _open.pop(os.path.realpath(self.path), None)
            with self._errors_of_the_file():
                self._file.close()

    def describe(self, provider: Plain) -> None:
        """Record a provider's self-description, once."""
        if provider not in self._providers:
            self._providers.append(provider)
            self.write({"type": "provider", **provider})

    def begin(self, provider: str, mode: str, request: Plain) -> Call:
        """Record a request."""
        self._calls += 1
        preamble, self._preamble = self._preamble, []
        for line in preamble:
            self._append(line)
        call = Call(self, self._calls)
        written = self._redactor.value(request)
        fields = {
            "type": "request",
            "call": call.number,
            "provider": provider,
            "mode": mode,
            "since_start": round(time.monotonic() - self._begun, 3),
            "fingerprint": fingerprint(self._comparing.comparable(written)),
        }
        self.write({**fields, **self._shortened(call.number, written)}, redacted=True)
        return call

    def write(self, line: Plain, *, redacted: bool = False) -> None:
        """Append a line; lines before the first request are held back until then.

        Raises:
            OSError: It cannot be written.
        """
        if not redacted:
            line = self._redactor.value(line)
        if self._calls:
            self._append(line)
        else:
            self._preamble.append(line)

    def _append(self, line: Plain) -> None:
        if self._file.closed:
            return
        text = json.dumps(line, ensure_ascii=False, default=str)
        with self._errors_of_the_file():
            try:
                self._file.write(text + "\n")
            except UnicodeEncodeError:  # half a surrogate pair
                self._file.write(json.dumps(line, default=str) + "\n")

    def write_all(self, lines: list[Plain]) -> None:
        """Append the results of a call. Raises `OSError` as `write`."""
        # A secret may be split over several pieces.
        change_deltas((line.get("chunk") for line in lines), self._redactor.text)
        for line in lines:
            self.write(line)
        if not self._file.closed:
            with self._errors_of_the_file():
                self._file.flush()

    @contextmanager
    def _errors_of_the_file(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            what = f"cannot write the recording {self.path}: {error.strerror}"
            raise OSError(error.errno, what) from error

    def _shortened(self, number: int, request: Plain) -> Plain:
        messages = request["messages"]
        shared, source = max(
            ((_common(messages, earlier), call) for call, earlier in self._earlier),
            default=(0, 0),
        )
        rest = {key: value for key, value in request.items() if key not in ("messages", "tools")}
        references: Plain = {"as": source, "first": shared} if shared else {}
        if "tools" in request:
            known, tools = self._tools
            if request["tools"] == tools:
                references["tools_as"] = known
            else:
                self._tools = (number, request["tools"])
                rest["tools"] = request["tools"]
        self._earlier = [*self._earlier[1 - _COMPARED_CALLS :], (number, messages)]
        return {**references, "request": {**rest, "messages": messages[shared:]}}


class Call:
    """A call being recorded.

    Attributes:
        number: Its number in the file, from 1.
    """

    def __init__(self, recording: Recording, number: int) -> None:
        self.number = number
        self._recording = recording
        self._begun = time.monotonic()
        self._lines: list[Plain] = []
        self._ended = False

    @contextmanager
    def current(self) -> Generator[None]:
        """Make events emitted meanwhile belong to this call."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def event(self, name: str, data: Mapping[str, Any]) -> None:
        self._write("event", event=name, data=data)

    def chunk(self, chunk: Any) -> None:
        self._write("chunk", chunk=plain(chunk))

    def record_response(self, response: Any, calls: Any = None) -> None:
        """Record the response, and tool calls in it that only its provider can parse."""
        form = {"form": "mapping"} if isinstance(response, Mapping) else {}
        named = {"tool_calls": plain(calls)} if calls else {}
        self._end("response", response={**plain(response), **named}, **form)

    def record_error(self, error: BaseException) -> None:
        self._end("error", error=plain_error(error))

    def record_cut(self) -> None:
        """Record that the caller stopped reading."""
        self._end("cut")

    def _end(self, kind: str, **fields: Any) -> None:
        if not self._ended:
            self._ended = True
            self._write(kind, **fields)
            self._recording.write_all(self._lines)

    def _write(self, kind: str, **fields: Any) -> None:
        at = round(time.monotonic() - self._begun, 4)
        self._lines.append({"type": kind, "call": self.number, "at": at, **fields})


_current: ContextVar[Call | None] = ContextVar("amplifier_recorded_call", default=None)


def current_call() -> Call | None:
    """The call in which the running provider was called."""
    return _current.get()


def is_of_a_call(event: str) -> bool:
    """Whether providers emit events with this name during calls.

    Other events are not recorded: hooks and the renderer trust what an event says.
    """
    return event.startswith(("llm:", "provider:")) and event not in _OF_LOOPS


def _common(some: list[Any], others: list[Any]) -> int:
    count = 0
    for one, other in zip(some, others, strict=False):
        if one != other:
            break
        count += 1
    return count


def _create_file(path: str) -> TextIO:
    """The file, for its owner alone. Never follows a link, never overwrites anything."""
    try:
        descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        raise ValueError(f"cannot write the recording {path}: {error.strerror}") from error
    try:
        if os.fstat(descriptor).st_size:
            raise ValueError(f"{path} is not empty; record to a new file, or remove it first")
        os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return open(descriptor, "w", encoding="utf-8")
