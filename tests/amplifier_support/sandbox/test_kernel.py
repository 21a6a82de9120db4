"""The kernel layer alone, with real commands: what it refuses, and that ordinary work goes on."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import amplifier_support
from amplifier_support.process.commands import (
    Command,
    CommandNotStarted,
    Ended,
    ProcessRunner,
    SupervisorLost,
)
from amplifier_support.sandbox import available, seccomp, session_state, system_calls
from amplifier_support.sandbox.available import Layer
from amplifier_support.sandbox.kernel_layer import KernelLayer
from amplifier_support.sandbox.policy import PolicyError, parse_policy
from amplifier_support.sandbox.sandbox import Sandbox, SandboxUnavailable
from tests.support.thorough import Scale

pytestmark = pytest.mark.skipif(
    not (sys.platform.startswith("linux") and available.kernel_layer().works),
    reason="the kernel layer does not work here",
)

PACKAGES = str(Path(amplifier_support.__file__).parents[1])


class Box:
    """A sandbox for the folder `work`, next to the home folder `home` of the user."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.work = place / "work"
        self.home = place / "home"
        for folder in (self.work, self.home / ".ssh", self.home / "notes"):
            folder.mkdir(parents=True)
        (self.home / ".ssh" / "id").write_text("secret\n")
        (self.home / "notes" / "a").write_text("note\n")
        self._sandboxes: list[Sandbox] = []

    def sandbox(self, policy: Any = "workspace", **options: Any) -> Sandbox:
        options = {"folder": str(self.work), "hidden": [str(self.home / ".ssh")], **options}
        sandbox = Sandbox(parse_policy(policy), **options)
        self._sandboxes.append(sandbox)
        return sandbox

    async def run(
        self, line: str, sandbox: Sandbox | None = None, **env: str
    ) -> tuple[int | None, str]:
        """The exit code and the output of a shell command."""
        runner = ProcessRunner(sandbox or self.sandbox())
        written = bytearray()
        folder = os.open(self.work, os.O_RDONLY)
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), **env}
        try:
            command = Command(["/bin/sh", "-c", line], environment, folder)
            ended = await runner.run(command, timeout=60, output=written.extend)
        finally:
            os.close(folder)
            await runner.close()
        return ended.exit_code, written.decode()

    def close(self) -> None:
        for sandbox in self._sandboxes:
            sandbox.close()


@pytest.fixture
async def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Box]:
    monkeypatch.setattr(available, "namespace_layer", lambda: Layer(False, "left out by the test"))
    # Another test of this process may have had a run remember the layers of the real kernel.
    monkeypatch.setattr(available, "_memory", None)
    box = Box(tmp_path)
    yield box
    box.close()


def python(code: str) -> str:
    return f"{sys.executable} -c '{code}'"


async def test_only_the_working_directory_can_be_changed(box: Box) -> None:
    (box.home / "notes" / "link").symlink_to(box.work)
    line = "echo x > made; mkdir sub; mv made sub/; ln -s ../home/notes out"
    assert await box.run(line) == (0, "")
    for attempt in (
        "echo x > ../home/notes/b", "echo x > out/b", ": > ../home/notes/a", "rm ../home/notes/a",
        "mkdir ../home/new", "ln ../home/notes/a hard && echo x > hard", "mv sub ../home/",
        "cp sub/made /tmp/made-by-amplifier", f"echo x > /proc/self/root{box.home}/notes/b",
        python(f"import os; os.truncate(\"{box.home}/notes/a\", 0)"),
    ):  # fmt: skip
        code, said = await box.run(attempt)
        assert code, (attempt, said)
    assert sorted(path.name for path in (box.home / "notes").iterdir()) == ["a", "link"]
    assert (box.home / "notes" / "a").read_text() == "note\n"
    assert await box.run("echo x > made", box.sandbox("read-only")) != (0, "")
    assert await box.run("echo x > $TMPDIR/x && cat $TMPDIR/x", box.sandbox("read-only")) == (
        0,
        "x\n",
    )


