"""Sessions are found from anywhere, have one writer, and belong to their owner alone."""

import contextlib
import errno
import fcntl
import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import SessionError
from amplifier_app.sessions import folder, lock
from amplifier_app.sessions import store as store_module
from amplifier_app.sessions.folder import SavedSession, make_title
from amplifier_app.sessions.removal import remove_sessions
from amplifier_app.sessions.store import SessionStore, new_session_id
from amplifier_app.sessions.transcript import read_transcript
from amplifier_support.files import try_lock
from tests.support.cli import run_python, start_python
from tests.support.thorough import Scale

HOLDER = """
import sys, time
from pathlib import Path
from amplifier_app.sessions.store import SessionStore
session = SessionStore(Path(sys.argv[1])).open(sys.argv[2])
print("held", flush=True)
time.sleep(60)
"""

WRITER = """
import sys
from pathlib import Path
from amplifier_app.base.errors import SessionError
from amplifier_app.sessions.store import SessionStore
store, name, count = SessionStore(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
at_once = int(sys.argv[4])
done = 0
while done < count:
    try:
        session = store.open("shared")
    except SessionError:
        continue
    for _ in range(at_once):
        session.append({"role": "user", "content": f"{name}-{done}"})
        done += 1
    session.close()
"""


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path / "sessions")


def make(store: SessionStore, session_id: str, project: str = "/p", **metadata: object) -> Path:
    session = store.create(session_id, project=project, plan_yaml="a: 1\n", **metadata)
    session.append({"role": "user", "content": session_id})
    session.close()
    return session.path


def hold(store: SessionStore, session_id: str) -> subprocess.Popen[str]:
    process = start_python(HOLDER, store.root, session_id, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        ("# Fix the *parser*\n\n- it `breaks`\n- see [the log](http://x/y)", "Fix the parser it breaks see the log"),
        ("<task>Sum up</task> List<int> and a < b", "Sum up List<int> and a < b"),
        ("```python\nsnake_case_name = __init__ * 2 * 3\n```", "snake_case_name = init * 2 * 3"),
        ('see @a.py\n\n<file path="a.py">\nx = 1\n</file>', "see @a.py"),
        ("word " * 40, "word " * 15 + "word…"),
        ("x" * 100, "x" * 79 + "…"),
        ("***", "***"),
    ],
)  # fmt: skip
def test_a_title_is_one_line_of_whole_words(prompt: str, title: str) -> None:
    assert make_title(prompt) == title


