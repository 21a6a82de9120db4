"""The process runner with real processes: nothing that a command starts gets away."""

import asyncio
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from amplifier_support import process_tree
from amplifier_support.process import commands, supervisor
from amplifier_support.process.commands import (
    Command,
    CommandNotStarted,
    Ended,
    ProcessRunner,
    SupervisorLost,
)
from tests.support.lingering import HARDEST, WAYS, Lingering
from tests.support.processes import is_alive
from tests.support.thorough import Scale
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

BASH = shutil.which("bash") or "/bin/bash"


class Shell:
    """A runner, working in a folder; commands leave pids there by `echo $$ >> pids`."""

    def __init__(self, folder: Path) -> None:
        self.runner = ProcessRunner()
        self.folder = folder
        self.output = bytearray()

    async def run(self, command: str | list[str], timeout: float = 30.0, **env: str) -> Ended:
        argv = [BASH, "-c", command] if isinstance(command, str) else command
        environment = {"PATH": os.environ["PATH"], **env}
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            job = Command(argv, environment, descriptor)
            return await self.runner.run(job, timeout=timeout, output=self.output.extend)
        finally:
            os.close(descriptor)

    @property
    def pids(self) -> list[int]:
        """Pids written so far, each on a line of its own."""
        try:
            return [int(line) for line in (self.folder / "pids").read_text().split()]
        except FileNotFoundError:
            return []

    @property
    def alive(self) -> list[int]:
        return [pid for pid in self.pids if is_alive(pid)]

    async def until_pids(self, count: int) -> None:
        await eventually(lambda: len(self.pids) >= count)


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    await shell.runner.close()
    assert shell.alive == []


# -- a command -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"), [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", -9)]
)
async def test_exit_codes(shell: Shell, command: str, code: int) -> None:
    ended = await shell.run(command)
    assert (ended.exit_code, ended.timed_out, ended.background) == (code, False, ())


async def test_both_outputs_arrive_in_order(shell: Shell) -> None:
    await shell.run("for n in 1 2 3; do echo out$n; echo err$n >&2; done")
    assert shell.output == b"out1\nerr1\nout2\nerr2\nout3\nerr3\n"


async def test_every_byte_arrives(shell: Shell) -> None:
    await shell.run([sys.executable, "-c", "import os; os.write(1, bytes(range(256)) * 4096)"])
    assert shell.output == bytes(range(256)) * 4096


async def test_stdin_is_empty_and_the_environment_only_what_was_given(shell: Shell) -> None:
    ended = await shell.run(["/usr/bin/env"], WHAT="a=b c", EMPTY="")
    assert ended.exit_code == 0
    lines = shell.output.decode().splitlines()
    assert sorted(lines) == sorted([f"PATH={os.environ['PATH']}", "WHAT=a=b c", "EMPTY="])
    assert (await shell.run("read line")).exit_code == 1


async def test_the_working_folder_is_the_descriptor(shell: Shell, tmp_path: Path) -> None:
    shell.folder = tmp_path / "before"
    shell.folder.mkdir()
    await shell.run("mv ../before ../after; touch here; pwd -P")
    assert shell.output.decode() == f"{tmp_path}/after\n"
    assert (tmp_path / "after" / "here").exists()


async def test_a_command_is_alone_in_its_session_with_usual_signals(shell: Shell) -> None:
    script = """
        import os, signal
        pid = os.getpid()
        print(os.getsid(0) == os.getpgid(0) == pid)
        usual = {n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN}
        print(usual <= {signal.SIGPIPE, signal.SIGXFSZ}, signal.pthread_sigmask(0, []))
        print(sorted(map(int, os.listdir("/proc/self/fd")))[:3])
    """
    await shell.run([sys.executable, "-c", textwrap.dedent(script)])
    assert shell.output.decode().splitlines() == ["True", "True set()", "[0, 1, 2]"]
    await shell.run("yes | head -1; echo ${PIPESTATUS[0]}; ls /proc/self/fd | wc -w")
    assert shell.output.decode().splitlines()[3:] == ["y", "141", "4"]


async def test_what_cannot_be_started_says_so(shell: Shell) -> None:
    with pytest.raises(CommandNotStarted, match="No such file"):
        await shell.run(["/nowhere/program"])
    with pytest.raises(CommandNotStarted, match="Permission denied"):
        await shell.run([str(shell.folder)])
    with pytest.raises(CommandNotStarted, match="too long"):
        await shell.run(f": {'x' * 3_000_000}")
    with pytest.raises(CommandNotStarted, match=r"utf-8, does not have the character '\\ud800'"):
        await shell.run("touch '\ud800'")
    assert (await shell.run("true")).exit_code == 0