async def test_credentials_are_out_of_reach_and_other_files_are_not(box: Box) -> None:
    for policy in ("workspace", {"write": [".", str(box.home)]}):
        sandbox = box.sandbox(policy)
        assert await box.run("cat ~/notes/a", sandbox) == (0, "note\n")
        assert (await box.run("cat ~/.ssh/id", sandbox))[0]
        assert (await box.run("echo x > ~/.ssh/id", sandbox))[0]
        assert (await box.run("mv ~/.ssh ~/notes/", sandbox))[0]
    assert await box.run("echo x > ~/notes/b", sandbox) == (0, "")
    assert (await box.run("cat ~/notes/a", box.sandbox({"read": "system"})))[0]
    # What appears next to hidden files can be read from then on, and new hidden files cannot.
    sandbox = box.sandbox(hidden=[str(box.home / ".ssh"), str(box.home / ".netrc")])
    assert await box.run("cat ~/notes/a", sandbox) == (0, "note\n")
    (box.home / "new").write_text("new\n")
    (box.home / ".netrc").write_text("secret\n")
    assert await box.run("cat ~/new", sandbox) == (0, "new\n")
    assert (await box.run("cat ~/.netrc", sandbox))[0]


async def test_a_link_in_place_of_a_writable_folder_is_not_followed(box: Box) -> None:
    sandbox = box.sandbox({"write": [".", "build"]})
    assert await box.run("ln -s ../home/notes build", sandbox) == (0, "")
    assert (await box.run("echo x > build/b", sandbox))[0]
    (box.work / "build").unlink()
    (box.work / "build").mkdir()
    assert await box.run("echo x > build/b", sandbox) == (0, "")


async def test_there_is_no_network_unless_the_policy_has_one(box: Box) -> None:
    make = python("import socket, sys; socket.socket(int(sys.argv[1]), int(sys.argv[2]))")
    families = {
        "inet": "2 1",
        "udp": "2 2",
        "inet6": "10 1",
        "netlink": "16 3",
        "vsock": "40 1",
        "packet": "17 3",
    }
    for name, arguments in families.items():
        code, said = await box.run(f"{make} {arguments}")
        assert (code, "PermissionError" in said) == (1, True), (name, said)
    assert (await box.run(f"{make} 1 1"))[0] == 0
    everywhere = box.sandbox({"network": "all"})
    assert (await box.run(f"{make} 2 2", everywhere))[0] == 0
    assert (await box.run(f"{make} 40 1", everywhere))[0] == 1


CONNECT = """
import os, socket, sys, threading
sys.stdout.reconfigure(line_buffering=True)
def attempt(kind, address, send=False):
    try:
        with socket.socket(socket.AF_UNIX, kind) as ours:
            ours.sendto(b"x", address) if send else ours.connect(address)
            return "connected"
    except OSError as error:
        return type(error).__name__
home = sys.argv[1]
os.symlink(home + "/server", "link")
attempts = [(socket.SOCK_STREAM, home + "/server"), (socket.SOCK_STREAM, "../home/server"),
            (socket.SOCK_STREAM, "link"), (socket.SOCK_SEQPACKET, home + "/server"),
            (socket.SOCK_DGRAM, home + "/datagrams"), (socket.SOCK_DGRAM, home + "/datagrams", True),
            (socket.SOCK_STREAM, chr(0) + "of-amplifier"), (socket.SOCK_STREAM, "missing")]
print(*(attempt(*each) for each in attempts))
with socket.socket(socket.AF_UNIX) as own:
    own.bind("own")
    own.listen(8)
    print(attempt(socket.SOCK_STREAM, "own"), attempt(socket.SOCK_STREAM, os.path.abspath("own")))
    said = []
    thread = threading.Thread(target=lambda: said.append(attempt(socket.SOCK_STREAM, "own")))
    thread.start(); thread.join()
    print(*said)
    # A forked process that outlives its parent is still answered.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            print(attempt(socket.SOCK_STREAM, "own"), attempt(socket.SOCK_STREAM, home + "/server"), flush=True)
        os._exit(0)
    os.wait()
print(socket.socketpair()[0].type == socket.SOCK_STREAM)
"""


