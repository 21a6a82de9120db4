"""The driver's side of a worker on a node."""

import asyncio
import errno
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import AppError, ConfigError, SessionError
from amplifier_batch.engines.package import Package
from amplifier_batch.engines.pool import RowTask
from amplifier_batch.engines.services import NodeServices, require_portable
from amplifier_batch.execution.node import Node, NodeRow
from amplifier_batch.record.folder import Sealer
from amplifier_batch.workdirs import Workdir
from amplifier_support.files import open_regular
from tests.support.waiting import eventually

PACKAGE = Package({}, "sha256:0", {}, {})


async def test_a_node_changes_only_the_folders_of_its_row(tmp_path: Path) -> None:
    (tmp_path / "sessions" / "other").mkdir(parents=True)
    (tmp_path / "batch.json").write_text("{}")
    replies: asyncio.Queue[Any] = asyncio.Queue()

    async def send(line: bytes) -> None:
        replies.put_nowait(json.loads(line))

    class Unreadable(Sealer):
        async def seal(self, key: str | None = None, folders: Iterable[str] = ()) -> str | None:
            return "cannot read a" if "work/s1" in folders else None

    services = NodeServices(tmp_path, PACKAGE, send, replies.put_nowait, Unreadable())
    workdir = Workdir("fresh", str(tmp_path), str(tmp_path / "work" / "s1"))
    row = {"id": "r1", "session": "s1", "workdir": workdir}
    sent = json.loads(await services.translate(json.dumps({"row": row}).encode(), {}))["row"]
    assert sent["workdir"] == ["fresh", "", "work/s1"]
    for path, is_stored in [
        ("work/s1/a", True),
        ("sessions/s1/b", True),
        ("sessions/s1-agent/c", True),
        ("sessions/s1-agent/c", True),
        ("sessions/other/d", False),
        ("work/other/e", False),
        ("batch.json", False),
    ]:
        change = {"path": path, "mode": 0o600, "at": 0, "data": "eA=="}
        assert services.takes({"id": "r1", "ask": 1, "changes": [change]})
        reply = await replies.get()
        # A file that cannot be sealed is a matter of its row.
        problem = "cannot read a" if path == "work/s1/a" else None
        assert (reply == {"reply": 1, "problem": problem}) == is_stored
        assert isinstance(reply, AppError) != is_stored
        assert (tmp_path / path).is_file() == (is_stored or path == "batch.json")
    assert (tmp_path / "batch.json").read_text() == "{}"
    assert not services.takes({"id": "r1", "cost": 0.1})
    # Nothing is kept of a row that has ended.
    assert not services.takes({"id": "r1", "result": {}})
    change = {"path": "work/s1/late", "mode": 0o600, "at": 0, "data": "eA=="}
    assert services.takes({"id": "r1", "ask": 2, "changes": [change]})
    assert isinstance(await replies.get(), AppError)
    assert not (tmp_path / "work/s1/late").exists()
    # A message that cannot be understood ends the batch instead of leaving the row without a reply.
    assert services.takes({"id": "r1", "ask": 3, "changes": [{}]})
    async with asyncio.timeout(10):
        assert "cannot answer a message of a Ray node: KeyError" in (await replies.get()).message


async def test_what_is_being_stored_is_stored_when_the_services_end(tmp_path: Path) -> None:
    async def send(line: bytes) -> None:
        pass  # The worker has died.

    services = NodeServices(tmp_path, PACKAGE, send, lambda error: pytest.fail(error.message))
    workdir = Workdir("fresh", str(tmp_path), str(tmp_path / "work" / "s1"))
    row = {"id": "r1", "session": "s1", "workdir": workdir}
    await services.translate(json.dumps({"row": row}).encode(), {})
    names = [f"work/s1/{number}" for number in range(300)]
    changes = [{"path": name, "mode": 0o600, "at": 0, "data": "eA=="} for name in names]
    assert services.takes({"id": "r1", "ask": 1, "changes": changes})
    await eventually(lambda: (tmp_path / names[0]).exists())
    await services.close()
    assert (tmp_path / names[-1]).exists()


@pytest.mark.parametrize(
    ("session", "source", "problem"),
    [
        ("s1", "missing", "cannot create the folder of the row"),
        ("s\0", "", "cannot send the files of the row: ValueError"),
    ],
)
async def test_a_row_whose_files_cannot_be_sent_is_sent_with_the_problem(
    tmp_path: Path, session: str, source: str, problem: str
) -> None:
    async def send(line: bytes) -> None:
        pytest.fail("nothing was asked")

    services = NodeServices(tmp_path, PACKAGE, send, lambda error: pytest.fail(error.message))
    target = str(tmp_path / "work" / session)
    workdir = Workdir("copy" if source else "fresh", str(tmp_path / source), target)
    row = {"id": "r1", "session": session, "workdir": workdir}
    sent = json.loads(await services.translate(json.dumps({"row": row}).encode(), {}))["row"]
    assert sent["problem"][0].startswith(problem)


