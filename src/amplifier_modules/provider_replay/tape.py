"""The file of a recording when it is read: the calls that were made, and which are still to come."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple, cast

from amplifier_modules.provider_replay.difference import difference
from amplifier_modules.provider_replay.recording import SCHEMA
from amplifier_modules.provider_replay.requests import (
    Comparing,
    Plain,
    folder_pattern,
    ids_in,
    same,
)
from amplifier_modules.provider_replay.rewriting import change_deltas
from amplifier_modules.provider_replay.rewriting import changed as rewritten

_ENDS = ("response", "error", "cut")
_STEPS = ("event", "chunk", *_ENDS)
_LONGEST_CALL = 7 * 24 * 3600.0

_open: dict[str, Tape] = {}


class Step(NamedTuple):
    """What came of a call, `at` seconds after it began: the line of the file."""

    kind: str
    at: float
    line: Plain


class RecordedCall:
    """One call of a recording.

    Attributes:
        number: Its number in the file.
        provider: Which provider was asked.
        request: What it was asked, whole.
        steps: What came of it.
        served: Whether it has been replayed.
    """

    def __init__(self, number: int, provider: str, request: Plain) -> None:
        self.number = number
        self.provider = provider
        self.request = request
        self.steps: list[Step] = []
        self.served = False


class Tape:
    """One recording; sessions of one process that name it share it.

    What names differently now (the folder, ids of sessions) is learned from requests that count as the
    same, and answers are given with the names of now.

    A request is answered by the first call of its provider that asked the same and has not been
    replayed yet, so that sessions that run beside each other may come in any order.

    Args:
        path: The file.
        folder: The working directory now.
        ignore: Texts that do not count, as regular expressions.

    Raises:
        ValueError: It cannot be read, or is no recording of this version.
    """

    def __init__(self, path: str, folder: str, ignore: Iterable[str] = ()) -> None:
        self.path = path
        self.providers: list[Plain] = []
        self.calls: list[RecordedCall] = []
        self._users = 0
        self._differed = False
        patterns = list(ignore)
        recorded_in = self._read()
        self._now = Comparing(folder, patterns)
        self._then = Comparing(recorded_in, patterns)
        self._comparable: dict[int, Plain] = {}
        self._renamed: dict[str, str] = {}
        self._moved = None
        if recorded_in != folder and len(recorded_in) > 1:
            self._moved = (folder_pattern(recorded_in), folder)

    @classmethod
    def shared(cls, path: str, folder: str, ignore: Iterable[str] = ()) -> Tape:
        """The recording at `path`, which child sessions are answered from as well."""
        key = os.path.realpath(path)
        if key not in _open:
            _open[key] = cls(path, folder, ignore)
        _open[key]._users += 1
        return _open[key]

    def release(self) -> list[RecordedCall]:
        """Give it back; the last one is told which calls nobody has asked for.

        After a request that differed nobody can be expected to ask for the rest.
        """
        self._users -= 1
        if self._users > 0:
            return []
        _open.pop(os.path.realpath(self.path), None)
        return [] if self._differed else [call for call in self.calls if not call.served]

    def find(self, provider: str, request: Plain) -> RecordedCall | list[str]:
        """The call that answers `request`, or what it differs in from the nearest one, by lines.

        `request` need not name its model, which then does not count.
        """
        asked = self._now.comparable(request)
        waiting = [c for c in self.calls if c.provider == provider and not c.served]
        for call in waiting:
            if same(_with_model_of(asked, self._recorded(call)), asked):
                call.served = True
                self._learn(call.request, request)
                return call
        self._differed = True
        if not waiting:
            made = sum(call.provider == provider for call in self.calls)
            return [f"it has {made} calls of {provider} and all of them have been asked for"]
        nearest = max(
            waiting, key=lambda call: (_shared(asked, self._recorded(call)), -call.number)
        )
        recorded = _with_model_of(asked, self._recorded(nearest))
        return [f"compared with call {nearest.number}:", *difference(recorded, asked)]

    def steps_of(self, call: RecordedCall) -> list[Step]:
        """What came of a call, with the names of now."""
        if not self._renamed and self._moved is None:
            return call.steps
        steps = deepcopy(call.steps)
        change_deltas((step.line.get("chunk") for step in steps), self._with_names_of_now)
        return [
            step._replace(line=rewritten(step.line, self._with_names_of_now))
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
        """Reads the file; returns the folder it was recorded in."""
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
                        raise TypeError("its name is no text")
                    self.providers.append(line)
                elif kind == "request":
                    request = _whole_request(line, calls, tools)
                    call = RecordedCall(line["call"], line["provider"], request)
                    calls[call.number] = call
                elif kind in _STEPS:
                    calls[line["call"]].steps.append(Step(kind, _seconds(line), line))
            except (KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{self.path}:{number} is no line of a recording") from error
        if folder is None:
            raise ValueError(f"{self.path} is no recording: it does not begin with a header")
        self.calls = list(calls.values())
        return folder


def _seconds(line: Plain) -> float:
    """When it was. Raises TypeError for what is no time that can be waited for."""
    at = float(line["at"])
    if not 0 <= at < _LONGEST_CALL:
        raise TypeError(f"{at} is no number of seconds")
    return at


def _lines(path: str) -> Iterator[tuple[int, Plain]]:
    try:
        data = _content(path)
    except OSError as error:
        raise ValueError(f"the recording {path} cannot be read: {error.strerror}") from error
    pieces = data.split(b"\n")
    for number, piece in enumerate(pieces, 1):
        if not piece.strip():
            continue
        try:
            line: Any = json.loads(piece)
        except (ValueError, RecursionError) as error:
            if number == len(pieces):
                return  # the program that recorded it was killed while it wrote this
            raise ValueError(f"{path}:{number} is no JSON") from error
        if not isinstance(line, dict):
            raise ValueError(f"{path}:{number} is no line of a recording")
        yield number, cast("Plain", line)


def _content(path: str) -> bytes:
    # Not blocking: a pipe in its place must not hold the session up, nor a device fill the memory.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file")
    with open(descriptor, "rb") as file:
        return file.read()


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
        raise TypeError("a message is no object")
    return request


def _with_model_of(asked: Plain, recorded: Plain) -> Plain:
    """`recorded`, without its model where `asked` names none."""
    if "model" in asked or "model" not in recorded:
        return recorded
    return {key: value for key, value in recorded.items() if key != "model"}


def _shared(asked: Plain, recorded: Plain) -> int:
    """How many messages two requests begin with alike."""
    count = 0
    for one, other in zip(asked["messages"], recorded["messages"], strict=False):
        if not same(other, one):
            break
        count += 1
    return count
