"""A model, or a server in front of it, that answers with anything.

Named cases, and answers made from a seed. Both are items of a script for `ScriptedLLM`, and work with
every API it speaks:

    from tests.support.llm.hostile import CASES, TRANSPORT, random_reply

    with ScriptedLLM.running([CASES["call id: number"], "Recovered."]) as server: ...
    with ScriptedLLM.running([random_reply(seed), "Recovered."]) as server: ...

`CASES` are streams whose HTTP is correct, `TRANSPORT` are answers whose HTTP is not. `random_reply`
changes up to four places of a valid stream; the same seed makes the same changes, so print it when a
test fails. The ids that a server makes up differ between runs, and nothing else does.

To add a case, put a `Reply` into `CASES`; `changed`, `every_event` and `with_usage` make its `edit`.
"""

import copy
import gzip
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.support.llm.script import Raw, Reply, Text, Thinking, ToolCall

Events = list[bytes]
Edit = Callable[[Events], Events]
Value = Any

MISSING = object()
"""In place of a value: the key is removed."""


def nested(depth: int) -> str:
    """The JSON of a tool's input that is nested `depth` deep."""
    return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


# -- edits ---------------------------------------------------------------------------------------


def changed(keys: str | tuple[str, ...], value: Value) -> Edit:
    """An edit that sets `keys` to `value` wherever they are in the events."""
    wanted = {keys} if isinstance(keys, str) else set(keys)

    def change(data: Any) -> Any:
        for holder, key in list(_places(data)):
            if key in wanted and isinstance(holder, dict):
                _put(holder, key, value)
        return data

    return every_event(change)


def with_usage(value: Value) -> Edit:
    """An edit that replaces each count of tokens by `value`."""

    def change(data: Any) -> Any:
        for holder, key in list(_places(data)):
            if str(key).endswith("_tokens") and isinstance(holder[key], int):
                _put(holder, key, value)
        return data

    return every_event(change)


def every_event(change: Callable[[Any], Any]) -> Edit:
    """An edit that applies `change` to the decoded JSON of each event.

    What it returns is sent; bytes are sent as they are, in place of the JSON.
    """

    def edit(events: Events) -> Events:
        return [_encoded(*_decoded(event), change) for event in events]

    return edit


def _decoded(event: bytes) -> tuple[bytes, Any]:
    """What precedes an event's JSON, and the JSON; None for an event without any."""
    head, mark, data = event.partition(b"data: ")
    try:
        return head + mark, json.loads(data)
    except (ValueError, RecursionError):
        # A change before this one broke it, or nested it too deep.
        return event, None


def _encoded(head: bytes, data: Any, change: Callable[[Any], Any]) -> bytes:
    if data is None:
        return head
    data = change(data)
    # ASCII: lone surrogates are sent as escapes.
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    return head + text + b"\n\n"


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every value in `data` but itself, as (its container, its key or index)."""
    for key in list(data) if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], dict | list):
            yield from _places(data[key])


def _put(holder: Any, key: Any, value: Value) -> None:
    if value is MISSING:
        del holder[key]
    else:
        holder[key] = copy.deepcopy(value)


def _in_reverse(events: Events) -> Events:
    return events[::-1]


def _twice(events: Events) -> Events:
    return [event for event in events for _ in range(2)]


def _jumping(events: Events) -> Events:
    """The blocks' indexes are far apart and negative."""
    return changed("index", -7)(changed("output_index", 10**30)(events))


# -- cases ---------------------------------------------------------------------------------------


def rich(edit: Edit | None = None, **more: Any) -> Reply:
    """An answer with thinking, text and a tool call, in few events."""
    blocks = (
        Thinking("let me think"),
        Text("hello there"),
        ToolCall("read_file", {"path": "a.txt"}, id="call_1"),
    )
    options: dict[str, Any] = {"chars_per_delta": 6, **more}
    return Reply(blocks=blocks, edit=edit, **options)


