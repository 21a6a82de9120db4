"""Whatever the umask, no other user can enter the program's folders or read its files."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.conditions import Conditions
from tests.support.module_repositories import SEED_TOOL, Repository
from tests.support.packages import tar
from tests.support.plans import mock_plan

pytestmark = pytest.mark.skipif(os.name == "nt", reason="modes are POSIX")


def open_to_others(folder: Path) -> dict[str, str]:
    """The modes of what others may use below a folder, by its path; links have no modes."""
    found: dict[str, str] = {}
    for path in (folder, *folder.rglob("*")):
        facts = path.lstat()
        if not stat.S_ISLNK(facts.st_mode) and stat.S_IMODE(facts.st_mode) & 0o077:
            found[str(path.relative_to(folder))] = stat.filemode(facts.st_mode)
    return found


def test_what_the_program_creates_is_for_its_user_only(tmp_path: Path) -> None:
    home, work, temporary = tmp_path / "above" / "home", tmp_path / "work", tmp_path / "tmp"
    work.mkdir()
    temporary.mkdir()

    def run(*arguments: str | Path, code: int = 0, stdin: str | None = None) -> Finished:
        env = {"TMPDIR": str(temporary)}
        umask = Conditions(umask=0)
        done = run_amplifier(
            *arguments, home=home, cwd=work, env=env, stdin=stdin, conditions=umask
        )
        assert done.code == code, done.stderr
        return done

    repository = Repository(tmp_path / "remote")
    repository.commit({**SEED_TOOL, "run.sh": "#!/bin/sh\n"})
    other = {name: text.replace("my", "other") for name, text in SEED_TOOL.items()}
    other = {name.replace("my_tool", "other_tool"): text for name, text in other.items()}
    archive = tar(tmp_path / "other.tar.gz", other)
    calls = [
        {"name": "bash", "input": {"command": "yes | head -c 200000; umask > mask"}},
        {"name": "write_file", "input": {"path": "in.txt", "content": "x"}},
        {"name": "todo", "input": {"action": "list"}},
    ]
    plan = mock_plan(
        work,
        [{"tool_calls": calls}, "done"],
        tools=[
            *({"module": f"tool-{name}"} for name in ("filesystem", "bash", "todo")),
            {"module": "my-tool", "source": repository.url},
            {"module": "other-tool", "source": str(archive)},
        ],
        hooks=[
            *({"module": f"hooks-{name}"} for name in ("logging", "backup")),
            {
                "module": "hooks-otel",
                "config": {"exporter": "file", "path": str(home / "deep" / "er" / "spans.jsonl")},
            },
        ],
    )
    run("run", "-f", plan, "--approve", "allow", "go")
    run("session", "search", "go")
    run("profile", "use", "mock")
    assert (home / "cache" / "git").is_dir()
    assert (home / "cache" / "archives").is_dir()
    assert list(home.rglob("tool-output/bash-*"))
    assert list(home.rglob("backups"))
    assert (home / "deep" / "er" / "spans.jsonl").is_file()
    assert open_to_others(tmp_path / "above") == {}
    (metadata,) = (home / "sessions").glob("*/metadata.json")
    run("session", "export", "--bundle", "--to", "one.tar.gz", metadata.parent.name)
    shutil.rmtree(metadata.parent)
    run("session", "import", "one.tar.gz")
    assert metadata.exists()
    assert open_to_others(tmp_path / "above") == {}
    assert open_to_others(temporary).keys() <= {"."}
    # What the agent makes is as the user wants it.
    assert (work / "mask").read_text().strip() == "0000"
    assert stat.S_IMODE((work / "mask").stat().st_mode) == 0o666
    assert stat.S_IMODE((work / "in.txt").stat().st_mode) == 0o666


def test_output_is_not_written_through_a_linked_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    big = {"name": "bash", "input": {"command": "yes | head -c 200000"}}
    plan = mock_plan(tmp_path, [{"tool_calls": [big]}, "done"], tools=[{"module": "tool-bash"}])
    first = run_amplifier(
        "run", "-f", plan, "--session", "s", "--approve", "allow", "go", cwd=tmp_path
    )
    folder = first.home / "sessions" / "s" / "tool-output"
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.symlink_to(elsewhere)
    succeed(
        *("run", "-f", plan, "--resume", "s", "--approve", "allow", "go"),
        cwd=tmp_path,
        home=first.home,
    )
    assert list(elsewhere.iterdir()) == []
    transcript = (first.home / "sessions" / "s" / "transcript.jsonl").read_text()
    assert "it is a link" in transcript


def test_no_planted_link_in_the_sessions_is_followed(tmp_path: Path) -> None:
    """Each is planted in place of a folder or a file of a session; what it leads to stays as it is."""
    plan = mock_plan(tmp_path, ["done"], hooks=[{"module": "hooks-logging"}])
    real = tmp_path / "real"
    home = tmp_path / "home"
    real.mkdir(mode=0o700)
    # The home itself may be a link of the user.
    home.symlink_to(real)
    sessions = home / "sessions"

    def run(*options: str) -> Finished:
        return run_amplifier("run", "-f", plan, *options, "go", cwd=tmp_path, home=home)

    assert run("--session", "s").code == 0
    outside = tmp_path / "outside"
    shutil.copytree(sessions / "s", outside)
    (outside / "empty").mkdir()
    before = content_of(outside)
    refused = 0
    for number, target in enumerate((outside, outside / "empty", tmp_path / "missing")):
        (sessions / f"l{number}").symlink_to(target)
        for option in ("--session", "--resume", "--fork"):
            done = run(option, f"l{number}")
            refused += (done.code, "its folder is a link" in done.stderr) == (6, True)
    assert refused == 9
    for name in ("transcript.jsonl", "lock", "plan.yaml", "metadata.json", "events.jsonl"):
        shutil.copytree(sessions / "s", sessions / f"f-{name}")
        (sessions / f"f-{name}" / name).unlink()
        (sessions / f"f-{name}" / name).symlink_to(outside / name)
        done = run_amplifier("run", "--resume", f"f-{name}", "go", cwd=tmp_path, home=home)
        harmless = name in ("metadata.json", "events.jsonl")  # Replaced, or not written.
        assert done.code == (0 if harmless else 6), (name, done.stderr)
        assert harmless or "is a link" in done.stderr
    assert content_of(outside) == before
    assert not (tmp_path / "missing").exists()
    listed = run_amplifier("session", "list", cwd=tmp_path, home=home)
    assert (listed.code, "l0" in listed.stdout.split()) == (0, False)


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