async def test_a_node_gets_large_files_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies: asyncio.Queue[Any] = asyncio.Queue()

    async def send(line: bytes) -> None:
        replies.put_nowait(json.loads(line))

    monkeypatch.setattr("amplifier_batch.record.replica._PIECE", 1_000)
    monkeypatch.setattr("amplifier_batch.record.replica._MAX_PART", 1_000)
    source, work, there = (tmp_path / name for name in ("source", "work/s1", "there"))
    source.mkdir()
    (there / "work/s1").mkdir(parents=True)
    (there / "work/s1/of-an-earlier-worker").touch()
    names = ("a", "b", "c")
    for name in names:
        (source / name).write_text(name * 3_000)
    services = NodeServices(tmp_path, PACKAGE, send, lambda error: pytest.fail(error.message))
    sizes = list[int]()

    async def ask(**fields: Any) -> Any:
        assert services.takes({"ask": 1, **fields})
        reply = await replies.get()
        if problem := reply.get("problem"):
            raise SessionError(problem)
        sizes.append(sum(len(change.get("data", "")) for change in reply["files"]))
        return reply

    async def open_row() -> NodeRow:
        workdir = Workdir("copy", str(source), str(work))
        task = RowTask("r1", "go", {}, "s1", False, workdir)
        line = json.dumps({"row": task._asdict()}).encode()
        sent = json.loads(await services.translate(line, {}))["row"]
        task = task._replace(workdir=Workdir(*sent["workdir"]))
        node = Node.__new__(Node)
        vars(node)["_root"] = there
        return await node.open_row(task, sent["files"], sent["more"], ask)

    row = await open_row()
    assert row.task.workdir.target == str(there / "work/s1")
    assert [(there / "work/s1" / name).read_text() for name in names] == [n * 3_000 for n in names]
    assert not (there / "work/s1/of-an-earlier-worker").exists()
    assert len(sizes) > 3
    assert max(sizes) < 3_000
    opened = list[Path]()

    def refuse_second(path: Path, flags: int) -> int:
        opened.append(path)
        if len(opened) == 2:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_regular(path, flags)

    # What cannot be read later is a matter of the row.
    monkeypatch.setattr("amplifier_batch.record.replica.open_regular", refuse_second)
    with pytest.raises(SessionError, match=r"cannot read .*: Permission denied"):
        await open_row()


async def test_the_requests_of_all_nodes_wait_for_the_pace_of_their_key(tmp_path: Path) -> None:
    replies: asyncio.Queue[Any] = asyncio.Queue()

    async def send(line: bytes) -> None:
        replies.put_nowait(json.loads(line))

    node, other = (NodeServices(tmp_path, PACKAGE, send, replies.put_nowait) for _ in range(2))
    assert node.takes({"id": "r1", "ask": 7, "account": "https://host key model", "size": 40})
    assert await replies.get() == {"reply": 7, "turn": 7}
    refusal = {"status": 429, "headers": {"retry-after": "60"}}
    assert node.takes({"ask": 8, "turn": 7, **refusal})
    assert await replies.get() == {"reply": 8}
    assert other.takes({"id": "r2", "ask": 1, "account": "https://host key model", "size": 40})
    assert other.takes({"id": "r2", "ask": 2, "account": "https://host key another", "size": 40})
    assert await replies.get() == {"reply": 2, "turn": 2}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await replies.get()
    await other.close()


async def test_answers_are_kept_in_the_cache_of_the_driver(tmp_path: Path) -> None:
    replies: asyncio.Queue[Any] = asyncio.Queue()

    async def send(line: bytes) -> None:
        replies.put_nowait(json.loads(line))

    services = NodeServices(tmp_path, PACKAGE, send, replies.put_nowait)
    name = f"{'0a' * 32}.json"
    answers: list[Any] = []
    for text in (None, "answer", "another one", None):
        assert services.takes({"id": "r1", "ask": 1, "cached": name, "text": text})
        answers.append((await replies.get())["text"])
    assert answers == [None, None, None, "answer"]
    assert services.takes({"id": "r1", "ask": 1, "cached": "../../secret", "text": None})
    assert "not the name of an answer" in (await replies.get()).message


def test_what_needs_a_shared_disk_is_refused() -> None:
    problem = "--workdir same:{{path}} needs a folder"
    with pytest.raises(ConfigError, match=re.escape(problem)):
        require_portable({"workdir": "same:{{path}}"})
    require_portable({"workdir": "copy:{{path}}"})