def _calling(**call: Any) -> Reply:
    arguments: dict[str, Any] = {"name": "read_file", **call}
    return Reply(text="Working.", tool_calls=[ToolCall(**arguments)])


_WRONG: dict[str, Value] = {
    "missing": MISSING,
    "null": None,
    "number": 7,
    "float": 1.5,
    "bool": True,
    "list": [1, "x"],
    "object": {"deep": {"er": None}},
    "empty": "",
    "control characters": "a\x1b]0;t\x07\r\n\x00\x9b",
    "surrogate": "a\ud800b\udc80",
    "300 characters": "x" * 300,
    "other script": "größe\u202e日本",
}
_COUNTS: dict[str, Value] = {
    "string": "12",
    "word": "many",
    "NaN": float("nan"),
    "infinity": float("inf"),
    "negative": -5,
    "float": 3.5,
    "bool": True,
    "huge": 10**400,
    "beyond 64 bits": 2**70,
    "object": {"a": 1},
    "list": [1],
    "null": None,
    "missing": MISSING,
}
_INPUTS = {
    "nested 90 deep": nested(90),
    "nested 970 deep": nested(970),
    "nested 5,000 deep": nested(5_000),
    "nested 100,000 deep": nested(100_000),
    "nested objects": '{"a":' * 3000 + "1" + "}" * 3000,
    "not closed": '{"path": "a',
    "nothing but brackets": "[" * 50_000,
    "list": "[1, 2]",
    "string": '"path"',
    "null": "null",
    "NaN": '{"path": NaN}',
    "infinity": '{"path": 1e999, "other": -1e999}',
    "5,000 digits": '{"path": ' + "9" * 5000 + "}",
    "keys twice": '{"path": "a", "path": "b"}',
    "surrogates": '{"path": "a\\ud800", "\\udc80": 1}',
    "NUL": '{"path": "a\\u0000b"}',
    "prototype": '{"__class__": 1, "__proto__": {"x": 1}, "path": "a"}',
}
_EVENTS: dict[str, Value] = {
    "null": b"null",
    "list": b"[]",
    "string": b'"x"',
    "number": b"1",
    "NaN": b"NaN",
    "empty object": b"{}",
    "not UTF-8": b'{"type": "\xff\xfe"}',
    "nested 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "nested in a key": b'{"type":' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
    "5,000 digits": b'{"type": ' + b"9" * 5000 + b"}",
}


def _cases() -> Iterator[tuple[str, Reply]]:
    for name, text in _INPUTS.items():
        yield f"input: {name}", _calling(raw_input=text, id="call_1")
    for name, value in _WRONG.items():
        yield f"tool name: {name}", rich(changed("name", value))
        yield f"call id: {name}", rich(changed(("id", "call_id"), value))
        yield f"stop reason: {name}", rich(changed(("stop_reason", "finish_reason"), value))
        yield f"model: {name}", rich(changed("model", value))
        yield f"type: {name}", rich(changed("type", value))
        yield f"index: {name}", rich(changed(("index", "output_index"), value))
        deltas = ("text", "thinking", "delta", "content", "partial_json", "arguments")
        yield f"delta: {name}", rich(changed(deltas, value))
        signed = ("signature", "encrypted_content", "summary")
        yield f"signature: {name}", rich(changed(signed, value))
        yield f"status: {name}", rich(changed("status", value))
        outer = ("content_block", "item", "message", "choices", "response", "function")
        yield f"container: {name}", rich(changed(outer, value))
    for name, value in _COUNTS.items():
        yield f"usage: {name}", rich(with_usage(value))
        yield f"usage as a whole: {name}", rich(changed("usage", value))
    for name, value in _EVENTS.items():
        yield f"event: {name}", rich(every_event(lambda _, value=value: value))
    yield "events in reverse order", rich(_in_reverse)
    yield "each event twice", rich(_twice)
    yield "indexes jump", rich(_jumping)
    yield "only the last event", rich(lambda events: events[-1:])
    yield "only the first event", rich(lambda events: events[:1])
    yield "no events", rich(lambda events: [])
    same = [ToolCall("read_file", {"path": f"{n}.txt"}, id="call_1") for n in range(3)]
    yield "three calls with one id", Reply(tool_calls=same)
    many = [ToolCall("absent", {"n": n}, id=f"call_{n}") for n in range(150)]
    yield "150 calls", Reply(tool_calls=many)
    yield "a delta of 10 MB", Reply("x" * 10_000_000, chars_per_delta=10_000_000)
    hostile_text = "a\ud800b \x1b[31mred\x1b]52;c;AAAA\x07 \x9b2J \u202eevil\u2066 \x00 \r done"
    yield "text with control characters", Reply(hostile_text, thinking="t\udc80\x1b[2J")
    yield "stop reason: unknown", Reply("x", stop_reason="solar_flare")
    yield "blank text", Reply(" \n ")


