"""Write a recording: JSON lines, each complete in itself.

    {"type": "header", "schema": 1, "created": "…", "folder": "/work"}
    {"type": "provider", "name": "anthropic", "model": "…", "priority": 100, "streams": true, "info": {…}}
    {"type": "request", "call": 1, "provider": "anthropic", "fingerprint": "…",
     "request": {"model": "…", "tools": […], "messages": […]}}
    {"type": "event", "call": 1, "at": 0.001, "event": "llm:request", "data": {…}}
    {"type": "chunk", "call": 1, "at": 0.310, "chunk": {…}}
    {"type": "response", "call": 1, "at": 0.502, "response": {…}}      or "error", or "cut"

A conversation grows at its end, so a request is stored as its difference: `"as": 1, "first": 4`
means that its first four messages are those of call 1, and `"tools_as": 1` that it has its tools.
The results of a call are written when it has ended.
"""

from __future__ import annotations

import difflib
import json
import operator
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from itertools import takewhile
from typing import Any, TextIO, TypeVar, cast

from amplifier_extras.provider_replay.requests import (
    Comparing,
    Plain,
    change_deltas,
    fingerprint,
    folder_pattern,
    ids_in,
    plain_error,
    rewrite_texts,
    same,
)
from amplifier_modules._shared.history.stored_response import plain
from amplifier_support.clock import utc_now
from amplifier_support.files import on_error, open_regular, open_to_read, system_errors_as
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.redaction import Redactor
from amplifier_support.text import cut_text

SCHEMA = 1
_COMPARED_CALLS = 8
"""Number of earlier calls to compare a request with."""

_OF_LOOPS = frozenset(
    (
        "provider:request",
        "provider:response",
        "provider:error",
        "provider:stream",
        "provider:resolve",
    )
)

_Shared = TypeVar("_Shared", "Recording", "Tape")

_open: dict[tuple[type, str], Any] = {}


def open_shared(kind: type[_Shared], path: str, *more: Any, **options: Any) -> _Shared:
    """The recording at `path`, to write or to replay, shared by the sessions of one process that name it."""
    key = kind, os.path.realpath(path)
    if key not in _open:
        _open[key] = kind(path, *more, **options)
    _open[key].users += 1
    return _open[key]


def _is_released(shared: Recording | Tape) -> bool:
    """Return True if the session that releases it is the last one."""
    shared.users -= 1
    if shared.users > 0:
        return False
    _open.pop((type(shared), os.path.realpath(shared.path)), None)
    return True


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
        self._calls = 0
        self.users = 0
        # Until the first request: a file that stays empty can be recorded to again.
        self._preamble: list[Plain] = []
        self._providers: list[Plain] = []
        self._earlier: list[tuple[int, list[Any]]] = []
        self._tools: tuple[int, Any] = (0, None)
        created = utc_now().isoformat(timespec="seconds")
        self.write({"type": "header", "schema": SCHEMA, "created": created, "folder": folder})

    def release(self) -> None:
        """Close the file once no session uses it."""
        if _is_released(self):
            with self._errors_of_the_file():
                self._file.close()

    def describe(self, provider: Plain) -> None:
        """Record a provider's self-description, once."""
        if provider not in self._providers:
            self._providers.append(provider)
            self.write({"type": "provider", **provider})

    def begin(self, provider: str, request: Plain) -> Call:
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
            ((_count_shared(messages, earlier), call) for call, earlier in self._earlier),
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
    """Return True if providers emit events with this name during calls.

    Other events are not recorded: hooks and the renderer trust what an event says.
    """
    return event.startswith(("llm:", "provider:")) and event not in _OF_LOOPS


def _count_shared(
    some: list[Any], others: list[Any], equal: Callable[[Any, Any], bool] = operator.eq
) -> int:
    """The number of equal messages at the start of two lists."""
    return sum(1 for _ in takewhile(bool, map(equal, some, others)))