async def test_sockets_of_other_programs_cannot_be_connected_to(box: Box) -> None:
    (box.work / "connect.py").write_text(CONNECT)
    with (
        socket.socket(socket.AF_UNIX) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        server.bind(str(box.home / "server"))
        server.listen(8)
        server.setblocking(False)
        datagrams.bind(str(box.home / "datagrams"))
        datagrams.setblocking(False)
        code, said = await box.run(f"{sys.executable} connect.py {box.home}; sleep 0.3")
        with pytest.raises(BlockingIOError):
            server.accept()
        with pytest.raises(BlockingIOError):
            datagrams.recv(1)
        assert code == 0, said
        outside, own, thread, *rest = said.splitlines()
        assert outside.split() == ["PermissionError"] * 7 + ["FileNotFoundError"]
        assert (own, thread) == ("connected connected", "connected")
        assert sorted(rest) == ["True", "connected PermissionError"]
        # The control: with the network, sockets are not supervised.
        (box.work / "link").unlink()
        (box.work / "own").unlink()
        code, said = await box.run(
            f"{sys.executable} connect.py {box.home}; sleep 0.3", box.sandbox({"network": "all"})
        )
        assert said.startswith("connected connected connected"), said


async def test_sockets_in_hidden_folders_of_a_writable_home_are_out_of_reach(box: Box) -> None:
    agent = box.home / ".ssh" / "agent"
    line = python(
        "import socket\n"
        f'for path in ("{agent}", "{box.home}/own"):\n'
        " try: print(socket.socket(socket.AF_UNIX).connect(path))\n"
        " except OSError as error: print(type(error).__name__)"
    )
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as own:
        for one, path in ((server, agent), (own, box.home / "own")):
            one.bind(str(path))
            one.listen()
        said = await box.run(line, box.sandbox({"write": [str(box.home)]}))
    assert said == (0, "PermissionError\nNone\n")


async def test_a_wrong_address_is_an_error_of_the_command_alone(box: Box) -> None:
    (box.work / "wrong.py").write_text(
        "import ctypes, socket\n"
        "libc, own = ctypes.CDLL(None), socket.socket(socket.AF_UNIX)\n"
        "for at in (0, -1, 1 << 63, 1 << 47):\n"
        "    print(libc.connect(own.fileno(), ctypes.c_void_p(at & (1 << 64) - 1), 16))\n"
    )
    assert await box.run(f"{sys.executable} wrong.py") == (0, "-1\n" * 4)


async def test_a_full_queue_does_not_keep_a_command_from_being_ended(
    box: Box, scale: Scale
) -> None:
    line = python(
        "import socket, struct, threading\n"
        'own = socket.socket(socket.AF_UNIX); own.bind("own"); own.listen(0)\n'
        "held = []\n"
        # The limit that the command itself can set does not apply.
        'never = struct.pack("ll", 0, 0)\n'
        "def reset():\n while True:\n"
        "  if held: held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, never)\n"
        "threading.Thread(target=reset, daemon=True).start()\n"
        "while True:\n held.append(socket.socket(socket.AF_UNIX))\n"
        ' try: held[-1].connect("own")\n except BlockingIOError: print("full", flush=True)'
    )
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(scale(0.5, 1)):
            await box.run(line)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is not a command's."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


async def test_other_processes_are_out_of_reach(
    box: Box, stranger: subprocess.Popen[bytes]
) -> None:
    for attempt in (
        f"kill {stranger.pid}",
        f"cat /proc/{stranger.pid}/environ",
        f"readlink /proc/{stranger.pid}/cwd",
        f"prlimit --pid {stranger.pid} --nproc=1",
        "kill $PPID",
    ):
        code, said = await box.run(attempt)
        assert code, (attempt, said)
    assert stranger.poll() is None


SYSTEM_CALLS = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def refused(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(number, *arguments)
    return result == -1 and errno.errorcode[ctypes.get_errno()]
for number, arguments in {calls}:
    print(number, refused(number, *arguments))
"""


async def test_the_system_calls_of_the_filter_are_refused(box: Box) -> None:
    architecture = seccomp.architecture()
    assert architecture is not None
    names = (*seccomp.REFUSED, *seccomp.SHARED_BY_NUMBER)
    calls = [(architecture.calls[name], ()) for name in names if name in architecture.calls]
    # The namespaces of unshare, faking input on a terminal, and snapshots of btrfs and bcachefs.
    calls += [(architecture.calls["unshare"], (0x10000000,))]
    controls = (0x5412, 0x541C, 0x50009401, 0x50009417, 0x4020BC10)
    calls += [(architecture.calls["ioctl"], (0, control, 0)) for control in controls]
    (box.work / "calls.py").write_text(SYSTEM_CALLS.replace("{calls}", repr(calls)))
    code, said = await box.run(f"{sys.executable} calls.py")
    assert code == 0, said
    assert {line.split()[1] for line in said.splitlines()} == {"EPERM"}
    # The numbers of clone3, which hides its flags, and of another architecture.
    (box.work / "calls.py").write_text(
        SYSTEM_CALLS.replace("{calls}", "[(435, ()), (0x40000000, ())]")
    )
    assert (await box.run(f"{sys.executable} calls.py"))[1].split()[1::2] == ["ENOSYS", "ENOSYS"]


async def test_programs_cannot_get_more_rights(box: Box) -> None:
    code, said = await box.run("grep -E 'NoNewPrivs|Seccomp:|CapEff' /proc/self/status")
    facts = dict(line.split() for line in said.splitlines())
    assert (code, facts["NoNewPrivs:"], facts["Seccomp:"]) == (0, "1", "2")
    assert int(facts["CapEff:"], 16) & ~0x4EB == 0


async def test_no_file_becomes_a_program_with_rights_of_its_owner_or_a_device(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt in (
        "chmod u+s file", "chmod 6755 file", "install -m 4755 file other", "cp -p program other",
        "mknod other c 0 0", "mknod other b 8 0",
        python('import os; os.mknod("other", 0o102755)'),
        python('import os; os.open("other", os.O_CREAT, 0o2755)'),
    ):  # fmt: skip
        (box.work / "program").touch()
        (box.work / "program").chmod(0o4755)
        code, said = await box.run(f"touch file; {attempt}")
        assert code, attempt
        assert "not permitted" in said, (attempt, said)
        other = box.work / "other"
        assert not other.exists() or other.stat().st_mode & 0o6000 == 0
        assert (box.work / "file").stat().st_mode & 0o6000 == 0
    # Other modes stay possible, also in what is left in the register of a call without a mode.
    usual = "chmod 1777 file; mkfifo p; mkdir -m 1777 d; cp -r d e; cat file; stat -c %a file d e"
    assert await box.run(usual) == (0, "1777\n1777\n1755\n")
    group = "mkdir -p shared/below && chmod 2755 shared && cp -a shared copy && stat -c %a copy"
    assert (await box.run(group))[0] == (os.geteuid() == 0)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert await box.run(f"rm -rf shared copy; {group}") == (0, "2755\n")


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(version, marks=[] if version in (1, 3, 6) else [pytest.mark.thorough])
        for version in range(1, 7)
    ],
)
async def test_every_version_of_landlock_refuses_all_but_the_gaps_it_names(
    box: Box, monkeypatch: pytest.MonkeyPatch, stranger: subprocess.Popen[bytes], version: int
) -> None:
    if system_calls.landlock_version() < version:
        pytest.skip("the kernel is older")
    monkeypatch.setattr(system_calls, "landlock_version", lambda: version)
    available.kernel_layer.cache_clear()
    try:
        sandbox = box.sandbox()
        gaps = " ".join(sandbox.describe())
        note = box.home / "notes" / "a"
        (box.home / "notes" / "sub").mkdir()
        opened = [f'os.open("{note}", {how} | os.O_TRUNC)' for how in ("0", "3", "os.O_WRONLY")]
        refused = [python(f"import os; {each}") for each in (f'os.truncate("{note}", 0)', *opened)]
        refused += ["echo x > ~/notes/b", "cat ~/.ssh/id", "ln ~/notes/a hard", "mv ~/notes/a ."]
        refused += ["mkdir ~/notes/c", "mkfifo ~/notes/c", "ln -s a ~/notes/c", "rm -r ~/notes/sub"]
        refused += [python('import socket; socket.create_server(("127.0.0.1", 0))')]
        if "send signals" not in gaps:
            assert version >= 6
            refused.append(f"kill -0 {stranger.pid}")
        for attempt in refused:
            assert (await box.run(attempt, sandbox))[0], attempt
        moves = python('import os; os.rename("made", "d/made")')
        code, said = await box.run(f"echo x > made; : > made; mkdir -p d; {moves}", sandbox)
        assert bool(code) == ("cannot be moved between folders" in gaps) == (version < 2), said
        assert note.read_text() == "note\n"
        assert sorted(path.name for path in note.parent.iterdir()) == ["a", "sub"]
    finally:
        available.kernel_layer.cache_clear()


ATTACK = """
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    int parent = getppid(), number = atoi(arguments[1]), copies = 6;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", parent);
    for (;;) {
        /* The thread that has started this process is a few numbers before it. */
        for (int i = 0; i < 200; i++)
            for (int task = getpid() - 3; task < getpid(); task++)
                if (task != parent && syscall(SYS_tgkill, parent, task, number) == 0 && copies)
                    for (write(1, "reached", 7); copies && fork(); copies--);
        DIR *tasks = opendir(path);
        for (struct dirent *entry; tasks && (entry = readdir(tasks));)
            if (atoi(entry->d_name))
                kill(atoi(entry->d_name), number);
        if (tasks)
            closedir(tasks);
    }
}
"""


def compiled(program: str, path: Path) -> Path:
    line = ["cc", "-O2", "-x", "c", "-", "-o", path]
    subprocess.run(line, input=program.encode(), check=True, capture_output=True)
    return path


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler is not installed")
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM])
async def test_a_command_that_attacks_the_thread_that_starts_it_harms_only_itself(
    box: Box, scale: Scale, number: int
) -> None:
    attack = compiled(ATTACK, box.work / f"attack-{os.getpid()}")
    runner = ProcessRunner(box.sandbox())
    folder = os.open(box.work, os.O_RDONLY)

    async def run(*argv: str, limit: float) -> tuple[Ended, bytes]:
        written = bytearray()
        command = Command(argv, {"PATH": os.environ["PATH"]}, folder)
        return await runner.run(command, timeout=limit, output=written.extend), bytes(written)

    try:
        # It reaches the thread in about half of the attempts.
        for _ in range(scale(2, 100)):
            with contextlib.suppress(SupervisorLost):
                ended, _ = await run(str(attack), str(int(number)), limit=0.3)
                assert ended.timed_out
                assert ended.unkillable == ()
            ended, said = await run("/bin/echo", "next", limit=60)
            assert (ended.exit_code, said) == (0, b"next\n")
    finally:
        os.close(folder)
        await runner.close()
    assert running(attack.name) == []


def running(name: str) -> list[int]:
    """Processes that run a program, without those that have ended."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/exe"):
        with contextlib.suppress(OSError):
            if entry.readlink().name == name:
                found.append(int(entry.parent.name))
    return found