async def test_commands_run_at_the_same_time(shell: Shell) -> None:
    # Each waits for all the others, so one after the other they would never end.
    command = "touch $$.here; until [ $(ls *.here | wc -l) = 16 ]; do sleep 0.05; done; exit 7"
    ended = await asyncio.gather(*(shell.run(command) for _ in range(16)))
    assert {each.exit_code for each in ended} == {7}


# -- nothing runs away -----------------------------------------------------------------------------


@pytest.fixture
def lingering(tmp_path: Path) -> Lingering:
    return Lingering(tmp_path)


@pytest.fixture
def hardest(tmp_path: Path, scale: Scale) -> Lingering:
    """What is the hardest to end; all ways in a thorough run."""
    return Lingering(tmp_path, scale(HARDEST, tuple(WAYS)))


async def started(shell: Shell, lingering: Lingering) -> asyncio.Task[Ended]:
    """A command of which everything has started that is to stay."""
    run = asyncio.create_task(shell.run(lingering.command, timeout=100))
    await eventually(lambda: not lingering.missing(), 60)
    assert lingering.are_nearly_all_left()
    return run


async def test_a_time_limit_ends_everything(shell: Shell, hardest: Lingering, scale: Scale) -> None:
    ended = await shell.run(hardest.command, timeout=scale(2.0, 20.0))
    assert (ended.exit_code, ended.timed_out, ended.unkillable) == (None, True, ())
    assert hardest.left() == []
    assert len(hardest.missing()) < len(HARDEST)
    assert (await shell.run("echo next")).exit_code == 0


async def test_a_command_cannot_escape_its_time_limit_by_stopping_its_monitor(shell: Shell) -> None:
    ended = await shell.run("echo $$ >> pids; kill -STOP $PPID; exec sleep 60", timeout=0.5)
    assert ended.timed_out
    assert not any(map(is_alive, shell.pids))
    assert shell.pids


async def test_a_cancellation_ends_everything_before_it_goes_on(
    shell: Shell, lingering: Lingering
) -> None:
    run = await started(shell, lingering)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert lingering.left() == []


async def test_a_second_cancellation_changes_nothing(shell: Shell) -> None:
    ignoring = "trap '' TERM; echo $$ >> pids; while :; do sleep 300; done"
    run = asyncio.create_task(shell.run(f"setsid bash -c {shlex.quote(ignoring)} & sleep 300"))
    await shell.until_pids(1)
    for _ in range(3):
        run.cancel()
        await asyncio.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await run
    assert shell.alive == []


async def test_a_cancellation_just_after_the_end_ends_the_background(shell: Shell) -> None:
    run = asyncio.create_task(shell.run("sleep 300 & echo $! >> pids"))
    await shell.until_pids(1)
    await asyncio.sleep(0.03)
    run.cancel()
    await asyncio.wait([run])
    if run.cancelled():
        assert shell.alive == []


async def test_a_process_that_keeps_forking_is_caught(shell: Shell, scale: Scale) -> None:
    # Each generation starts the next in a new session and ends, so its pid is always a new one.
    (shell.folder / "hop").write_text(
        "trap '' TERM; echo $$ > last$1; [ -e stop ] || setsid bash hop $1 & exit"
    )
    line = "for n in 1 2 3 4; do bash hop $n; done; sleep 300"
    ended = await shell.run(line, timeout=scale(0.4, 1.0))
    assert (ended.timed_out, ended.unkillable) == (True, ())
    before = [(shell.folder / f"last{n}").read_text() for n in (1, 2, 3, 4)]
    await asyncio.sleep(0.3)
    after = [(shell.folder / f"last{n}").read_text() for n in (1, 2, 3, 4)]
    (shell.folder / "stop").touch()
    assert before == after


async def test_a_crowd_is_ended_without_being_asked(shell: Shell) -> None:
    # 2^8 - 1 processes and not one more.
    grow = (
        "grow() { [ $1 = 0 ] || { grow $(($1 - 1)) & grow $(($1 - 1)) & }; trap 'echo x > asked' TERM;"
        " echo $BASHPID >> pids; sleep 300; }; grow 7"
    )
    run = asyncio.create_task(shell.run(grow))
    await shell.until_pids(255)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert shell.alive == []
    assert not (shell.folder / "asked").exists()