def test_the_shortest_id_finds_the_session(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    for name in (
        "20260101-000000-abc123",
        "20260102-000000-abc123",
        "20260103-000000-def456",
        "mine",
    ):
        (tmp_path / name).mkdir()
    ids = ["20260101-000000-abc123", "20260103-000000-def456", "mine"]
    assert [store.shortest_id(one) for one in ids] == [ids[0], "def456", "mine"]


def test_a_saved_session_can_be_reopened(store: SessionStore) -> None:
    make(store, "one", model="m", prompts=2)
    session = store.open("one")
    try:
        assert session.messages() == [{"role": "user", "content": "one"}]
        assert session.metadata["project"] == "/p"
        assert session.metadata["model"] == "m"
        assert session.metadata["schema_version"] == 2
        assert (session.path / "plan.yaml").read_text() == "a: 1\n"
    finally:
        session.close()


def test_a_session_is_found_by_a_prefix_of_its_id(store: SessionStore) -> None:
    make(store, "20260101-aaa")
    make(store, "20260102-bbb")
    assert store.find("20260102").id == "20260102-bbb"
    with pytest.raises(SessionError, match="matches 2 sessions"):
        store.find("2026")
    with pytest.raises(SessionError, match="no session 'nope'"):
        store.find("nope")


def test_ids_that_could_leave_the_folder_are_refused(store: SessionStore) -> None:
    for name in ("../up", "", ".hidden", "-x", "a/b", "x" * 129, "a\0b", "a\nb"):
        with pytest.raises(SessionError):
            store.create(name, project="/p") if name else store.find(name)
    assert not store.root.exists() or not list(store.root.iterdir())


def test_an_id_can_be_used_only_once(store: SessionStore) -> None:
    make(store, "one")
    with pytest.raises(SessionError, match="already exists"):
        store.create("one", project="/p")


@pytest.mark.parametrize("step", range(5))
def test_an_id_is_free_again_if_the_creation_of_its_session_was_killed(
    store: SessionStore, step: int
) -> None:
    path = store.root / "one"
    path.mkdir(parents=True)
    for name in ("lock", "transcript.jsonl", "plan.yaml", ".amplifier-0123456789abcdef.tmp")[:step]:
        (path / name).write_text("" if name == "transcript.jsonl" else "{}")
    assert not store.get("one")
    with pytest.raises(SessionError, match="the creation of session one was interrupted"):
        store.open("one")
    make(store, "one")
    assert store.read("one")[0]["project"] == "/p"
    assert store.get("one")
    assert [entry.name for entry in store.root.iterdir()] == ["one"]


@pytest.mark.parametrize("step", ["is_remnant", "remove_unfinished", "TranscriptWriter"])
def test_an_interrupted_creation_leaves_no_session(
    store: SessionStore, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.create("s", project="/work")
    assert os.listdir(store.root) == []
    store.create("s", project="/work").close()


@pytest.mark.parametrize("name", ["transcript.jsonl", "metadata.json", "events.jsonl"])
def test_no_id_is_free_while_anything_of_its_session_is_left(
    store: SessionStore, name: str
) -> None:
    (store.root / "one").mkdir(parents=True)
    (store.root / "one" / name).write_text("{}\n")
    assert store.get("one")
    with pytest.raises(SessionError, match="already exists"):
        store.create("one", project="/p")
    assert (store.root / "one" / name).read_text() == "{}\n"


def test_a_session_that_is_being_created_is_left_alone(store: SessionStore) -> None:
    id = "20260131-120000-a1b2c3"
    path = store.root / id
    path.mkdir(parents=True)
    with (path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SessionError, match="is in use") as error:
            store.create(id, project="/p")
    assert error.value.hint == "Stop it, or start from a copy: amplifier run --fork a1b2c3"
    assert [entry.name for entry in path.iterdir()] == ["lock"]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_creation_that_comes_second_changes_nothing(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch, *, is_open: bool
) -> None:
    """The first one takes the folder between the second one's `mkdir` and its lock."""
    first: list[SavedSession] = []

    def take(path: Path, *, create: bool) -> SavedSession:
        monkeypatch.undo()
        first.append(store.create("one", project="/p", plan_yaml="a: 1\n"))
        first[0].append({"role": "user", "content": "of the first"})
        if not is_open:
            first[0].close()
        return SavedSession(path, create=create)

    monkeypatch.setattr(store_module, "SavedSession", take)
    with pytest.raises(SessionError, match="is in use" if is_open else "already exists"):
        store.create("one", project="/q")
    first[0].update(title="still writable")
    first[0].close()
    metadata, messages = store.read("one")
    assert (metadata["project"], metadata["title"]) == ("/p", "still writable")
    assert messages == [{"role": "user", "content": "of the first"}]


def test_a_lock_of_a_session_that_was_just_replaced_is_not_held(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(store, "one")

    def replace(descriptor: int) -> bool:
        monkeypatch.undo()
        remove_sessions(store.root, ["one"])
        make(store, "one", project="/q")
        return try_lock(descriptor)

    monkeypatch.setattr(lock, "try_lock", replace)
    with pytest.raises(SessionError, match="the session was removed"):
        SavedSession(path, create=False)


def test_new_ids_differ_and_are_valid(store: SessionStore) -> None:
    ids = {new_session_id() for _ in range(50)}
    assert len(ids) == 50
    store.create(ids.pop(), project="/p").close()


def test_the_latest_session_is_the_one_used_last_in_that_project(store: SessionStore) -> None:
    for index, (name, project) in enumerate([("a", "/p"), ("b", "/q"), ("c", "/p")]):
        path = make(store, name, project)
        os.utime(path / "transcript.jsonl", (index + 1000, index + 1000))
    assert store.latest().id == "c"
    assert store.latest("/q").id == "b"
    os.utime(store.root / "a" / "transcript.jsonl", (5000, 5000))
    assert store.latest("/p").id == "a"
    with pytest.raises(SessionError, match="no earlier session"):
        store.latest("/elsewhere")


def test_a_second_process_is_refused_with_the_pid_of_the_first(store: SessionStore) -> None:
    make(store, "one")
    holder = hold(store, "one")
    try:
        with pytest.raises(SessionError, match=f"process {holder.pid}"):
            store.open("one")
        os.truncate(store.root / "one" / "lock", 0)
        with pytest.raises(SessionError, match=r"in use \(process of unknown pid\)"):
            store.open("one")
    finally:
        holder.kill()
        holder.communicate()


def test_the_lock_of_a_killed_process_is_released(store: SessionStore) -> None:
    make(store, "one")
    holder = hold(store, "one")
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    session = store.open("one")
    session.append({"role": "user", "content": "more"})
    session.close()
    assert len(store.read("one")[1]) == 2


def test_two_writers_taking_turns_lose_and_splice_nothing(
    store: SessionStore, scale: Scale
) -> None:
    """600 records by default, 10,000 in a thorough run."""
    make(store, "shared")
    count, at_once = scale((300, 10), (5000, 50))
    writers = [
        start_python(WRITER, store.root, name, str(count), str(at_once)) for name in ("a", "b")
    ]
    assert [writer.wait(timeout=500) for writer in writers] == [0, 0]
    contents = [message["content"] for message in store.read("shared")[1][1:]]
    for name in ("a", "b"):
        own = [content for content in contents if content.startswith(name)]
        assert own == [f"{name}-{index}" for index in range(count)]
    assert len(contents) == 2 * count


def test_everything_is_private_regardless_of_umask(store: SessionStore) -> None:
    old = os.umask(0)
    try:
        path = make(store, "one")
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o700
    assert store.root.stat().st_mode & 0o777 == 0o700
    for file in path.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file


def test_a_session_folder_that_is_a_link_is_not_opened(store: SessionStore, tmp_path: Path) -> None:
    make(store, "one")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (store.root / "planted").symlink_to(elsewhere)
    with pytest.raises(SessionError):
        store.open("planted")
    assert [summary.id for summary in store.summaries()] == ["one"]


def test_a_torn_tail_is_removed_and_reported_on_opening(store: SessionStore) -> None:
    path = make(store, "one")
    with open(path / "transcript.jsonl", "ab") as file:
        file.write(b'{"role": "us')
    session = store.open("one")
    try:
        assert isinstance(session, SavedSession)
        assert session.repaired == 12
        assert session.messages() == [{"role": "user", "content": "one"}]
    finally:
        session.close()
    assert read_transcript(path / "transcript.jsonl").file.torn == 0


def test_updating_metadata_leaves_no_stray_files(store: SessionStore) -> None:
    path = make(store, "one")
    session = store.open("one")
    session.update(prompts=3)
    session.close()
    assert {file.name for file in path.iterdir()} == {
        "transcript.jsonl",
        "metadata.json",
        "plan.yaml",
        "lock",
    }
    assert store.read("one")[0]["prompts"] == 3


def test_a_disk_without_locks_is_reported(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(store, "one")

    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(SessionError, match="cannot lock"):
        store.open("one")


def test_unfinished_files_of_a_killed_writer_are_removed(store: SessionStore) -> None:
    path = make(store, "one", prompts=1)
    left = path / ".amplifier-0123456789abcdef.tmp"
    left.write_text("{torn")
    store.open("one").close()
    assert not left.exists()
    assert store.read("one")[0]["prompts"] == 1


FULL = """
import resource, signal, sys
from pathlib import Path
from amplifier_app.base.errors import SessionError
from amplifier_app.sessions.store import SessionStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = SessionStore(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))
try:
    {act}
except SessionError as error:
    print(error)
else:
    sys.exit("no error")
"""


@pytest.mark.parametrize("room", [0, 60])
@pytest.mark.parametrize(
    "act",
    [
        'store.create("new", project="/p", plan_yaml="a: 1\\n" * 10)',
        's = store.open("old"); s.update(title="x" * 500)',
    ],
)
def test_a_full_disk_keeps_old_sessions_and_creates_no_new_one(
    store: SessionStore, act: str, room: int
) -> None:
    """A limit on the size of files refuses writes as a full disk does, at any of them."""
    old = make(store, "old", title="kept")
    before = {file.name: file.read_bytes() for file in old.iterdir() if file.name != "lock"}
    done = run_python(FULL.format(act=act), store.root, str(room), timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("cannot write", "cannot lock"))
    assert {file.name: file.read_bytes() for file in old.iterdir() if file.name != "lock"} == before
    assert [path.name for path in store.root.iterdir()] == ["old"]


def test_sessions_can_be_removed_from_a_full_disk(store: SessionStore) -> None:
    old = make(store, "old")
    (old / "lock").write_text("")
    act = "from amplifier_app.sessions.removal import remove_sessions\n"
    act += '    remove_sessions(store.root, ["old"])\n    sys.exit()'
    done = run_python(FULL.format(act=act), store.root, "0", timeout=30)
    assert (done.returncode, done.stdout) == (0, "")
    assert list(store.root.iterdir()) == []


def test_folder_entries_are_synced_before_a_session_is_returned(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    session = store.create("one", project="/p")
    session.close()
    assert store.root.parent in synced
    assert store.root in synced
    # Once, after all names are in it.
    assert synced.count(session.path) == 1
    assert synced[-1] == session.path


def test_metadata_that_may_be_lost_is_whole_all_the_same(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(store.create("one", project="/p")) as session:
        synced: list[int] = []
        monkeypatch.setattr(
            os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_mode)
        )
        session.update(title="a", durable=False)
        # The content, before it replaces the old one, but not its name.
        assert [stat.S_ISREG(mode) for mode in synced] == [True]
        session.update(title="b")
        assert [stat.S_ISREG(mode) for mode in synced] == [True, True, False]


def test_a_root_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SessionError, match="cannot create"):
        SessionStore(tmp_path / "file" / "sessions").create("one", project="/p")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SessionError, match="is a link"):
        SessionStore(tmp_path / "link").create("one", project="/p")


def test_listing_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SessionError, match="cannot read"):
        SessionStore(tmp_path / "file").summaries()
    assert SessionStore(tmp_path / "none").summaries() == []
    with pytest.raises(SessionError, match="no earlier session"):
        SessionStore(tmp_path / "none").latest()


def test_sub_sessions_do_not_make_their_parent_ambiguous(store: SessionStore) -> None:
    store.create("20260105-aaa", project="/p").close()
    below: dict[str, Any] = {"parent": "20260105-aaa", "agent": "it", "depth": 1}
    store.create("20260105-aaa-0f_it", project="/p", **below).close()
    store.create("20260105-aaa-1f_it", project="/p", **below).close()
    assert store.find("20260105").id == "20260105-aaa"
    assert store.find("20260105-aaa-1").id == "20260105-aaa-1f_it"
    assert store.latest("/p").id == "20260105-aaa"
    store.create("20260105-bbb", project="/p").close()
    with pytest.raises(SessionError, match="matches 4 sessions"):
        store.find("20260105")