async def test_a_sandbox_that_cannot_be_enforced_starts_nothing(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = box.sandbox({"level": "namespaces"})
    with pytest.raises(SandboxUnavailable, match="left out by the test"):
        strict.for_commands()
    with pytest.raises(CommandNotStarted, match="left out by the test"):
        await box.run("touch made", strict)
    warned = box.sandbox({"level": "namespaces", "unavailable": "warn"})
    warned.for_commands()
    assert warned.goes_without == "left out by the test"
    assert await box.run("touch made", warned) == (0, "")
    # The kernel refuses what was found to work.
    sandbox = box.sandbox()
    monkeypatch.setattr(
        KernelLayer, "confinement", lambda self: (_ for _ in ()).throw(OSError(1, "no"))
    )
    with pytest.raises(CommandNotStarted, match="cannot start the sandbox"):
        await box.run("touch other", sandbox)
    assert not (box.work / "other").exists()


async def test_devices_and_sockets_without_connection_are_out_of_reach(box: Box) -> None:
    (box.work / "raw.py").write_text(
        "import socket\n"
        "for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):\n"
        "    for make in (socket.socket, socket.socketpair):\n"
        "        try: make(socket.AF_UNIX, kind)\n"
        "        except PermissionError: print('refused')\n"
    )
    assert await box.run(f"{sys.executable} raw.py") == (0, "refused\n" * 4)
    # What others type into a terminal.
    leader, other = os.openpty()
    try:
        for policy in ("workspace", {"read": "system"}, {"write": ["/dev"]}):
            sandbox = box.sandbox(policy)
            for path in (os.ttyname(other), "/dev/ptmx"):
                code, said = await box.run(f": < {path}", sandbox)
                assert code, path
                assert "Permission denied" in said
            assert (await box.run("ls /dev; : </dev/zero >/dev/null", sandbox))[0] == 0
    finally:
        os.close(leader)
        os.close(other)


async def test_what_a_repository_links_to_is_not_a_folder_of_the_policy(box: Box) -> None:
    (box.work / "build").symlink_to(box.home / "notes")
    with pytest.raises(
        PolicyError, match="'build', a link that leads out of the working directory"
    ):
        box.sandbox({"write": [".", "build"]})
    (box.work / "build").unlink()
    (box.work / "out").mkdir()
    (box.work / "build").symlink_to("out")
    assert await box.run("echo x > build/b", box.sandbox({"write": ["build"]})) == (0, "")


def test_a_folder_that_does_not_exist_is_reported(box: Box) -> None:
    policy = {"write": [".", "later", "../missing", str(box.work / "raw")]}
    missing = box.place / "missing"
    assert box.sandbox(policy).describe()[-1] == (
        f"commands cannot write to '../missing' of 'write' in the sandbox: {str(missing)!r} does not "
        "exist; create it first"
    )
    missing.mkdir()
    assert "does not exist" not in box.sandbox(policy).describe()[-1]


async def test_the_temporary_folder_is_private_and_goes_with_the_session(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_state, "temporary_folder", lambda: str(box.place))
    sandbox = box.sandbox()
    code, said = await box.run(
        'stat -c %a "$TMPDIR"; echo "$TMPDIR"; mkdir -p $TMPDIR/a/b; '
        "cd $TMPDIR/a; ln -s x link; chmod 555 b .; mkdir ../c; chmod 0 ../c",
        sandbox,
    )
    mode, path = said.split()
    assert (code, mode, os.path.dirname(path)) == (0, "700", str(box.place))
    # One that a killed process left is removed by the next, one in use is not.
    left = box.place / "amplifier-commands-left"
    (left / "deep").mkdir(parents=True)
    other = box.sandbox()
    assert other.temporary_folder not in (None, path)
    assert not left.exists()
    assert os.path.isdir(path)
    sandbox.close()
    assert not os.path.exists(path)


# -- ordinary work -------------------------------------------------------------------------

WORK = {
    "pytest": 'mkdir t && echo \'def test_x(tmp_path): (tmp_path / "x").write_text("x")\' > t/test_x.py && '
    f"cd t && {sys.executable} -m pytest -q -n 0 -p no:cacheprovider .",
    "git": "git init -q . && touch a && git add a && "
    "git -c user.name=x -c user.email=x@y commit -qm first && git log --oneline | grep first",
    "wheel": f"{sys.executable} make_wheel.py && {sys.executable} -m venv --without-pip env && "
    f"{sys.executable} -m pip --python env/bin/python install -q --no-index thing-1-py3-none-any.whl && "
    "env/bin/python -c 'import thing'",
    "gcc": "echo 'int main(void) { return 0; }' > a.c && gcc a.c -o a.out && ./a.out",
    "npm": """echo '{"name": "x", "version": "1.0.0", "scripts": {"test": "node -e 1"}}' > package.json && npm test""",
    "multiprocessing": f"{sys.executable} pool.py",
    "devices": "echo x > /dev/null && head -c 3 /dev/urandom > r && head -c 3 /dev/zero > z",
    "pipes": "seq 1000 | sort -R | tee numbers | wc -l && bash -c 'diff <(echo a) <(echo a)'",
}
SLOW = ("pytest", "wheel", "npm")
NEEDS = {"gcc": "gcc", "npm": "npm", "git": "git"}
POOL = """
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(pool.map(abs, [-1, 2]), multiprocessing.Queue(), multiprocessing.Lock())
    with multiprocessing.Manager() as manager, multiprocessing.get_context("forkserver").Pool(1) as pool:
        print(manager.dict(a=1).copy(), pool.map(abs, [-3]))
"""
WHEEL = """
import zipfile
with zipfile.ZipFile("thing-1-py3-none-any.whl", "w") as file:
    file.writestr("thing.py", "")
    file.writestr("thing-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: thing\\nVersion: 1\\n")
    file.writestr("thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    file.writestr("thing-1.dist-info/RECORD", "")
"""


@pytest.mark.parametrize(
    "work",
    [pytest.param(work, marks=[pytest.mark.thorough] if work in SLOW else []) for work in WORK],
)
async def test_ordinary_work_succeeds(box: Box, work: str) -> None:
    if work in NEEDS and shutil.which(NEEDS[work]) is None:
        pytest.skip(f"{NEEDS[work]} is not installed")
    if work == "wheel" and find_spec("pip") is None:
        pytest.skip("pip is not installed")
    (box.work / "pool.py").write_text(POOL)
    (box.work / "make_wheel.py").write_text(WHEEL)
    code, said = await box.run(WORK[work])
    assert code == 0, said


# -- as an ordinary user -------------------------------------------------------------------

ORDINARY = """
import asyncio, os, sys
from amplifier_support.process.commands import Command, ProcessRunner
from amplifier_support.sandbox import available
from amplifier_support.sandbox.policy import PolicyError, parse_policy
from amplifier_support.sandbox.sandbox import Sandbox

async def main():
    available.namespace_layer = lambda: available.Layer(False, "left out")
    sandbox = Sandbox(parse_policy("workspace"), folder=".")
    runner = ProcessRunner(sandbox)
    folder = os.open(".", os.O_RDONLY)
    own = "from socket import *; s = socket(AF_UNIX); s.bind('own'); s.listen(); socket(AF_UNIX).connect('own')"
    line = f'python3 -c "{own}" && echo own; ' + "id -u; stat -c %u /proc/$PPID/mem; echo x > made; echo x > ../outside; python3 -c 'import socket; socket.socket()'"
    command = Command(["/bin/sh", "-c", line], dict(os.environ), folder)
    await runner.run(command, timeout=60, output=lambda data: os.write(1, data))
    await runner.close()
    sandbox.close()

asyncio.run(main())
"""


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root can become another user"
)
async def test_the_kernel_layer_needs_no_rights() -> None:
    interpreter, setpriv = shutil.which("python3", path="/usr/bin"), shutil.which("setpriv")
    if interpreter is None or setpriv is None:
        pytest.skip("there is no python3 in /usr/bin, or no setpriv")
    place = Path(session_state.tempfile.mkdtemp())
    try:
        place.chmod(0o777)
        work = place / "work"
        work.mkdir()
        os.chown(work, 65534, 65534)
        # Below a home directory the other user could not reach it.
        packages = place / "packages"
        shutil.copytree(Path(PACKAGES) / "amplifier_support", packages / "amplifier_support")
        user = ("--reuid=65534", "--regid=65534", "--clear-groups")
        process = await asyncio.create_subprocess_exec(
            *(setpriv, *user, interpreter, "-c", ORDINARY),
            cwd=work, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(packages), "HOME": str(place)},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said = (await process.communicate())[0].decode()
        # The memory of what starts commands belongs to root: not even one of its threads can be read.
        assert said.startswith("own\n65534\n0\n"), said
        assert (work / "made").read_text() == "x\n"
        assert not (place / "outside").exists()
        assert "PermissionError" in said
    finally:
        shutil.rmtree(place)


