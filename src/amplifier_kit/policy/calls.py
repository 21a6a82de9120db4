"""Tool calls given on the command line, and those of saved sessions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, cast

import typer

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.redact import redactor
from amplifier_app.base.sanitize import visible
from amplifier_app.base.stdio import to_stderr
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.tool_calls import CallNumbers, calls_in, results_in

ModeOption = Annotated[
    Literal["ask", "edits", "read-only", "auto"] | None,
    typer.Option("--mode", help="The mode to decide in. [default: the plan's]", show_default=False),
]

_KEYS = {"bash": "command", "web_fetch": "url", "web_search": "query", "grep": "pattern"}
_LONGEST = 200
_FILE_TOOLS = ("read_file", "write_file", "edit_file", "list_directory")


class SavedCall(NamedTuple):
    """A tool call of a saved session.

    Attributes:
        session_id: The session.
        number: The number of the call in it.
        tool: The tool.
        input: Its input; empty if the model sent none that is valid.
        project: The directory of the session.
        was_denied: Whether it did not run because it was denied.
    """

    session_id: str
    number: int
    tool: str
    input: Mapping[str, Any]
    project: str
    was_denied: bool


def parse_call(call: str, given: str | None) -> tuple[str, dict[str, Any]]:
    """The tool and input of a call: `bash: ls -l`, or a tool and its input as JSON.

    Raises:
        UsageError: It is not a call.
    """
    if given is not None:
        try:
            values: Any = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the input is not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise UsageError(
                "the input is not a JSON object", hint='For example: \'{"path": "src/a.py"}\''
            )
        return call, cast("dict[str, Any]", values)
    tool, colon, text = call.partition(":")
    tool, text = tool.strip(), text.strip()
    key = "path" if tool in _FILE_TOOLS else _KEYS.get(tool)
    if not colon or not tool or key is None:
        raise UsageError(
            f"cannot read the call '{visible(call, 200)}'",
            hint="Give 'bash: COMMAND', 'edit_file: PATH', or a tool and its input as JSON.",
        )
    return tool, {key: text}


def describe_call(tool: str, values: Mapping[str, Any]) -> str:
    """A call as one line, without secrets: `bash: ls -l`."""
    tool, values = redactor().value((tool, values))
    for key in (*_KEYS.values(), "file_path", "path"):
        if len(values) == 1 and isinstance(values.get(key), str):
            return visible(f"{tool}: {values[key]}", _LONGEST)
    if isinstance(values.get("command"), str):
        return visible(f"{tool}: {values['command']}", _LONGEST)
    path = next((values[key] for key in ("file_path", "path") if key in values), None)
    if isinstance(path, str):
        return visible(f"{tool}: {path}", _LONGEST)
    return visible(f"{tool} {json.dumps(dict(values), default=repr, ensure_ascii=False)}", _LONGEST)


def saved_calls(session_ids: Sequence[str]) -> Iterator[SavedCall]:
    """The tool calls of sessions, by id; of all sessions if none is given.

    Raises:
        SessionError: A session that was named is unknown or damaged.
    """
    store = SessionStore()
    for name in session_ids or [one.id for one in store.summaries()]:
        folder = store.find(name)
        try:
            calls = list(calls_of(folder.id, folder.metadata, folder.records()))
        except SessionError as error:
            if session_ids:
                raise
            to_stderr(f"amplifier: skipped session {name}: {error.message}")
            continue
        yield from calls


def calls_of(
    session_id: str, metadata: Mapping[str, Any], records: Iterable[Mapping[str, Any]]
) -> Iterator[SavedCall]:
    """The tool calls in the transcript of a session, whose records are read twice."""
    numbers = CallNumbers()
    project = str(metadata.get("project") or os.getcwd())
    denied = {
        call_id
        for record in records
        for call_id, result in results_in(record)
        if isinstance(result, str) and result.startswith("denied: ")
    }
    for record in records:
        for number, call in zip(numbers.add(record), calls_in(record), strict=False):
            values = cast("dict[str, Any]", call.input) if isinstance(call.input, dict) else {}
            yield SavedCall(session_id, number, call.name, values, project, call.id in denied)