def _create_file(path: str) -> TextIO:
    """The file, for its owner alone. Never follows a link, never overwrites anything."""
    with system_errors_as(ValueError, f"cannot write the recording {path}"):
        descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with on_error(os.close, descriptor):
        if os.fstat(descriptor).st_size:
            raise ValueError(f"{path} is not empty; record to a new file, or remove it first")
        os.fchmod(descriptor, 0o600)
    return open(descriptor, "w", encoding="utf-8")


_WIDTH = 160
_DIFF_LINES = 12


def difference(recorded: Plain, asked: Plain) -> list[str]:
    """Lines on what changed; ``-`` is the recorded request, ``+`` the current one."""
    lines = [*_options(recorded, asked), *_tools(recorded, asked), *_messages(recorded, asked)]
    return [cut_text(line, _WIDTH) for line in lines]


def _options(recorded: Plain, asked: Plain) -> Iterator[str]:
    for name in sorted((recorded.keys() | asked.keys()) - {"messages", "tools"}):
        if recorded.get(name) != asked.get(name):
            yield f"  {name}: {_short(recorded.get(name))} → {_short(asked.get(name))}"


def _tools(recorded: Plain, asked: Plain) -> Iterator[str]:
    before = {tool["name"]: tool for tool in recorded.get("tools", ())}
    after = {tool["name"]: tool for tool in asked.get("tools", ())}
    for name in before.keys() - after.keys():
        yield f"  tools: {name} is no longer offered"
    for name in after.keys() - before.keys():
        yield f"  tools: {name} is new"
    for name in (name for name in before if name in after):
        for field in sorted(before[name].keys() | after[name].keys()):
            if before[name].get(field) != after[name].get(field):
                yield f"  tools.{name}.{field}:"
                yield from _changed(before[name].get(field), after[name].get(field))
    if list(before) != list(after) and before.keys() == after.keys():
        yield "  tools: offered in a different order"


def _messages(recorded: Plain, asked: Plain) -> Iterator[str]:
    before, after = recorded["messages"], asked["messages"]
    at = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    if at < min(len(before), len(after)):
        yield from _message(at, before[at], after[at])
    more = len(after) - len(before)
    if more:
        word = "message" if abs(more) == 1 else "messages"
        yield f"  messages: {abs(more)} {word} {'more' if more > 0 else 'fewer'}"
        longer = after if more > 0 else before
        if at == min(len(before), len(after)):
            yield f"    {'+' if more > 0 else '-'} {_summary(longer[at])}"


def _message(at: int, before: Plain, after: Plain) -> Iterator[str]:
    where = f"  messages[{at}]"
    if before.get("role") != after.get("role"):
        yield f"{where}:"
        yield f"    - {_summary(before)}"
        yield f"    + {_summary(after)}"
        return
    where += f" ({before.get('role')})"
    for field in sorted((before.keys() | after.keys()) - {"role", "content"}):
        if before.get(field) != after.get(field):
            yield f"{where}.{field}: {_short(before.get(field))} → {_short(after.get(field))}"
    blocks = _blocks(before), _blocks(after)
    for index, (a, b) in enumerate(zip(*blocks, strict=False)):
        if a != b:
            yield from _block(f"{where}.content[{index}]", a, b)
            return
    if len(blocks[0]) != len(blocks[1]):
        yield f"{where}.content: {len(blocks[0])} → {len(blocks[1])} blocks"


def _block(where: str, before: Any, after: Any) -> Iterator[str]:
    alike = isinstance(before, dict) and isinstance(after, dict)
    if not alike or before.get("type") != after.get("type"):
        yield f"{where}:"
        yield f"    - {_short(before)}"
        yield f"    + {_short(after)}"
        return
    for field in sorted(before.keys() | after.keys()):
        if before.get(field) != after.get(field):
            name = before.get("name")
            yield f"{where}.{field}{f' of {name}' if name else ''}:"
            yield from _changed(before.get(field), after.get(field))