def test_the_model_reads_what_commands_cannot_do(box: Box) -> None:
    assert box.sandbox().limits == (
        "Commands run in a sandbox: they change files only in the working directory and $TMPDIR, "
        "and have no network. Only commands see their files in $TMPDIR and /tmp, which are removed "
        "when the session ends."
    )
    wider = box.sandbox({"write": [".", "build", "/tmp"], "network": "all"})
    assert wider.limits is not None
    # Where `/tmp` is writable, it is the one that everyone sees.
    assert wider.limits.startswith(
        "Commands run in a sandbox: they change files only in the working directory, build, "
        "/tmp and $TMPDIR. Only commands see their files in $TMPDIR, which are removed when the "
        "session ends."
    )
    assert box.sandbox("off").limits is None


async def test_a_folder_in_which_nothing_can_be_created_is_named(box: Box) -> None:
    hidden = box.work / "state" / "keys"
    hidden.mkdir(parents=True)
    (box.work / "sub").mkdir()
    sandbox = box.sandbox(hidden=[str(hidden)])
    assert (await box.run("echo x > new", sandbox))[0]
    assert (await box.run("echo x > state/new", sandbox))[0]
    assert await box.run("echo x > sub/new", sandbox) == (0, "")
    reasons = [
        f"commands can create and remove nothing directly in {str(folder)!r}, because they must not "
        f"reach {str(hidden)!r} and this machine has no namespaces"
        for folder in (hidden.parent, box.work)
    ]
    assert sandbox.closed_folders == reasons
    assert sandbox.describe()[-2:] == reasons
    assert sandbox.limits is not None
    assert sandbox.limits.endswith("".join(f" C{line[1:]}." for line in reasons))