async def test_processes_that_end_on_TERM_may_clean_up(shell: Shell) -> None:
    await shell.run("trap 'echo cleaned > mark; exit' TERM; sleep 300 & wait", timeout=0.3)
    assert (shell.folder / "mark").read_text() == "cleaned\n"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_nothing_outlives_the_process_of_the_runner(
    shell: Shell, hardest: Lingering, how: int
) -> None:
    program = """
        import asyncio, os, sys
        from amplifier_support.process.commands import Command, ProcessRunner

        async def main():
            folder = os.open(".", os.O_RDONLY)
            line = Command(["/bin/bash", "-c", sys.argv[1]], {"PATH": os.environ["PATH"]}, folder)
            await ProcessRunner().run(line, timeout=100, output=lambda data: None)

        asyncio.run(main())
    """
    arguments = [sys.executable, "-c", textwrap.dedent(program), hardest.command]
    with subprocess.Popen(arguments, cwd=shell.folder) as child:  # noqa: ASYNC220 - starts at once
        await eventually(lambda: not hardest.missing(), 60)
        child.send_signal(how)
    await eventually(lambda: not hardest.left(), 5.0)


# -- in the background -----------------------------------------------------------------------------


async def test_a_background_child_that_keeps_the_pipe_does_not_stall(shell: Shell) -> None:
    ended = await shell.run("echo before; sleep 300 & echo $! >> pids")
    assert ended.exit_code == 0
    assert list(ended.background) == shell.pids
    assert shell.output == b"before\n"
    assert shell.alive == shell.pids


async def test_background_output_is_still_taken(shell: Shell) -> None:
    await shell.run("(echo $BASHPID >> pids; until [ -e go ]; do sleep 0.02; done; echo late) &")
    (shell.folder / "go").touch()
    await eventually(lambda: bytes(shell.output) == b"late\n")
    await eventually(lambda: shell.runner.background == 0)


async def test_a_server_in_the_background_serves_the_next_command(shell: Shell) -> None:
    (shell.folder / "page").write_text("served")
    serve = f"{sys.executable} -u -m http.server -b 127.0.0.1 0 > log 2>&1 & echo $! >> pids"
    assert (await shell.run(serve)).background
    fetch = """
        import re, time, urllib.request
        while not (found := re.search(r"port (\\d+)", open("log").read())):
            time.sleep(0.05)
        print(urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/page").read())
    """
    ended = await shell.run([sys.executable, "-c", textwrap.dedent(fetch)])
    assert (ended.exit_code, shell.output) == (0, b"b'served'\n")
    await shell.runner.close()
    assert shell.alive == []


async def test_close_ends_what_is_in_the_background(shell: Shell, hardest: Lingering) -> None:
    await shell.run(f"{hardest.command} & true")
    await eventually(lambda: not hardest.missing(), 60)
    await shell.runner.close()
    assert hardest.left() == []
    assert shell.runner.background == 0


async def test_a_runner_can_be_used_again_after_close(shell: Shell) -> None:
    await shell.run("true")
    await shell.runner.close()
    assert (await shell.run("exit 4")).exit_code == 4


# -- the supervisor itself -------------------------------------------------------------------------


def children() -> set[int]:
    """Living children of this process and zombies alike: a killed one stays until it is collected."""
    me = os.getpid()
    return {pid for pid, (parent, _, _) in process_tree.process_table().items() if parent == me}


