"""The side of a worker on a node that does not have the disk of the batch.

The driver sends the files of a row with the row, large ones in parts that it is asked for, and gets what changed after each record of its sessions, before the
session goes on: what the driver does not have has not happened. It also lets requests be sent, so that all nodes share the pace of a key.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

from amplifier_app.base import keys
from amplifier_app.base.file_writing import make_private_folder
from amplifier_app.base.locks import hold_lock
from amplifier_app.base.redact import treat_as_secret
from amplifier_batch.engines.pool import RowTask
from amplifier_batch.record.replica import (
    SESSIONS,
    Change,
    Replica,
    apply_changes,
    find_folders,
    split_changes,
)
from amplifier_batch.workdirs import Workdir
from amplifier_support.files import open_private, try_lock
from amplifier_support.session_capabilities import PACE, REPLICATE, SECRET_VARIABLES, Turn

Ask: TypeAlias = Callable[..., Awaitable[Mapping[str, Any]]]
"""Sends the fields of a message to the driver and waits for the reply."""


def take_keys(values: Mapping[str, str | None]) -> None:
    """Set the variables with the plan's secrets; a variable without a value gets the node's own, if it has one."""
    stored = keys.environment()
    found = {name: value or stored.get(name) for name, value in values.items()}
    os.environ.update({name: value for name, value in found.items() if value})
    treat_as_secret(found)


class Node:
    """The rows of a worker on a node, and their files. Prepares this process and its node for them.

    Args:
        setup: The setup of a worker, whose `node` has the folders `root` and `package` of the node, and the fields of
            `amplifier_batch.engines.package.Package`.
        names: The names of the variables with secrets.

    Attributes:
        setup: The setup with the paths of the node.
        folder: The folder that all rows run in which have none of their own.
        secrets: The names of the variables with secrets.
    """

    def __init__(self, setup: Mapping[str, Any], names: Iterable[str]) -> None:
        node = setup["node"]
        package = Path(node["package"])
        self._root = Path(node["root"])
        self.secrets = list(names)
        # Another package is another batch, or has another folder.
        copies = self._root / package.name
        self.folder = str(copies / "folder")
        with self._changing():
            for name in ("home", "folder"):
                _copy(package / "batch" / name, copies / name)
            self._lock = open_private(self._root / "lock", os.O_RDWR | os.O_CREAT)
            try_lock(self._lock, shared=True)
        os.environ.update({name: str(package / path) for name, path in node["modules"].items()})
        os.environ["AMPLIFIER_HOME"] = str(copies / "home")
        os.environ["AMPLIFIER_SESSIONS"] = str(self._root / SESSIONS)
        request = {
            name: str(package / value) if value and name in ("plan", "schema") else value
            for name, value in node["request"].items()
        }
        self.setup: Mapping[str, Any] = {**setup, "request": request, "working_dir": self.folder}

    def _changing(self) -> AbstractContextManager[None]:
        """Hold the lock of what all workers of the node share."""
        return hold_lock(self._root.parent / "lock", None)

    async def open_row(
        self, task: RowTask, files: Sequence[Change], has_more: bool, ask: Ask
    ) -> NodeRow:
        """Take over a row with its files, whatever an earlier worker has left of it.

        Args:
            task: The row; the target of its working directory is relative to `root`, or empty.
            files: Its files, or the first part of them.
            has_more: Whether to ask for more.
            ask: Asks the driver.

        Raises:
            SessionError: They cannot be read or written.
        """
        own = task.workdir.target

        def find() -> list[str]:
            return find_folders(self._root, task.session, has_own=bool(own))

        def replace() -> None:
            for folder in find():
                shutil.rmtree(self._root / folder, ignore_errors=True)
            apply_changes(self._root, files)

        await asyncio.to_thread(replace)
        while has_more:
            part = await ask(id=task.id, more=True)
            await asyncio.to_thread(apply_changes, self._root, part["files"])
            has_more = part["more"]
        folders = [*find(), f"{SESSIONS}/{task.session}"]
        replica = await asyncio.to_thread(Replica, self._root, folders, known=True)
        target = str(self._root / own) if own else self.folder
        task = task._replace(workdir=Workdir("same", target, target))
        return NodeRow(self, task, replica, ask)

    def close(self) -> None:
        """Remove everything if no other worker of the node is left."""
        with self._changing():
            if try_lock(self._lock):
                shutil.rmtree(self._root, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    """Copy a folder of the package, once for all workers of the node; a missing one is empty."""
    if target.is_dir():
        return
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    make_private_folder(unfinished)
    if source.is_dir():
        shutil.copytree(source, unfinished, dirs_exist_ok=True)
    unfinished.rename(target)


class NodeRow:
    """The files of a row on a node.

    Attributes:
        task: The row, with its working directory on the node.
    """

    def __init__(self, node: Node, task: RowTask, replica: Replica, ask: Ask) -> None:
        self.task = task
        self._node = node
        self._replica = replica
        self._ask = ask
        self._sending = asyncio.Lock()

    def register(self, coordinator: Any) -> None:
        """Register what the sessions of the row need from the driver."""
        PACE.register(coordinator, self._enter)
        REPLICATE.register(coordinator, self._replicate)
        names = SECRET_VARIABLES.of(coordinator) or ()
        SECRET_VARIABLES.register(coordinator, [*names, *self._node.secrets])

    async def send_changes(self) -> None:
        """Send what has changed, and return when the driver has it on disk.

        Raises:
            SessionError: A file cannot be read.
        """
        # A row that is stopped meanwhile sends its last changes after these.
        await asyncio.shield(self._send_changes())

    async def _send_changes(self) -> None:
        async with self._sending:
            parts = split_changes(await asyncio.to_thread(self._replica.changes))
            while part := await asyncio.to_thread(next, parts, None):
                await self._ask(id=self.task.id, changes=part[0])

    async def exchange_answer(self, name: str, text: str | None) -> str | None:
        """Get an answer from the driver's cache, or keep it there; see `answer_cache.Exchange`."""
        return (await self._ask(id=self.task.id, cached=name, text=text))["text"]

    def remove(self) -> None:
        """Remove the files."""
        os.chdir(self._node.folder)  # The row's own is among them.
        for folder in self._replica.folders:
            shutil.rmtree(self._replica.root / folder, ignore_errors=True)

    async def _replicate(self, folder: Path) -> None:
        self._replica.folders[f"{SESSIONS}/{folder.name}"] = None
        await self.send_changes()

    async def _enter(self, account: str, size: int) -> Turn:
        reply = await self._ask(id=self.task.id, account=account, size=size)
        return _DriverTurn(self._ask, reply["turn"])


class _DriverTurn(Turn):
    """Reports the answer of a request to the driver."""

    def __init__(self, ask: Ask, turn: int) -> None:
        self._ask = ask
        self._turn = turn

    async def record_answer(self, status: int, headers: Mapping[str, str]) -> None:
        named = {name.lower(): value for name, value in headers.items()}
        await self._ask(turn=self._turn, status=status, headers=named)

    async def record_failure(self) -> None:
        await self._ask(turn=self._turn, status=None, headers={})