NESTED = """
import asyncio, os, sys
from amplifier_support.process.commands import Command, ProcessRunner
from amplifier_support.sandbox.policy import WORKSPACE
from amplifier_support.sandbox.sandbox import Sandbox

async def main():
    sandbox = Sandbox(WORKSPACE, folder=".")
    runner = ProcessRunner(sandbox)
    command = Command(["/bin/sh", "-c", sys.argv[1]], dict(os.environ), os.open(".", os.O_RDONLY))
    await runner.run(command, timeout=60, output=lambda data: os.write(1, data))
    await runner.close()
    sandbox.close()

asyncio.run(main())
"""


async def test_a_sandbox_works_in_a_sandbox(box: Box) -> None:
    (box.work / "nested.py").write_text(NESTED)
    line = "echo x > inner; echo x > ../home/notes/b; cat ../home/.ssh/id; echo end"
    code, said = await box.run(f"{sys.executable} nested.py '{line}'", PYTHONPATH=PACKAGES)
    assert (code, said.splitlines()[-1]) == (0, "end"), said
    assert (box.work / "inner").read_text() == "x\n"
    assert not (box.home / "notes" / "b").exists()
    assert "secret" not in said


def test_layers_that_work_are_remembered_until_the_machine_changes(tmp_path: Path) -> None:
    """Another process starts no probe; one on a changed machine, or with a damaged file, does."""
    memory = tmp_path / "cache" / "sandbox.json"
    code = f"""
import json, subprocess, sys
from pathlib import Path
from amplifier_support.sandbox import available
probes = []
run = subprocess.run
available.subprocess.run = lambda *args, **options: (probes.append(1), run(*args, **options))[1]
available.remember_in(Path({str(memory)!r}))
layers = [available.kernel_layer(), available.namespace_layer()]
print(json.dumps([len(probes), [[layer.works, layer.detail] for layer in layers]]))
"""

    def probe() -> tuple[int, Any]:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        probes, layers = json.loads(done.stdout)
        return probes, layers

    first, layers = probe()
    works = all(works for works, _ in layers)
    assert first > 0
    assert probe() == ((0 if works else first), layers)
    if not works:
        return
    assert memory.stat().st_mode & 0o077 == 0
    saved = memory.read_bytes()
    for changed in (saved.replace(b"NoNewPrivs", b"-", 1), saved[:-9], b"[]", b'{"machine": 1}'):
        assert changed != saved
        memory.write_bytes(changed)
        assert probe() == (first, layers)
        assert memory.read_bytes() == saved
