"""A disk that is full or read-only: an error that says so, and everything that was there stays as it was."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Finished, run_amplifier
from tests.support.plans import mock_plan
from tests.support.small_disk import can_mount, fill, remount_read_only, small_disk

pytestmark = pytest.mark.skipif(not can_mount(), reason="cannot mount file systems")

LONG = {"name": "bash", "id": "c", "input": {"command": "seq 100000"}}
HOOKS = [{"module": "hooks-logging"}]


class Machine:
    """A home on a disk of 1 MB, with a session and settings, and a project elsewhere."""

    def __init__(self, folder: Path, disk: Path) -> None:
        self.home, self.cwd = disk, folder / "work"
        self.cwd.mkdir()
        tools = [{"module": "tool-bash"}]
        self.plan = mock_plan(self.cwd, ["hello"], hooks=HOOKS, tools=tools)
        self.long = mock_plan(
            self.cwd, [{"tool_calls": [LONG]}, "done"], name="long.yaml", hooks=HOOKS, tools=tools
        )
        for command in (
            ("run", "-f", str(self.plan), "hi", "--session", "old"),
            ("module", "add", "tool-mcp", "--scope", "user"),
            ("session", "list"),
        ):
            done = self(*command)
            assert done.code == 0, done.stderr

    def __call__(self, *command: str, timeout: float = 30) -> Finished:
        done = run_amplifier(*command, home=self.home, cwd=self.cwd, timeout=timeout)
        assert "Traceback" not in done.stderr, done.stderr
        assert "Run again with -v" not in done.stderr, done.stderr
        return done

    def content(self) -> dict[str, bytes]:
        """Every file but those that are made again or only locked."""
        return {
            str(path.relative_to(self.home)): path.read_bytes()
            for path in self.home.rglob("*")
            if path.is_file()
            and not path.name.endswith(".lock")
            and ".sqlite3" not in path.name
            and path.name not in ("filling", "lock")
        }


def assert_kept(before: dict[str, bytes], after: dict[str, bytes], new: set[str]) -> None:
    """Nothing is changed, except that logs and transcripts may have got longer."""
    assert after.keys() == before.keys() | new
    for name, data in before.items():
        found = after[name]
        assert found.startswith(data) if name.endswith(".jsonl") else found == data, name


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "disk").mkdir()
    with small_disk(tmp_path / "disk", 1024 * 1024) as disk:
        yield Machine(tmp_path, disk)


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_nothing_that_was_there_is_changed(machine: Machine, tmp_path: Path, state: str) -> None:
    before = machine.content()
    if state == "full":
        fill(machine.home)
        why = "no space left on device"
    else:
        remount_read_only(machine.home)
        why = "read-only file system"
    outcomes = {
        "a new session": (6, machine("run", "-f", str(machine.plan), "hi")),
        "an old session": (6, machine("run", "-f", str(machine.plan), "--resume", "old", "go")),
        "a fork": (6, machine("session", "fork", "old")),
        "a title": (6, machine("session", "rename", "old", "new")),
        "settings": (
            6,
            machine(
                "module",
                "override",
                "tool-mcp",
                "git+https://127.0.0.1:1/x@main",
                "--scope",
                "user",
            ),
        ),
        "a module": (
            6,
            machine("module", "new", "tool", "my-tool", "--dir", str(machine.home / "modules")),
        ),
        "a profile": (6, machine("profile", "use", "minimal", "--scope", "user")),
        "an export": (6, machine("session", "export", "old", "--to", str(machine.home / "out.md"))),
        "a bundle": (
            6,
            machine("session", "export", "old", "--bundle", "--to", str(machine.home / "out.tgz")),
        ),
    }
    for name, (code, done) in outcomes.items():
        assert done.code == code, (name, done)
        assert why in done.stderr.lower(), (name, done.stderr)
    assert_kept(before, machine.content(), new=set())
    listed = machine("session", "list", "--output", "json")
    assert [one["id"] for one in json.loads(listed.stdout)] == ["old"]
    assert "running" not in machine("session", "list").stdout
    found = machine("session", "search", "hello")
    assert (found.code, "old" in found.stdout) == (0, True), found.stderr


@pytest.mark.parametrize(
    "leave",
    [0, 40, *(pytest.param(leave, marks=pytest.mark.thorough) for leave in (8, 16, 24, 80))],
)
def test_a_disk_that_fills_up_during_a_run_keeps_what_was_acknowledged(
    machine: Machine, leave: int
) -> None:
    """`leave` KiB are free when the run begins; a log or a long output that does not fit is not an error."""
    before = machine.content()
    filling = fill(machine.home, leave=leave * 1024)
    done = machine("run", "-f", str(machine.long), "go", "--session", "new")
    assert done.code in (0, 6), done
    assert done.code == 0 or "no space left" in done.stderr.lower(), done.stderr
    after = machine.content()
    assert_kept(before, after, new={name for name in after if "/new/" in name})
    filling.unlink()
    resumed = machine("run", "-f", str(machine.plan), "--session", "new", "go on")
    assert (resumed.code, resumed.stdout) == (0, "hello\n"), resumed.stderr


def test_a_batch_that_filled_the_disk_continues_when_there_is_space(machine: Machine) -> None:
    rows = "".join(f'{{"id": "r{number}"}}\n' for number in range(30))
    (machine.cwd / "rows.jsonl").write_text(rows)
    out = machine.home / "out"
    filling = fill(machine.home, leave=200_000)
    run = ("batch", "run", "mock", "rows.jsonl", "-o", str(out), "--prompt", "{{id}}")
    # Rows whose files do not fit are tried again, after pauses, until the record itself does not fit.
    done = machine(*run, timeout=100)
    assert done.code == 6, done.stderr
    assert "o space left on device" in done.stderr
    assert f"ontinue with: amplifier batch resume {out}" in done.stderr
    ended = (out / "results.jsonl").read_text()
    assert json.loads(machine("batch", "status", str(out), "--output", "json").stdout)[
        "ended"
    ] == ended.count("\n")
    filling.unlink()
    done = machine("batch", "resume", str(out))
    assert done.code == 0, done.stderr
    results = (out / "results.jsonl").read_text()
    assert results.startswith(ended)
    assert sorted(json.loads(line)["row"] for line in results.splitlines()) == sorted(
        f"r{number}" for number in range(30)
    )