@contextmanager
def open_files(limit: int, *, free: int) -> Generator[None]:
    """Set the limit on open files, and open as many as leave some free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        with suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(free):
            os.close(opened.pop())
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_commands_run_with_more_open_files_than_select_takes(shell: Shell) -> None:
    with open_files(1200, free=50):
        assert (await shell.run("echo hello")).exit_code == 0
        await shell.runner.close()
    assert shell.output == b"hello\n"


@pytest.mark.parametrize("first", [None, "true", "sleep 300 &"])
async def test_a_limit_on_open_files_is_named_and_leaves_nothing_open(
    shell: Shell, first: str | None
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    # A new supervisor, an idle monitor and a new monitor need different ones; one is the folder.
    for free in {None: (1, 2, 3, 4), "true": (1, 2), "sleep 300 &": (1, 2, 3, 4)}[first]:
        if first is not None:
            await shell.run(first)
        limit = max(map(int, os.listdir("/proc/self/fd"))) + 20
        with (
            open_files(limit, free=free),
            pytest.raises(CommandNotStarted, match=r"open files; raise the limit .* \(ulimit -n\)"),
        ):
            await shell.run("true")
        await shell.runner.close()
        # Before Python 3.11.4, `subprocess` forgets its /dev/null if it cannot open pipes.
        forgotten = 1 if first is None and sys.version_info < (3, 11, 4) else 0
        assert len(os.listdir("/proc/self/fd")) <= before + forgotten
    assert (await shell.run("exit 5")).exit_code == 5


async def running_supervisor(shell: Shell, before: set[int]) -> int:
    """The supervisor; on a busy machine it may end before it is seen, as it is idle."""
    for _ in range(100):
        await shell.run("true")
        found = children() - before
        if len(found) == 1:
            return found.pop()
    raise AssertionError("no supervisor, or several")


async def test_an_idle_supervisor_ends_and_comes_back(shell: Shell) -> None:
    before = children()
    await running_supervisor(shell, before)
    await eventually(lambda: not children() - before)
    assert (await shell.run("exit 5")).exit_code == 5


async def test_a_supervisor_that_was_killed_is_replaced(shell: Shell) -> None:
    before = children()
    for _ in range(3):
        os.kill(await running_supervisor(shell, before), signal.SIGKILL)
        assert (await shell.run("exit 6")).exit_code == 6


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("echo one >&2; echo two >&2; exit 1", "two"),
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "it was killed by signal 9"),
    ],
)
async def test_the_reason_why_a_supervisor_does_not_start_is_reported(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, line: str, reason: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(commands, "_supervisor_command", lambda channel: [BASH, "-c", line])
        with pytest.raises(SupervisorLost, match=f"supervisor does not start: {reason}$"):
            await shell.run("exit 6")
    assert (await shell.run("exit 6")).exit_code == 6


async def test_a_supervisor_waits_for_its_first_command(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def delayed(*args: Any, **kwargs: Any) -> subprocess.Popen[Any]:
        process = start(*args, **kwargs)
        # As the runner may be stopped meanwhile, and anyone may send this signal.
        for _ in range(30):
            time.sleep(supervisor.IDLE_SECONDS / 20)
            process.send_signal(signal.SIGCHLD)
        return process

    monkeypatch.setattr(subprocess, "Popen", delayed)
    assert (await shell.run("exit 6")).exit_code == 6


async def test_one_monitor_serves_commands_that_follow_each_other(shell: Shell) -> None:
    for _ in range(3):
        await shell.run("echo $PPID >> pids")
    assert len(set(shell.pids)) == 1
    both = (
        "echo $PPID >> pids; touch $$.here; until [ $(ls *.here | wc -l) = 2 ]; do sleep 0.02; done"
    )
    await asyncio.gather(shell.run(both), shell.run(both))
    assert len(set(shell.pids[3:])) == 2
    await shell.runner.close()
    await eventually(lambda: not shell.alive)


async def test_an_idle_monitor_that_was_killed_is_replaced(shell: Shell) -> None:
    await shell.run("echo $PPID >> pids")
    os.kill(shell.pids[0], signal.SIGKILL)
    assert (await shell.run("echo $PPID >> pids; exit 6")).exit_code == 6
    assert shell.pids[0] != shell.pids[1]


async def test_a_monitor_that_ends_just_when_it_is_needed_is_replaced(
    shell: Shell, scale: Scale
) -> None:
    for _ in range(scale(3, 20)):
        await shell.run("true")
        await asyncio.sleep(supervisor.IDLE_SECONDS - 0.001)
        assert (await shell.run("exit 7")).exit_code == 7


async def test_a_monitor_serves_again_after_a_command_that_did_not_start(shell: Shell) -> None:
    await shell.run("echo $PPID >> pids")
    with pytest.raises(CommandNotStarted):
        await shell.run(["/nowhere/program"])
    await shell.run("echo $PPID >> pids")
    assert shell.pids[0] == shell.pids[1]


async def test_a_monitor_does_not_serve_while_something_is_left(shell: Shell) -> None:
    await shell.run("echo $PPID >> first; sleep 300 & echo $! >> pids")
    await shell.run("echo $PPID >> first")
    first = (shell.folder / "first").read_text().split()
    assert first[0] != first[1]
    assert shell.alive == shell.pids


async def test_a_command_whose_monitor_was_killed_ends_too(shell: Shell) -> None:
    run = asyncio.create_task(shell.run("echo $PPID >> pids; echo $$ >> pids; sleep 300"))
    await shell.until_pids(2)
    os.kill(shell.pids[0], signal.SIGKILL)
    with pytest.raises(SupervisorLost):
        await run
    await eventually(lambda: not shell.alive)
    assert (await shell.run("true")).exit_code == 0


async def test_nothing_is_left_of_a_hundred_commands(shell: Shell) -> None:
    await shell.run("true")
    descriptors = len(os.listdir("/proc/self/fd"))
    before = children()
    for _ in range(10):
        await asyncio.gather(*(shell.run("sleep 0.01 & true") for _ in range(10)))
    await eventually(lambda: shell.runner.background == 0)
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
    await eventually(lambda: len(children() - before) <= 1)


async def test_a_flood_of_output_costs_no_memory(shell: Shell, scale: Scale) -> None:
    """100 MB by default, 1 GB in a thorough run."""
    size, taken = scale(100_000_000, 1_000_000_000), 0

    def count(data: bytes) -> None:
        nonlocal taken
        taken += len(data)

    descriptor = os.open(shell.folder, os.O_RDONLY)
    command = Command(["/usr/bin/head", "-c", str(size), "/dev/zero"], {}, descriptor)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await shell.runner.run(command, timeout=60, output=count)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    os.close(descriptor)
    assert taken == size
    assert after - before < 20_000


# -- looking at processes --------------------------------------------------------------------------


def test_descendants_are_found_and_spared() -> None:
    with subprocess.Popen([BASH, "-c", "sleep 300 & wait"]) as child:
        while not process_tree.descendants(child.pid):
            time.sleep(0.01)
        found = process_tree.descendants(os.getpid())
        assert child.pid in found
        below = process_tree.descendants(child.pid)
        assert len(below) == 1
        assert set(below) < set(found)
        spared = process_tree.descendants(os.getpid(), spared=frozenset({child.pid}))
        assert not {child.pid, *below} & set(spared)
        for pid in (*below, child.pid):
            os.kill(pid, signal.SIGKILL)


def test_the_table_of_ps_is_that_of_proc() -> None:
    if shutil.which("ps") is None:
        pytest.skip("there is no ps")
    me = os.getpid()
    from_ps, from_proc = (getattr(process_tree, f"_table_from_{name}") for name in ("ps", "proc"))
    assert from_ps()[me] == from_proc()[me]


async def test_without_adoption_the_group_is_ended(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What systems without subreapers get: everything in the group, and what it is parent of."""
    from amplifier_support.process import commands as process

    text = Path(supervisor.__file__).read_text()
    without = tmp_path / "without.py"
    without.write_text(text.replace("self._adopt = adopter()", "self._adopt = lambda: False"))
    monkeypatch.setattr(process, "_SUPERVISOR", without)
    stubborn = (
        "echo $$ >> pids; sleep 300",
        "trap '' TERM INT HUP; echo $$ >> pids; while :; do sleep 300; done",
        "(echo $BASHPID >> pids; sleep 300) & echo $$ >> pids; wait",
        "setsid bash -c 'echo $$ >> pids; sleep 300' & wait; sleep 300",
        "bash -c 'echo $$ >> pids; kill -STOP $$; sleep 300' & sleep 300",
    )
    for count, command in enumerate(stubborn, start=1):
        run = asyncio.create_task(shell.run(command, timeout=0.6))
        await shell.until_pids(count)
        assert (await run).timed_out
        # A process that was not adopted is killed, but not waited for.
        await eventually(lambda: not shell.alive)
    ended = await shell.run("sleep 300 & echo $! >> pids")
    assert list(ended.background) == shell.pids[-1:]
    await shell.runner.close()
    assert shell.alive == []