CASES: dict[str, Reply] = dict(_cases())
"""Streams whose HTTP is correct, by name."""


# -- below the events ----------------------------------------------------------------------------

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


def _repeated(part: bytes, times: int | None = None) -> Iterator[bytes]:
    return itertools.repeat(part) if times is None else itertools.repeat(part, times)


def _raw(*parts: bytes | Iterable[bytes]) -> Raw:
    """An answer of these bytes; an iterable is used once for each time it is played."""

    def play() -> Iterator[bytes]:
        for part in parts:
            if isinstance(part, bytes):
                yield part
            else:
                yield from copy.copy(part)

    return Raw(play)


_MEGABYTE = b"x" * 1_000_000


def _gzip_bomb() -> Iterator[bytes]:
    yield _HEAD + b"content-encoding: gzip\r\n\r\n"
    # Compressed when it is played: it takes a second.
    yield gzip.compress(b"data: " + b"0" * 300_000_000, 1)


TRANSPORT: dict[str, Raw] = {
    "endless header": _raw(b"HTTP/1.1 200 OK\r\nx: ", _repeated(_MEGABYTE)),
    "endless headers": _raw(b"HTTP/1.1 200 OK\r\n", _repeated(b"x: y\r\n" * 10_000)),
    "endless interim answers": _raw(_repeated(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000)),
    "no HTTP": _raw(b"220 mail.example ESMTP\r\n"),
    "nothing": _raw(b""),
    "status of letters": _raw(b"HTTP/1.1 OK 200\r\n\r\n"),
    "status 999": _raw(b"HTTP/1.1 999 Huh\r\ncontent-length: 2\r\n\r\n{}"),
    "status 101": _raw(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"),
    "status 204": _raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "redirect": _raw(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\x9b2J\r\n\r\n"),
    "redirect without a target": _raw(b"HTTP/1.1 301 Moved\r\ncontent-length: 0\r\n\r\n"),
    "chunk size of letters": _raw(_HEAD, b"transfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n"),
    "chunk of 2**60 bytes": _raw(
        _HEAD, b"transfer-encoding: chunked\r\n\r\nfffffffffffffff\r\ndata: x"
    ),
    "endless chunk extension": _raw(
        _HEAD, b"transfer-encoding: chunked\r\n\r\n1;", _repeated(_MEGABYTE)
    ),
    "endless trailer": _raw(
        _HEAD, b"transfer-encoding: chunked\r\n\r\n0\r\n", _repeated(b"x: y\r\n" * 10_000)
    ),
    "negative length": _raw(_HEAD, b"content-length: -5\r\n\r\n"),
    "two lengths": _raw(_HEAD, b"content-length: 5\r\ncontent-length: 9\r\n\r\ndata: x\n\n"),
    "line of 100 MB": _raw(_HEAD, b"\r\ndata: ", _repeated(_MEGABYTE, 100)),
    "endless line": _raw(_HEAD, b"\r\ndata: ", _repeated(_MEGABYTE)),
    "endless comment": _raw(_HEAD, b"\r\n: ", _repeated(_MEGABYTE)),
    "gzip bomb": Raw(_gzip_bomb),
    "not gzip": _raw(_HEAD, b"content-encoding: gzip\r\n\r\ndata: x\n\n"),
    "unknown encoding": _raw(_HEAD, b"content-encoding: zstd, x\r\n\r\n\xff\xfe"),
    "not UTF-8": _raw(_HEAD, b"\r\n", b"data: \xff\xfe\x80\n\n" * 100),
    "NUL bytes": _raw(_HEAD, b"\r\n", b"\x00" * 10_000),
    "a page": _raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<html>Log in</html>"),
    "an object": _raw(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"a": 1}'),
    "endless error": _raw(b"HTTP/1.1 400 Bad Request\r\n\r\n", _repeated(_MEGABYTE)),
    "nested error": _raw(b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"error":' * 20_000),
    "error nested 5,000 deep": _raw(
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b'{"error":{"message":' + b"[" * 900 + b"]" * 900,
        b"}}",
    ),
    "error with a surrogate": _raw(
        b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"error":{"message":"\\ud800\\u001b[2J"}}'
    ),
    "error of wrong types": _raw(
        b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"error":{"message":{"a":[1]},"type":7,"code":[]}}'
    ),
    "retry after NaN": _raw(
        b"HTTP/1.1 429 Slow\r\nretry-after: nan\r\nretry-after-ms: inf\r\ncontent-length: 0\r\n\r\n"
    ),
    "retry after a date out of range": _raw(
        b"HTTP/1.1 429 Slow\r\nretry-after: Mon, 99 Foo 99999 99:99:99 GMT\r\n"
        b"content-length: 0\r\n\r\n"
    ),
    "retry after a date with a huge offset": _raw(
        b"HTTP/1.1 429 Slow\r\nretry-after: 1 Jan 2026 1:1:1 +99999999999999999999\r\n"
        b"content-length: 0\r\n\r\n"
    ),
}
"""Answers whose HTTP is broken, hostile or not what was asked for, by name."""


# -- from a seed ---------------------------------------------------------------------------------

_ANYTHING: list[Value] = [*_WRONG.values(), *_COUNTS.values()]


def random_reply(seed: int) -> Reply:
    """A valid stream with one to four changes chosen by `seed`."""
    chance = random.Random(seed)
    count = chance.randint(1, 4)
    changes = [chance.randrange(2**32) for _ in range(count)]

    def edit(events: Events) -> Events:
        for number in changes:
            events = _change_at_random(events, random.Random(number))
        return events

    return rich(edit)


def _change_at_random(events: Events, chance: random.Random) -> Events:
    events = list(events)
    if not events:
        return events
    at = chance.randrange(len(events))
    kind = chance.choices(["value", "drop", "repeat", "swap", "event"], [10, 1, 1, 1, 1])[0]
    if kind == "drop":
        del events[at]
    elif kind == "repeat":
        events.insert(chance.randrange(len(events) + 1), events[at])
    elif kind == "swap":
        other = chance.randrange(len(events))
        events[at], events[other] = events[other], events[at]
    else:
        value = chance.choice(list(_EVENTS.values()))
        change = (lambda _: value) if kind == "event" else (lambda data: _with_value(data, chance))
        events[at] = every_event(change)([events[at]])[0]
    return events


def _with_value(data: Any, chance: random.Random) -> Any:
    places = list(_places(data)) if isinstance(data, dict | list) else []
    if places:
        holder, key = chance.choice(places)
        value = chance.choice(_ANYTHING)
        if value is MISSING and isinstance(holder, list):
            value = None
        _put(holder, key, value)
    return data
