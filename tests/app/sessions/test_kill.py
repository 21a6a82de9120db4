"""A killed writer loses nothing that was acknowledged, at whatever point it is killed."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.sessions.recording_context import INTERRUPTED
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.transcript import read_transcript
from tests.support.cli import run_python
from tests.support.thorough import Scale

KILLS_IN_A_SESSION = 10
RUN_SECONDS = 0.15
"""A kill comes at a random moment of this span: while the session is opened, repaired, written."""

FILES = {"transcript.jsonl", "metadata.json", "plan.yaml", "lock"}

# Imports once, then forks a writer for each line it reads. A writer runs turns with tool calls
# until it is killed, and says on the pipe of every record that it has been saved.
WRITERS = """
import os, random, sys
from pathlib import Path
import pydantic_core  # for reading records; before the fork, as it takes longer than a writer may live
from amplifier_app.sessions.recording_context import answers_to_interrupted
from amplifier_app.sessions.store import SessionStore

store, acknowledged = SessionStore(Path(sys.argv[1])), int(sys.argv[2])

def write(session_id, run):
    chance = random.Random(run)
    session, count = store.open(session_id), 0

    def save(record):
        nonlocal count
        session.append({**record, "id": f"{run}.{count}"})
        os.write(acknowledged, b"%d.%d\\n" % (run, count))
        count += 1

    for answer in answers_to_interrupted(session.messages()):
        save(answer)
    for turn in range(1_000_000):
        save({"role": "user", "content": f"turn {turn}"})
        calls = [f"{run}-{turn}-{index}" for index in range(chance.randint(1, 4))]
        save({
            "role": "assistant",
            "content": [{"type": "tool_call", "id": i, "name": "t", "input": {}} for i in calls],
        })
        for call in calls:
            size = chance.choice((1, 100, 5_000, 70_000))
            save({"role": "tool", "tool_call_id": call, "content": "x" * size})
        save({"role": "assistant", "content": "done"})
        session.update(prompts=turn)

for line in sys.stdin:
    session_id, run = line.split()
    writer = os.fork()
    if writer == 0:
        write(session_id, int(run))
    print(writer, flush=True)
    print(os.waitpid(writer, 0)[1], flush=True)
"""


class Writers:
    """Starts writers and returns, once they are dead, what was acknowledged to them."""

    def __init__(self, root: Path) -> None:
        self._acknowledged, inherited = os.pipe()
        os.set_blocking(self._acknowledged, False)
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITERS, str(root), str(inherited)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[inherited],
        )
        os.close(inherited)

    def run(self, session_id: str, run: int, seconds: float) -> list[str]:
        """Ids of the records that were acknowledged to a writer killed after `seconds`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{session_id} {run}\n")
        self._process.stdin.flush()
        writer = int(self._process.stdout.readline())
        time.sleep(seconds)
        os.kill(writer, signal.SIGKILL)
        assert int(self._process.stdout.readline()) == signal.SIGKILL
        return self._read().split()

    def _read(self) -> str:
        text = b""
        while True:
            try:
                text += os.read(self._acknowledged, 65536)
            except BlockingIOError:
                return text.decode()

    def close(self) -> None:
        self._process.communicate(timeout=30)
        os.close(self._acknowledged)


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path / "sessions")


@pytest.fixture
def writers(store: SessionStore) -> Iterator[Writers]:
    made = Writers(store.root)
    yield made
    made.close()


def test_nothing_acknowledged_is_lost_however_often_the_writer_is_killed(
    store: SessionStore, writers: Writers, scale: Scale
) -> None:
    chance, kills = random.Random(1), scale(10, 200)
    acknowledged: dict[int, list[str]] = {}
    in_flight = 0
    for run in range(kills):
        session_id = f"session-{run // KILLS_IN_A_SESSION}"
        if run % KILLS_IN_A_SESSION == 0:
            store.create(session_id, project="/p").close()
        acknowledged[run] = writers.run(session_id, run, chance.uniform(0, RUN_SECONDS))
        saved = saved_by(run, store, session_id)
        assert saved[: len(acknowledged[run])] == acknowledged[run], run
        assert len(saved) <= len(acknowledged[run]) + 1, "more than the record in flight"
        in_flight += len(saved) - len(acknowledged[run])
        store.open(session_id).close()
        assert set(os.listdir(store.root / session_id)) == FILES
    assert sum(map(len, acknowledged.values())) > kills
    for session_id in {path.name for path in store.root.iterdir()}:
        assert_whole(store.read(session_id)[1])


def saved_by(run: int, store: SessionStore, session_id: str) -> list[str]:
    """Ids of the records of `run` that a reader finds before any repair."""
    messages = read_transcript(store.root / session_id / "transcript.jsonl").messages
    ids = [message["id"] for message in messages]
    assert len(set(ids)) == len(ids)
    return [name for name in ids if name.startswith(f"{run}.")]


def assert_whole(messages: list[dict[str, Any]]) -> None:
    """Every call but those of the very end has exactly one result, before anything else is said."""
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            if message["content"] == INTERRUPTED:
                assert message["name"] == "t"
        else:
            assert not waiting
        if isinstance(message["content"], list):
            waiting = {block["id"] for block in message["content"]}


# Appends until a signal raises in the middle of one, as a third Ctrl-C or a second SIGTERM does,
# then one short record more; and again, with what is then read.
INTERRUPTED_WRITER = """
import signal, sys
from pathlib import Path
from amplifier_app.sessions.store import SessionStore

class Hit(KeyboardInterrupt): ...

armed = False

def raise_hit(signum, frame):
    if armed:
        raise Hit

signal.signal(signal.SIGALRM, raise_hit)
store, number = SessionStore(Path(sys.argv[1])), 0
for hit in range(int(sys.argv[2])):
    session = store.open("one")
    signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0003 * (hit % 10), 0.0007)
    while True:
        number += 1
        try:
            armed = True
            session.append({"role": "user", "content": "x" * 9000, "id": number})
        except Hit:
            armed = False
            break
        armed = False
        print(number)
    signal.setitimer(signal.ITIMER_REAL, 0)
    number += 1
    session.append({"role": "user", "content": "short", "id": number})
    print(number)
    session.close()
"""


def test_nothing_acknowledged_is_lost_or_spliced_when_signals_raise_in_the_middle(
    store: SessionStore, scale: Scale
) -> None:
    store.create("one", project="/p").close()
    done = run_python(INTERRUPTED_WRITER, store.root, str(scale(20, 200)))
    assert done.returncode == 0, done.stderr
    saved = [message["id"] for message in store.read("one")[1]]
    assert set(map(int, done.stdout.split())) <= set(saved)
    assert saved == sorted(set(saved))
