"""The driver's side of a worker on a node: the files of its rows, the pace of its requests, and its keys.

The process that runs the batch is the only writer of the record. A worker asks with

    {"id", "ask", "more"}                     for the next part of the row's files
    {"id", "ask", "changes"}                  to store what changed in the row's folders, in several messages if it is much
    {"id", "ask", "account", "size"}          to send a request
    {"ask", "turn", "status", "headers"}      to note the answer to it; without a status, that there was none
    {"id", "ask", "cached", "text"}           for the content of a file of the cache of answers, or to keep it

and goes on when it gets `{"reply"}`, with the `turn` of the request, the `text` of the answer, `files` and whether there
are `more`, or the `problem` with the row's files.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from amplifier_app.base import paths
from amplifier_app.base.errors import AppError, ConfigError, SessionError
from amplifier_batch.answer_cache import exchange_file
from amplifier_batch.engines.package import Package
from amplifier_batch.record.folder import WORK, Sealer
from amplifier_batch.record.replica import (
    SESSIONS,
    Change,
    Replica,
    apply_changes,
    find_folders,
    split_changes,
)
from amplifier_batch.workdirs import Workdir
from amplifier_modules._shared.pacing import pace_in
from amplifier_support.session_capabilities import Turn

_Parts: TypeAlias = Iterator[tuple[list[Change], bool]]
"""The files of a row in parts, each with True if there are more."""


class NodeServices:
    """Serves one worker.

    Args:
        folder: The folder of the batch.
        package: What the node has got.
        send: Sends a message to the worker.
        fail: Ends the batch with an error.
        sealer: Seals the files of the rows.
    """

    def __init__(
        self,
        folder: Path,
        package: Package,
        send: Callable[[bytes], Awaitable[None]],
        fail: Callable[[AppError], None],
        sealer: Sealer | None = None,
    ) -> None:
        self._folder = folder
        self._package = package
        self._sealer = sealer or Sealer()
        self._send = send
        self._fail = fail
        self._enter = pace_in(str(paths.state_dir() / "pace"))
        self._turns: dict[int, Turn] = {}
        self._sessions: dict[str, set[str]] = {}
        self._files: dict[str, _Parts] = {}
        self._tasks: dict[asyncio.Task[None], bool] = {}

    async def translate(self, line: bytes, place: Mapping[str, str]) -> bytes:
        """Return a message for the worker as the node needs it.

        Args:
            line: The message.
            place: The folders `root` and `package` of the node.
        """
        message = json.loads(line)
        if "working_dir" in message:
            message["node"] = {**self._package._asdict(), "keys": None, **place}
        elif "row" in message:
            message["row"] = await asyncio.to_thread(self._with_files, message["row"])
        return json.dumps(message).encode() + b"\n"

    def _with_files(self, row: dict[str, Any]) -> dict[str, Any]:
        session, workdir = row["session"], Workdir(*row["workdir"])
        has_own = Path(workdir.target) == self._folder / WORK / session
        try:
            workdir.prepare()
            folders = find_folders(self._folder, session, has_own=has_own)
            parts = split_changes(Replica(self._folder, folders).changes())
            files, has_more = next(parts, ([], False))
        except AppError as error:  # of this row alone
            return {**row, "problem": [error.message, error.hint]}
        # Its files may be anything.
        except Exception as error:
            problem = f"cannot send the files of the row: {type(error).__name__}: {error}"
            return {**row, "problem": [problem, None]}
        self._sessions[row["id"]] = {session, *(Path(folder).name for folder in folders)}
        self._files[row["id"]] = parts
        target = f"{WORK}/{session}" if has_own else ""
        return {**row, "workdir": [workdir.kind, "", target], "files": files, "more": has_more}

    def takes(self, message: Mapping[str, Any]) -> bool:
        """Answer a question that is for the driver's disk or pace; False for any other message."""
        if message.keys() & {"result", "stopped"}:
            self._sessions.pop(message["id"], None)
            self._files.pop(message["id"], None)
        if not message.keys() & {"more", "changes", "account", "turn", "cached"}:
            return False
        task = asyncio.create_task(self._answer(message))
        self._tasks[task] = "account" in message
        task.add_done_callback(self._tasks.pop)
        return True

    async def close(self) -> None:
        """Let no more requests be sent, and wait for what is being stored: another worker may get the files next."""
        for task, waits_for_pace in self._tasks.items():
            if waits_for_pace:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, message: Mapping[str, Any]) -> None:
        reply: dict[str, Any] = {"reply": message["ask"]}
        try:
            if "changes" in message:
                self._check(message["id"], message["changes"])
                await asyncio.to_thread(apply_changes, self._folder, message["changes"])
                paths_of_row = (change["path"].split("/") for change in message["changes"])
                folders = {"/".join(path[:2]) for path in paths_of_row}
                reply["problem"] = await self._sealer.seal(message["id"], folders)
            elif "more" in message:
                try:
                    part = await asyncio.to_thread(next, self._files[message["id"]], ([], False))
                    reply |= zip(("files", "more"), part, strict=True)
                except SessionError as error:  # of this row alone
                    reply["problem"] = error.message
            elif "account" in message:
                reply["turn"] = message["ask"]
                self._turns[message["ask"]] = await self._enter(message["account"], message["size"])
            elif "cached" in message:
                name, text = message["cached"], message["text"]
                reply["text"] = await asyncio.to_thread(exchange_file, name, text)
            else:
                await self._note_answer(message)
        except AppError as error:
            self._fail(error)
            return
        # Nothing that a node sends may leave its row waiting for a reply without a message.
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            self._fail(SessionError(f"cannot answer a message of a Ray node: {problem}"))
            return
        await self._send(json.dumps(reply).encode() + b"\n")

    def _check(self, row: str, changes: list[Change]) -> None:
        """Raise SessionError if a node would change what does not belong to the row."""
        known = self._sessions.get(row, set())
        for change in changes:
            kind, _, rest = change["path"].partition("/")
            name = rest.partition("/")[0]
            if kind == SESSIONS and not (self._folder / SESSIONS / name).exists():
                known.add(name)  # a new sub-agent
            if kind not in (SESSIONS, WORK) or name not in known:
                raise SessionError(
                    f"a Ray node sent {change['path']!r}, which is not of row {row!r}"
                )

    async def _note_answer(self, message: Mapping[str, Any]) -> None:
        turn = self._turns.pop(message["turn"], None)
        if turn is not None and message["status"] is None:
            await turn.record_failure()
        elif turn is not None:
            await turn.record_answer(message["status"], message["headers"])


def require_portable(facts: Mapping[str, Any]) -> None:
    """Raise ConfigError for a batch that a node without its disk cannot run."""
    workdir = facts["workdir"]
    kind, _, path = workdir.partition(":")
    if kind == "same" and "{{" in path:
        raise ConfigError(
            f"--workdir {workdir} needs a folder that all Ray nodes share",
            hint=f"Use a copy for each row: --workdir copy:{path}",
        )
