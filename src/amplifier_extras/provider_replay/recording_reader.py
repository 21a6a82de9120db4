"""Read a recording: its calls, and which are still to be replayed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple, cast

from amplifier_extras.provider_replay.difference import difference
from amplifier_extras.provider_replay.recording_writer import SCHEMA
from amplifier_extras.provider_replay.requests import (
    Comparing,
    Plain,
    folder_pattern,
    ids_in,
    same,
)
from amplifier_extras.provider_replay.rewriting import change_deltas
from amplifier_extras.provider_replay.rewriting import rewrite_texts as rewritten
from amplifier_support.readable_files import open_to_read

_ENDS = ("response", "error", "cut")
_STEPS = ("event", "chunk", *_ENDS)
_LONGEST_CALL = 7 * 24 * 3600.0

_open: dict[str, Tape] = {}


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
        self._users = 0
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

    @classmethod
    def shared(
        cls, path: str, folder: str, ignore: Iterable[str] = (), *, structure: bool = False
    ) -> Tape:
        """The recording at `path`, shared with child sessions."""
        key = os.path.realpath(path)
        if key not in _open:
            _open[key] = cls(path, folder, ignore, structure=structure)
        _open[key]._users += 1
        return _open[key]

    def release(self) -> list[RecordedCall]:
        """Release it; the last release returns the calls that were not requested.

        After a request that differs, the remaining calls are not expected.
        """
        self._users -= 1
        if self._users > 0:
            return []
        _open.pop(os.path.realpath(self.path), None)
        return [] if self._differed else [call for call in self.calls if not call.served]

    def find(self, provider: str, request: Plain) -> RecordedCall | list[str]:
        """The call that answers `request`, or the lines on how it differs from the nearest one.

        `request` need not name its model, which is then ignored.
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
            count = sum(call.provider == provider for call in self.calls)
            return [f"all {count} recorded calls of {provider} have already been replayed"]
        nearest = max(
            waiting, key=lambda call: (_shared(asked, self._recorded(call)), -call.number)
        )
        recorded = _with_model_of(asked, self._recorded(nearest))
        return [f"compared with call {nearest.number}:", *difference(recorded, asked)]

    def steps_of(self, call: RecordedCall) -> list[Step]:
        """The results of a call, with current names."""
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
    if not 0 <= at < _LONGEST_CALL:
        raise TypeError(f"{at} is not a number of seconds")
    return at


def _lines(path: str) -> Iterator[tuple[int, Plain]]:
    try:
        with open(open_to_read(path), "rb") as file:
            data = file.read()
    except OSError as error:
        raise ValueError(f"cannot read the recording {path}: {error.strerror}") from error
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


def _with_model_of(asked: Plain, recorded: Plain) -> Plain:
    """`recorded`, without its model if `asked` names none."""
    if "model" in asked or "model" not in recorded:
        return recorded
    return {key: value for key, value in recorded.items() if key != "model"}


def _shared(asked: Plain, recorded: Plain) -> int:
    """The number of equal messages at the start of two requests."""
    count = 0
    for one, other in zip(asked["messages"], recorded["messages"], strict=False):
        if not same(other, one):
            break
        count += 1
    return count
