"""Finding helper programs in hostile places, and running them within limits."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from amplifier_support.async_programs import run_in_thread
from amplifier_support.environment import minimal_environment, without_model_keys, without_secrets
from amplifier_support.programs import (
    Stopped,
    TimedOut,
    TooMuchOutput,
    find_program,
    run,
    search_path,
)
from amplifier_support.working_folder import working_in
from tests.app.sources.test_git import is_running
from tests.support.cli import child_environment, run_python
from tests.support.waiting import eventually

SH = "/bin/sh"


def program(folder: Path, name: str = "helper") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def parse_path(*entries: str | Path) -> str:
    return os.pathsep.join(map(str, entries))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The top of a project; the current folder is one below it, and home is elsewhere."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "src").mkdir()
    monkeypatch.chdir(folder / "src")
    return folder


@pytest.mark.parametrize("entry", ["", ".", "bin", "../bin", "{project}/bin", "{project}/src/bin"])
def test_programs_of_the_working_folder_and_its_project_do_not_count(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    for folder in ("bin", "src", "src/bin"):
        program(project / folder)
    good = program(tmp_path / "good")
    shown = entry.format(project=project)
    monkeypatch.setenv("PATH", parse_path(shown, good.parent))
    assert find_program("helper") == str(good)
    assert search_path() == str(good.parent)
    monkeypatch.setenv("PATH", shown)
    assert find_program("helper") is None


def test_only_folders_that_have_the_program_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: set[str] = set()
    realpath = os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda path: checked.add(str(path)) or realpath(path))
    good = program(tmp_path / "good")
    monkeypatch.setenv("PATH", parse_path(tmp_path, good.parent, tmp_path / "later"))
    assert find_program("helper") == str(good)
    assert checked & set(os.environ["PATH"].split(os.pathsep)) == {str(good.parent)}


def test_a_link_to_the_project_does_not_count(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(project / "bin")
    (tmp_path / "link").symlink_to(project / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "link"))
    assert find_program("helper") is None


def test_the_folder_to_work_in_counts_like_the_current_one(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = program(tmp_path / "other" / "bin")
    monkeypatch.setenv("PATH", str(file.parent))
    assert find_program("helper") == str(file)
    assert find_program("helper", str(tmp_path / "other")) is None
    with working_in(str(tmp_path / "other")):
        assert find_program("helper") is None


def test_the_users_and_the_systems_programs_are_found_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    file = program(home / ".local" / "bin")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", parse_path(file.parent, Path(sys.executable).parent, "/bin"))
    for folder in (home, tmp_path, Path("/"), Path("/bin")):
        monkeypatch.chdir(folder)
        assert find_program("helper") == str(file), folder
        assert find_program("sh") == "/bin/sh", folder
    # The interpreter that runs this is trusted already, also when it is the project's.
    monkeypatch.chdir(Path(sys.executable).parents[1])
    assert find_program(Path(sys.executable).name) == sys.executable


def test_a_removed_working_folder_holds_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("PATH", parse_path("", ".", "/bin"))
    assert find_program("sh") == "/bin/sh"
    monkeypatch.chdir("/")


def test_a_program_is_named_by_its_absolute_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not an absolute path of a program: 'sh'"):
        run(["sh"], cwd=tmp_path, env={}, seconds=10)


def test_a_helper_gets_what_it_is_given(tmp_path: Path) -> None:
    done = run(
        [SH, "-c", 'pwd; echo "$A"; echo e >&2; cat; exit 3'],
        cwd=tmp_path,
        env={"A": "b"},
        seconds=20,
    )
    assert done == (3, f"{tmp_path}\nb\n", "e\n")


def test_a_helper_that_reaches_a_limit_ends_with_what_it_started(tmp_path: Path) -> None:
    sleeper = [SH, "-c", "sleep 600 & echo $! > pid; wait"]
    with pytest.raises(TimedOut, match=r"/bin/sh took longer than 0.5 s"):
        run(sleeper, cwd=tmp_path, env=dict(os.environ), seconds=0.5)
    assert not is_running(int((tmp_path / "pid").read_text()))
    with pytest.raises(TooMuchOutput):
        run(["/usr/bin/yes"], cwd=tmp_path, env={}, seconds=None, max_bytes=100_000)
    with pytest.raises(TooMuchOutput):
        run([SH, "-c", "echo 12345"], cwd=tmp_path, env={}, seconds=None, max_bytes=5)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        run(sleeper, cwd=tmp_path, env=dict(os.environ), seconds=None, stop=stop)


async def test_cancelling_ends_a_helper_in_a_thread(tmp_path: Path) -> None:
    line = "echo $$ > part; mv part pid; exec sleep 600"
    work = asyncio.ensure_future(
        run_in_thread([SH, "-c", line], cwd=tmp_path, env=dict(os.environ))
    )
    await eventually((tmp_path / "pid").exists)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("delay", [0, 0.5])
def test_a_program_that_leaves_ends_its_helpers(delay: float, tmp_path: Path) -> None:
    """Also one that has just started, which the thread that started it does not know yet."""
    started = tmp_path / "started"
    code = (
        "import os, subprocess, sys, threading, time\n"
        "from pathlib import Path\n"
        "from amplifier_app.cli import leave\n"
        "from amplifier_support.programs import run\n"
        "class Slow(subprocess.Popen):\n"
        "    def __init__(self, *args, **options):\n"
        "        super().__init__(*args, **options)\n"
        f"        time.sleep({delay})\n"
        "subprocess.Popen = Slow\n"
        "started = Path(sys.argv[1])\n"
        "script = f'sleep 300 & echo $! > {started}.new; mv {started}.new {started}; wait'\n"
        "given = {'cwd': Path('/'), 'env': {'PATH': os.defpath}, 'seconds': None}\n"
        "threading.Thread(target=run, args=(['/bin/sh', '-c', script],), kwargs=given).start()\n"
        "while not started.exists():\n"
        "    time.sleep(0.01)\n"
        "leave(3)\n"
    )
    assert run_python(code, started).returncode == 3
    assert not is_running(int(started.read_text()))


def test_no_helper_starts_after_the_others_were_ended(tmp_path: Path) -> None:
    """The functions that run when the program leaves may take their time, and threads go on meanwhile."""
    code = (
        "import atexit, os, sys, threading, time\n"
        "from pathlib import Path\n"
        "def last():\n"
        "    thread.join(30)\n"
        "atexit.register(last)\n"
        "from amplifier_app.cli import leave\n"
        "from amplifier_support.programs import Stopped, run\n"
        "def work():\n"
        "    for name in ('first', 'second'):\n"
        "        script = f'echo $$ > {name}.new; mv {name}.new {name}; exec sleep 20'\n"
        "        given = {'cwd': Path(sys.argv[1]), 'env': {'PATH': os.defpath}, 'seconds': None}\n"
        "        try:\n"
        "            print(run(['/bin/sh', '-c', script], **given))\n"
        "        except Stopped:\n"
        "            print('stopped', name)\n"
        "thread = threading.Thread(target=work, daemon=True)\n"
        "thread.start()\n"
        "while not (Path(sys.argv[1]) / 'first').exists():\n"
        "    time.sleep(0.01)\n"
        "leave(3)\n"
    )
    done = subprocess.run(
        # Not cloned: `last` is to run after what the module of helpers has registered.
        [sys.executable, "-c", code, str(tmp_path)],
        env=child_environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    # What is printed while the program exits is not part of its output.
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines() == ["stopped first", "stopped second"]
    assert not (tmp_path / "second").exists()


def test_the_end_of_a_fork_leaves_the_helpers_of_its_parent_alone(tmp_path: Path) -> None:
    code = (
        "import os, sys, threading, time\n"
        "from pathlib import Path\n"
        "from amplifier_app.cli import leave\n"
        "from amplifier_support import programs\n"
        "folder = Path(sys.argv[1])\n"
        "script = 'until [ -e go ]; do sleep 0.01; done; echo whole'\n"
        "given = {'cwd': folder, 'env': {'PATH': os.defpath}, 'seconds': 60}\n"
        "helper = lambda: print(programs.run(['/bin/sh', '-c', script], **given))\n"
        "thread = threading.Thread(target=helper)\n"
        "thread.start()\n"
        "while not programs._running:\n"
        "    time.sleep(0.01)\n"
        "if os.fork() == 0:\n"
        "    leave(0)\n"
        "os.wait()\n"
        "(folder / 'go').touch()\n"
        "thread.join()\n"
    )
    done = run_python(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Finished(code=0, stdout='whole\\n', stderr='')\n"


def test_package_clients_keep_the_credentials_of_their_index() -> None:
    theirs = {"UV_INDEX_X_PASSWORD": "1", "GITHUB_TOKEN": "2", "AWS_SECRET_ACCESS_KEY": "3"}
    keys = {"ANTHROPIC_API_KEY": "4", "OPENAI_AUTH_TOKEN": "5", "MY_APIKEY": "6", "XAI_KEY": "7"}
    assert without_model_keys({**theirs, **keys}) == theirs
    passwords = {"DB_PASS": "8", "GITHUB_PAT": "9", "APP_PWD": "10", "PGPASSWORD": "11"}
    others = {"HOME": "/", "PWD": "/", "OLDPWD": "/", "SSH_AUTH_SOCK": "/s"}
    assert without_secrets({**theirs, **keys, **passwords, **others}) == others


def test_no_folder_chooses_what_a_command_loads_or_runs() -> None:
    lists = {"PATH": parse_path("", ".", "/a", "b", "/c"), "LD_LIBRARY_PATH": parse_path("/a", "")}
    files = {"BASH_ENV": "./x", "RIPGREP_CONFIG_PATH": "x", "LD_PRELOAD": "lib/x.so", "MAGIC": ""}
    rest = {"CDPATH": "/a", "PYTHONPATH": "src", "ENV": "test"}
    expected = {"PATH": parse_path("/a", "/c"), "LD_LIBRARY_PATH": "/a"}
    expected |= {"PYTHONPATH": "src", "ENV": "test"}
    assert without_secrets({**lists, **files, **rest}) == expected
    assert without_model_keys({**lists, **files, **rest}) == expected
    absolute = {"BASH_ENV": "$HOME/x", "LD_PRELOAD": "libx.so /a/x.so", "LOCPATH": "/a"}
    assert without_secrets({**absolute, "PATH": "."}) == {**absolute, "PATH": os.defpath}


def test_the_minimal_environment_has_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "C")
    monkeypatch.setenv("UNSUSPICIOUS", "sk-secret")
    environment = minimal_environment()
    assert environment["LANG"] == "C"
    assert "UNSUSPICIOUS" not in environment