async def test_a_command_may_have_an_input_and_standard_error_of_its_own(tmp_path: Path) -> None:
    runner, folder = ProcessRunner(), os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "in").write_text("given\n")
    output = bytearray()
    try:
        # Twice, as a second command goes to a monitor that has run one already.
        for number in range(2):
            with (tmp_path / "in").open("rb") as stdin, (tmp_path / "err").open("wb") as stderr:
                streams = (stdin.fileno(), stderr.fileno())
                script = f"""
                    import os, sys
                    print(sys.stdin.read(), sorted(map(int, os.listdir("/proc/self/fd")))[3:])
                    print("bad{number}", file=sys.stderr)
                """
                argv = [sys.executable, "-c", textwrap.dedent(script)]
                command = Command(argv, {"PATH": os.environ["PATH"]}, folder, streams)
                ended = await runner.run(command, timeout=30, output=output.extend)
            assert ended.exit_code == 0
            assert (tmp_path / "err").read_text() == f"bad{number}\n"
        plain = Command([BASH, "-c", "cat; echo also >&2"], {}, folder)
        await runner.run(plain, timeout=30, output=output.extend)
    finally:
        await runner.close()
        os.close(folder)
    # Only the three streams and the descriptor that lists them: nothing else is inherited.
    assert output.decode().split() == ["given", "[3]", "given", "[3]", "also"]