def _changed(before: Any, after: Any) -> Iterator[str]:
    """A diff of two values by lines, without their common start and end."""
    diff = difflib.unified_diff(
        _text(before).split("\n"), _text(after).split("\n"), n=0, lineterm=""
    )
    lines = [line for line in diff if line[:3] not in ("---", "+++") and line[:2] != "@@"]
    for line in lines[:_DIFF_LINES]:
        yield f"    {line[0]} {line[1:]}"
    if len(lines) > _DIFF_LINES:
        yield f"    … {len(lines) - _DIFF_LINES} more"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


def _blocks(message: Plain) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else [content]


def _summary(message: Plain) -> str:
    texts = [str(b.get("text") or b.get("name") or b.get("type")) for b in _blocks(message) if b]
    return f"{message.get('role')}: {' '.join(' '.join(texts).split())}"


def _short(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


_ENDS = ("response", "error", "cut")
_STEPS = ("event", "chunk", *_ENDS)
_MAX_CALL = 7 * 24 * 3600.0


class Step(NamedTuple):
    """A result of a call, `at` seconds after its start: the line of the file."""

    kind: str
    at: float
    line: Plain


class RecordedCall:
    """One call of a recording.

    Attributes:
        number: Its number in the file.
        provider: The provider.
        request: The whole request.
        steps: Its results.
        served: Whether it has been replayed.
    """

    def __init__(self, number: int, provider: str, request: Plain) -> None:
        self.number = number
        self.provider = provider
        self.request = request
        self.steps: list[Step] = []
        self.served = False


class Tape:
    """A recording, shared by the sessions of one process that name it.

    Current names (the folder, session ids) are learned from matching requests and used in the
    responses.

    A request is answered by the first matching call of its provider that has not been replayed yet,
    so that parallel sessions may come in any order.

    Args:
        path: The file.
        folder: The working directory now.
        ignore: Text to ignore, as regular expressions.
        structure: Whether only the structure of requests is compared; see `Comparing`.

    Raises:
        ValueError: It cannot be read, or is not a recording of this version.
    """

    def __init__(
        self, path: str, folder: str, ignore: Iterable[str] = (), *, structure: bool = False
    ) -> None:
        self.path = path
        self.providers: list[Plain] = []
        self.calls: list[RecordedCall] = []
        self.users = 0
        self._differed = False
        patterns = list(ignore)
        recorded_in = self._read()
        self._now = Comparing(folder, patterns, structure=structure)
        self._then = Comparing(recorded_in, patterns, structure=structure)
        self._comparable: dict[int, Plain] = {}
        self._renamed: dict[str, str] = {}
        self._moved = None
        if recorded_in != folder and len(recorded_in) > 1:
            self._moved = (folder_pattern(recorded_in), folder)

    def release(self) -> list[RecordedCall]:
        """Release it; the last release returns the calls that were not requested.

        After a request that differs, the remaining calls are not expected.
        """
        if not _is_released(self) or self._differed:
            return []
        return [call for call in self.calls if not call.served]

    def find(self, provider: str, request: Plain) -> RecordedCall | list[str]:
        """The call that answers `request`, or the lines on how it differs from the nearest one.

        `request` need not name its model, which is then ignored.
        """
        asked = self._now.comparable(request)
        waiting = [c for c in self.calls if c.provider == provider and not c.served]
        for call in waiting:
            if same(_with_recorded_model(asked, self._recorded(call)), asked):
                call.served = True
                self._learn(call.request, request)
                return call
        self._differed = True
        if not waiting:
            count = sum(call.provider == provider for call in self.calls)
            return [f"all {count} recorded calls of {provider} have already been replayed"]

        def likeness(call: RecordedCall) -> tuple[int, int]:
            messages = self._recorded(call)["messages"]
            return _count_shared(messages, asked["messages"], same), -call.number

        nearest = max(waiting, key=likeness)
        recorded = _with_recorded_model(asked, self._recorded(nearest))
        return [f"compared with call {nearest.number}:", *difference(recorded, asked)]

    def build_steps(self, call: RecordedCall) -> list[Step]:
        """The results of a call, with current names."""
        if not self._renamed and self._moved is None:
            return call.steps
        steps = deepcopy(call.steps)
        change_deltas((step.line.get("chunk") for step in steps), self._with_names_of_now)
        return [
            step._replace(line=rewrite_texts(step.line, self._with_names_of_now))
            if step.kind in ("chunk", "response")
            else step
            for step in steps
        ]

    def _learn(self, recorded: Plain, asked: Plain) -> None:
        then, now = ids_in(recorded), ids_in(asked)
        if len(then) == len(now):
            self._renamed |= {a: b for a, b in zip(then, now, strict=True) if a != b}

    def _with_names_of_now(self, text: str) -> str:
        if self._moved is not None:
            pattern, folder = self._moved
            text = pattern.sub(lambda _: folder, text)
        for then, now in self._renamed.items():
            if then in text:
                text = text.replace(then, now)
        return text

    def _recorded(self, call: RecordedCall) -> Plain:
        if call.number not in self._comparable:
            self._comparable[call.number] = self._then.comparable(call.request)
        return self._comparable[call.number]

    def _read(self) -> str:
        """Read the file; returns the folder of the recorded run."""
        calls: dict[int, RecordedCall] = {}
        tools: dict[int, Any] = {}
        folder: str | None = None
        for number, line in _lines(self.path):
            try:
                kind = line["type"]
                if kind == "header":
                    if line["schema"] != SCHEMA:
                        raise ValueError(
                            f"{self.path} has the schema {line['schema']}; this version reads {SCHEMA}"
                        )
                    folder = str(line.get("folder", ""))
                elif folder is None:
                    break
                elif kind == "provider":
                    if not isinstance(line["name"], str):
                        raise TypeError("its name is not text")
                    self.providers.append(line)
                elif kind == "request":
                    request = _whole_request(line, calls, tools)
                    call = RecordedCall(line["call"], line["provider"], request)
                    calls[call.number] = call
                elif kind in _STEPS:
                    calls[line["call"]].steps.append(Step(kind, _seconds(line), line))
            except (KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{self.path}:{number} is not a line of a recording") from error
        if folder is None:
            raise ValueError(f"{self.path} is not a recording: it does not start with a header")
        self.calls = list(calls.values())
        return folder


def _seconds(line: Plain) -> float:
    """The time of a line. Raises TypeError if it is invalid."""
    at = float(line["at"])
    if not 0 <= at < _MAX_CALL:
        raise TypeError(f"{at} is not a number of seconds")
    return at


def _lines(path: str) -> Iterator[tuple[int, Plain]]:
    with (
        system_errors_as(ValueError, f"cannot read the recording {path}"),
        open(open_to_read(path), "rb") as file,
    ):
        data = file.read()
    pieces = data.split(b"\n")
    for number, piece in enumerate(pieces, 1):
        if not piece.strip():
            continue
        try:
            line: Any = json.loads(piece)
        except (ValueError, RecursionError) as error:
            if number == len(pieces):
                return  # the program that recorded it was killed while it wrote this
            raise ValueError(f"{path}:{number} is not valid JSON") from error
        if not isinstance(line, dict):
            raise ValueError(f"{path}:{number} is not a line of a recording")
        yield number, cast("Plain", line)


def _whole_request(line: Plain, calls: Mapping[int, RecordedCall], tools: dict[int, Any]) -> Plain:
    request = dict(line["request"])
    if "as" in line:
        earlier = calls[line["as"]].request["messages"][: line["first"]]
        request["messages"] = [*earlier, *request["messages"]]
    if "tools_as" in line:
        request["tools"] = tools[line["tools_as"]]
    elif "tools" in request:
        tools[line["call"]] = request["tools"]
    if not all(isinstance(message, dict) for message in request["messages"]):
        raise TypeError("a message is not an object")
    return request


def _with_recorded_model(asked: Plain, recorded: Plain) -> Plain:
    """`recorded`, without its model if `asked` names none."""
    if "model" in asked or "model" not in recorded:
        return recorded
    return {key: value for key, value in recorded.items() if key != "model"}
