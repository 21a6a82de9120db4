"""The namespace layer with real commands."""

import errno
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from amplifier_support.process.commands import Command, CommandNotStarted, Ended, ProcessRunner
from amplifier_support.sandbox import available, entering, namespaces, seccomp, session_state
from amplifier_support.sandbox.policy import parse_policy
from amplifier_support.sandbox.sandbox import Sandbox
from tests.support.thorough import Scale
from tests.support.waiting import eventually

WORKS = sys.platform.startswith("linux") and available.namespace_layer().works
needs_namespaces = pytest.mark.skipif(not WORKS, reason="there are no namespaces here")


def place_outside() -> Path:
    """A folder that commands see and cannot change: this one, unless it is below `/tmp`."""
    here = Path(__file__).parent
    if not namespaces.is_covered(str(here)):
        return here
    return Path(pwd.getpwuid(os.geteuid()).pw_dir)


class Box:
    """A runner with namespaces, in the folder `work`."""

    def __init__(self, folder: Path, **policy: Any) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        policy = {"level": "namespaces", **policy}
        self.sandbox = Sandbox(parse_policy(policy), folder=str(self.work))
        self.runner = ProcessRunner(self.sandbox)
        self.output = ""

    async def run(self, line: str, timeout: float = 30.0) -> Ended:
        written = bytearray()
        descriptor = os.open(self.work, os.O_RDONLY)
        try:
            command = Command(
                ["/bin/sh", "-c", line], {"PATH": os.environ["PATH"], "HOME": "/"}, descriptor
            )
            return await self.runner.run(command, timeout=timeout, output=written.extend)
        finally:
            os.close(descriptor)
            self.output = written.decode()

    async def close(self) -> None:
        await self.runner.close()
        self.sandbox.close()


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    box = Box(tmp_path)
    yield box
    await box.close()


def commands_like(mark: str) -> list[str]:
    """Processes of the machine that have the mark in their command line."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line:
                found.append(entry.name)
    return found


@needs_namespaces
def test_a_folder_that_another_sandbox_makes_at_the_same_time_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_twice(*args: Any, make: Any = os.mkdir, **more: Any) -> None:
        make(*args, **more)
        make(*args, **more)

    monkeypatch.setattr(os, "mkdir", make_twice)
    place = entering._make(str(tmp_path / "a" / "b"), is_folder=True)
    assert os.path.samestat(os.fstat(place), os.stat(tmp_path / "a" / "b"))
    os.close(place)


@needs_namespaces
async def test_commands_see_only_themselves_and_folders_of_their_own(box: Box) -> None:
    (box.work / "file").write_text("here\n")
    name = uuid4().hex
    await box.run(f"cat file; ls /run; ls /proc | grep -c '^[0-9]'; echo x > /tmp/{name}; pwd")
    lines = box.output.split()
    assert lines[0] == "here"
    assert int(lines[-2]) < 10
    assert lines[-1] == str(box.work)
    await box.run(f"cat /tmp/{name} /var/tmp/{name}; cd ..; ls")
    assert box.output.split() == ["x", "x", "work"]
    assert not Path("/tmp", name).exists()


@needs_namespaces
async def test_a_server_of_one_command_answers_the_next(box: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        there = free.getsockname()[:2]
    serve = f"import socket; s = socket.create_server({there}); s.accept()[0].send(b'mine')"
    await box.run(f'{sys.executable} -c "{serve}" >/dev/null 2>&1 & sleep 0.3')
    ask = f"import socket; print(socket.create_connection({there}).recv(9))"
    await box.run(f'{sys.executable} -c "{ask}"')
    assert "mine" in box.output
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(there).close()


@needs_namespaces
async def test_nothing_outlives_a_time_limit_or_the_runner(box: Box) -> None:
    mark = f"333.{os.getpid()}"
    leave = f"(setsid sleep {mark} &) ; trap '' TERM; setsid sh -c 'sleep {mark} & sleep {mark}'"
    ended = await box.run(leave, timeout=0.5)
    assert ended.timed_out
    assert commands_like(mark) == []
    await box.run(f"setsid sleep {mark} >/dev/null 2>&1 &")
    assert commands_like(mark)
    await box.runner.close()
    assert commands_like(mark) == []


@needs_namespaces
async def test_what_runs_later_is_read_only_in_a_writable_folder(box: Box) -> None:
    for folder in (".amplifier", ".git/hooks", ".git/objects"):
        (box.work / folder).mkdir(parents=True)
    config = "[core]\n\thooksPath = .husky\n[include]\n\tpath = ../shared.config\n\tpath = a\0b\n"
    (box.work / ".git/config").write_text(config)
    (box.work / ".husky").mkdir()
    (box.work / "shared.config").write_text("[core]\n")
    tries = (
        "echo x > .amplifier/plan.yaml; mv .amplifier moved; echo x > .git/hooks/pre-commit; "
        "echo x >> .git/config; rm -f .git/config; mv .git moved; rm -rf .git/hooks"
    )
    tries += "; echo x > .husky/pre-commit; echo x >> shared.config; rm -f shared.config"
    await box.run(f"{tries}; echo x > .git/objects/new; echo x > new")
    assert (box.work / ".git/config").read_text() == config
    assert (box.work / "shared.config").read_text() == "[core]\n"
    assert (box.work / ".git/objects/new").exists()
    assert (box.work / "new").exists()
    names = {".amplifier", ".git", ".husky", "new", "shared.config"}
    assert {path.name for path in box.work.iterdir()} == names
    assert not list((box.work / ".husky").iterdir())
    assert not list((box.work / ".amplifier").iterdir())
    assert not list((box.work / ".git/hooks").iterdir())


def contents(folder: Path) -> dict[str, str]:
    """Every entry below a folder: the target of a link, the text of a file.

    Modes of folders may have changed; they are no matter of the tests.
    """
    found: dict[str, str] = {}
    for path, folders, _ in os.walk(folder):
        for name in folders:
            if not os.path.islink(os.path.join(path, name)):
                os.chmod(os.path.join(path, name), 0o755)
    for path in folder.rglob("*"):
        text = os.readlink(path) if path.is_symlink() else "" if path.is_dir() else path.read_text()
        found[str(path.relative_to(folder))] = text
    return found


def is_refused(output: str) -> bool:
    """Return True if a server was not reached; an ordinary user may not even open what hides it."""
    return "ConnectionRefusedError" in output or "PermissionError" in output


ATTACK = """
for path in $PATHS; do
    echo evil >> $path; echo evil > $path/evil; chmod 600 $path; rm -rf $path; mv $path moved
    ln -sfnT /etc $path; ln -fT new $path; mv -T new $path
done 2>/dev/null; echo x > done
"""


@needs_namespaces
async def test_links_to_what_runs_later_are_kept_with_what_they_lead_to(tmp_path: Path) -> None:
    git = tmp_path / "template"
    for name in ("objects", "refs", "hooks", "worktrees/w"):
        (git / name).mkdir(parents=True)
    files = {"HEAD": "ref: x\n", "config": "[core] hooksPath = named/hooks\n"}
    for name, text in {**files, "worktrees/w/commondir": "../..\n"}.items():
        (git / name).write_text(text)
    guarded = ("config", "hooks", "worktrees/w/commondir", "worktrees", "")
    for number, (entry, place) in enumerate(
        {
            ".git -> inner/real": "inner/real",
            ".git: gitdir: ./inner/real": "inner/real",
            ".git: gitdir: inner/real/worktrees/w": "inner/real",
            "bare": "",
            "links": ".git",
        }.items()
    ):
        (tmp_path / str(number)).mkdir()
        box = Box(tmp_path / str(number))
        (box.work / "named/hooks").mkdir(parents=True)
        (box.work / "scripts").mkdir()
        (box.work / "scripts/check").write_text("true\n")
        shutil.copytree(git, box.work / place, dirs_exist_ok=True)
        paths = [f"{place or '.'}/{name}" for name in guarded if place or name]
        paths += ["named/hooks", "named"]
        (box.work / place / "hooks/pre-commit").symlink_to(box.work / "scripts/check")
        paths += ["scripts/check"]
        name, _, target = entry.partition(": ")
        link, _, linked = entry.partition(" -> ")
        if linked:
            (box.work / link).symlink_to(linked)
        elif target:
            (box.work / name).write_text(f"{target}\n")
        if entry == "links":
            for name in ("config", "hooks"):
                shutil.move(box.work / ".git" / name, box.work / f"scripts/{name}")
                (box.work / ".git" / name).symlink_to(f"../scripts/{name}")
                paths.append(f"scripts/{name}")
            (box.work / ".envrc").symlink_to("scripts/envrc")
            (box.work / "scripts/envrc").write_text("true\n")
            paths += [".envrc", "scripts/envrc", "scripts"]
        before = contents(box.work)
        await box.run(f"PATHS='.git {' '.join(paths)}'; {ATTACK}")
        await box.close()
        assert (box.work / "done").exists()
        after = contents(box.work)
        free = ("HEAD", "objects", "refs")
        kept = {name: text for name, text in before.items() if not name.endswith(free)}
        assert kept.items() <= after.items(), entry
        new = [name for name in after.keys() - before.keys() if not name.startswith("moved")]
        assert not [name for name in new if "hooks" in name], entry


@needs_namespaces
async def test_start_up_files_are_read_only_in_a_writable_home(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(box.work))
    (box.work / "dotfiles/config/fish").mkdir(parents=True)
    (box.work / "dotfiles/hooks").mkdir()
    (box.work / ".config").symlink_to("dotfiles/config")
    (box.work / "dotfiles/bashrc").write_text("true\n")
    (box.work / ".bashrc").symlink_to("dotfiles/bashrc")
    (box.work / ".profile").write_text("true\n")
    (box.work / ".gitconfig").write_text("[core]\n\thooksPath = ~/dotfiles/hooks\n")
    before = contents(box.work)
    paths = ".bashrc .profile .gitconfig .config .config/fish dotfiles/bashrc dotfiles/hooks"
    await box.run(f"PATHS='{paths} dotfiles/config/fish dotfiles/config dotfiles'; {ATTACK}")
    assert {**before, "done": "x\n"}.items() <= contents(box.work).items()
    new = {name for name in contents(box.work).keys() - before.keys() if "moved" not in name}
    # Folders that only lead there may get other files.
    assert new - {"dotfiles/evil", "dotfiles/config/evil"} == {"done"}
    await box.run("touch .zshenv .inputrc")
    assert box.sandbox.take_made() == [str(box.work / ".zshenv")]


SECRETS = (
    *(
        ".ssh/id",
        ".codex/auth.json",
        ".claude/.credentials.json",
        ".claude.json",
        ".gemini/oauth_creds.json",
    ),
    *(".config/containers/auth.json", ".config/glab-cli/config.yml", ".config/rclone/rclone.conf"),
    *(
        ".config/sops/age/keys.txt",
        ".m2/settings.xml",
        ".cargo/credentials",
        ".gradle/gradle.properties",
    ),
    *(
        ".composer/auth.json",
        ".cache/huggingface/token",
        ".databrickscfg",
        ".my.cnf",
        ".s3cfg",
        ".boto",
    ),
    *(".oci/config", ".terraformrc", ".config/BraveSoftware/a", ".var/app/org.mozilla.firefox/a"),
    *(
        "snap/firefox/common/a",
        ".thunderbird/a",
        ".config/mutt/a",
        ".bash_history",
        ".config/gh/hosts.yml",
    ),
)
OPEN = (
    ".cargo/bin/tool",
    ".m2/repository/a",
    ".config/app/a",
    ".gitconfig",
    ".cache/huggingface/hub/a",
)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home directory that no folder of the namespaces hides."""
    with tempfile.TemporaryDirectory(dir=place_outside()) as folder:
        monkeypatch.setenv("HOME", folder)
        yield Path(folder)


@pytest.mark.parametrize("level", ["kernel", "namespaces"])
@pytest.mark.parametrize("write", [[], ["~"]], ids=["read-only-home", "writable-home"])
@needs_namespaces
async def test_credentials_of_many_programs_are_hidden(
    level: str, write: list[str], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if level == "kernel":
        monkeypatch.setattr(
            available, "namespace_layer", lambda: available.Layer(False, "left out")
        )
    for name in (*SECRETS, *OPEN, "elsewhere"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"text-of {name}\n")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(home / "elsewhere"))
    box = Box(tmp_path, level=level, write=[".", *write])
    try:
        names = " ".join(f"{home}/{name}" for name in (*SECRETS, *OPEN, "elsewhere"))
        # A folder of credentials that appears later, in the background.
        later = f"until test -e {home}/.aws/credentials; do sleep 0.1; done; cat {home}/.aws/credentials"
        await box.run(f"cat {names}; ({later} > late 2>&1; echo end >> late) &")
        seen = [line.split()[1] for line in box.output.splitlines() if line.startswith("text-of")]
        assert seen == list(OPEN)
        (home / ".aws").mkdir()
        (home / ".aws/credentials").write_text("text-of aws")
        late = box.work / "late"
        await eventually(lambda: late.exists() and late.read_text().endswith("end\n"))
        # Nothing can hide what appears in a folder that commands may change.
        assert ("text-of" in late.read_text()) == bool(write and level == "namespaces")
        await box.runner.close()
        await box.run(f"cat {home}/.aws/credentials")
        assert "text-of" not in box.output
    finally:
        await box.close()


@needs_namespaces
async def test_files_can_be_created_next_to_what_is_hidden(home: Path) -> None:
    """In the home directory, which is also a repository."""
    for name in (".ssh/id", ".git/hooks/pre-commit", ".git/config", ".amplifier/settings.yaml"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("before\n")
    sandbox = Sandbox(parse_policy("workspace"), folder=str(home))
    box = Box.__new__(Box)
    box.work, box.sandbox, box.runner = home, sandbox, ProcessRunner(sandbox)
    try:
        await box.run(
            "echo x > new; mkdir made; echo x > .git/hooks/pre-commit; echo x >> .git/config"
        )
        await box.run("echo x > .amplifier/settings.yaml; mv .ssh open; mv .git g; cat new open/id")
        assert box.output.startswith("x\n") or "\nx\n" in box.output
        assert "before" not in box.output
        texts = {path.read_text() for path in (home / ".git").rglob("*") if path.is_file()}
        assert texts == {"before\n"}
        assert (home / ".amplifier/settings.yaml").read_text() == "before\n"
        assert {"new", "made", ".ssh", ".git"} <= set(os.listdir(home))
        assert sandbox.closed_folders == []
    finally:
        await box.close()


@needs_namespaces
async def test_what_commands_make_that_runs_later_is_reported_once(box: Box) -> None:
    (box.work / ".envrc").write_text("")
    await box.run("echo x > .envrc; mkdir -p .vscode .github/workflows")
    made = [f"{box.work}/.vscode", f"{box.work}/.github/workflows"]
    assert box.sandbox.take_made() == made
    assert box.sandbox.take_made() == []
    assert (box.work / ".envrc").read_text() == ""


@needs_namespaces
async def test_a_policy_may_name_what_runs_later(tmp_path: Path) -> None:
    box = Box(tmp_path, write=[".", ".github/workflows"])
    for name in (".github/workflows", ".vscode"):
        (box.work / name).mkdir(parents=True)
    try:
        await box.run("echo x > .github/workflows/a; echo x > .vscode/a; mv .github g")
        assert (box.work / ".github/workflows/a").exists()
        assert not list((box.work / ".vscode").iterdir())
    finally:
        await box.close()


@pytest.mark.parametrize("write", [["."], [], ["~"], ["/"]], ids=str)
@needs_namespaces
async def test_a_shown_folder_is_visible_in_a_hidden_one(
    write: list[str], home: Path, tmp_path: Path
) -> None:
    for name in ("state/keys", "state/output/long", ".claude/here/text"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"text of {name}\n")
    for folder in (tmp_path, home / ".claude/here"):
        sandbox = Sandbox(
            parse_policy({"write": write}),
            folder=str(folder),
            hidden=[str(home / "state")],
            readable=[str(home / "state/output")],
        )
        box = Box.__new__(Box)
        box.work, box.sandbox, box.runner = folder, sandbox, ProcessRunner(sandbox)
        try:
            await box.run(f"cat {home}/state/output/long {home}/state/keys; cat text")
            assert "text of state/output/long" in box.output, box.output
            assert "text of state/keys" not in box.output
            assert ("text of .claude/here/text" in box.output) == (folder != tmp_path)
        finally:
            await box.close()


@needs_namespaces
async def test_what_commands_need_to_start_is_visible_in_their_own_tmp(tmp_path: Path) -> None:
    programs, plans, other = (tmp_path / name for name in ("env/bin", "plans", "other"))
    for folder in (programs, plans, other, tmp_path / "env/lib"):
        folder.mkdir(parents=True)
    for path in (programs / "tool", other / "server", tmp_path / "unrelated"):
        path.write_text(
            '#!/bin/sh\ncat "$(dirname "$0")/../lib/text" 2>/dev/null || echo started\n'
        )
        path.chmod(0o755)
    (tmp_path / "env/lib/text").write_text("of the environment\n")
    (plans / "script.sh").write_text("echo a script of the plan\n")
    box = Box(tmp_path)
    box.sandbox = Sandbox(
        parse_policy("workspace"), folder=str(box.work), plan_files=[str(plans / "plan.yaml")]
    )
    box.runner = ProcessRunner(box.sandbox)

    async def run(*argv: str) -> str:
        written = bytearray()
        folder = os.open(box.work, os.O_RDONLY)
        command = Command([*argv], {"PATH": f"{programs}:{os.environ['PATH']}"}, folder)
        await box.runner.run(command, timeout=30, output=written.extend)
        os.close(folder)
        return written.decode()

    try:
        line = f"tool; sh {plans}/script.sh; ls {other} {tmp_path}/unrelated"
        said = await run("/bin/sh", "-c", line)
        assert said.startswith("of the environment\na script of the plan\n")
        assert said.count("No such file") == 2
        # Known only when it is started, in namespaces of its own.
        assert await run(str(other / "server")) == "started\n"
    finally:
        await box.close()


@needs_namespaces
async def test_the_working_directory_keeps_its_place_in_a_writable_folder(tmp_path: Path) -> None:
    box = Box(tmp_path, write=[".."])
    (box.work / ".git/hooks").mkdir(parents=True)
    try:
        await box.run(
            "mv ../work ../moved; cd ..; mkdir -p work/.git/hooks; echo x > work/.git/hooks/x"
        )
        assert not list((box.work / ".git/hooks").iterdir())
        assert not (tmp_path / "moved").exists()
    finally:
        await box.close()


SERVER = """
import socket, sys
one = socket.socket(socket.AF_UNIX)
one.bind(sys.argv[1])
one.listen()
print("ready", flush=True)
sys.stdin.read()
"""


def start_server(name: str, folder: Path) -> subprocess.Popen[bytes]:
    """A process that listens on a UNIX socket, named from its folder, until its input ends."""
    line = [sys.executable, "-c", SERVER, name]
    return subprocess.Popen(line, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@needs_namespaces
async def test_servers_on_sockets_of_the_machine_are_hidden(box: Box) -> None:
    folder = place_outside()
    names = (f".socket-{os.getpid()}", f".relative-{os.getpid()}")
    servers = [start_server(name, folder) for name in (str(folder / names[0]), names[1])]
    try:
        for server in servers:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
        for name in names:
            connect = f"import socket; socket.socket(socket.AF_UNIX).connect('{folder / name}')"
            await box.run(f'{sys.executable} -c "{connect}"; echo code $?')
            assert is_refused(box.output), name
            assert "code 1" in box.output
    finally:
        for server in servers:
            server.communicate()
        for name in names:
            (folder / name).unlink(missing_ok=True)


@needs_namespaces
async def test_servers_are_hidden_in_folders_that_commands_need_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    address = str(folder / "socket")
    server = start_server(address, folder)
    box = Box(tmp_path)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        connect = f"import socket; socket.socket(socket.AF_UNIX).connect('{address}')"
        # A file of their own at this path is theirs.
        await box.run(f"mkdir -p {folder}; echo mine > {address}")
        await box.runner.close()
        await box.run(f"cat {address}; rm -r {folder}")
        assert box.output == "mine\n"
        # Its text alone does not make a file visible, either.
        await box.run(address)
        await box.run(f'{sys.executable} -c "{connect}"')
        assert "FileNotFoundError" in box.output
        monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{folder}")
        await box.run(f'{sys.executable} -c "{connect}"')
        assert is_refused(box.output)
    finally:
        await box.close()
        server.communicate()


MOUNTED_TWICE = """
import asyncio, ctypes, os, subprocess, sys
from pathlib import Path
from amplifier_support.sandbox import available
from tests.amplifier_support.sandbox.test_kernel import Box
from tests.amplifier_support.sandbox.test_namespaces import SERVER

def bind(path, place):
    # The program mount is not part of every system.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(os.fsencode(path), os.fsencode(place), None, 4096, None):
        raise OSError(ctypes.get_errno(), "cannot mount", place)

async def main(place, level):
    if level == "kernel":
        available.namespace_layer = lambda: available.Layer(False, "left out")
    box = Box(place)
    for name, path in (("alias", box.home), ("part", box.home / ".ssh")):
        (place / name).mkdir()
        bind(path, place / name)
    line = ["unshare", "--net", sys.executable, "-c", SERVER, place / "socket"]
    server = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    server.stdout.readline()
    (place / "mounted").touch()
    bind(place / "socket", place / "mounted")
    connect = f"import socket; socket.socket(socket.AF_UNIX).connect('{place}/mounted')"
    line = f'cat {place}/alias/notes/a; cat {place}/alias/.ssh/id {place}/part/id; '
    print(await box.run(f'{line} {sys.executable} -c "{connect}" || echo refused'))
    server.communicate()
    box.close()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.parametrize("level", ["kernel", "namespaces"])
@needs_namespaces
def test_what_is_mounted_a_second_time_is_hidden_as_well(level: str, home: Path) -> None:
    """Credentials, and the socket of a server that another network hides."""
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    line = ["unshare", "--mount", *rights, sys.executable, "-c", MOUNTED_TWICE, home, level]
    done = subprocess.run(
        line, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert "note" in done.stdout
    assert "refused" in done.stdout
    assert "secret" not in done.stdout


@needs_namespaces
async def test_a_program_that_is_written_to_loses_its_owners_rights(box: Box) -> None:
    program = box.work / "program"
    program.touch()
    program.chmod(0o4755)
    await box.run("echo x >> program")
    assert program.read_text() == "x\n"
    assert program.stat().st_mode & 0o7777 == 0o755


COMING_AND_GOING = """
import os, socket, sys
while True:
    for name in "abcdefgh":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(sys.argv[1] + name)
            one.listen()
        os.unlink(sys.argv[1] + name)
"""


@pytest.fixture
def passing_sockets() -> Iterator[None]:
    """Sockets of other programs, in a folder that commands see."""
    folder = place_outside()
    names = [f".passing-{os.getpid()}-{number}" for number in range(2)]
    line = [sys.executable, "-c", COMING_AND_GOING]
    others = [subprocess.Popen([*line, folder / name]) for name in names]
    yield
    for other in others:
        other.kill()
        other.wait()
    for name in names:
        for left in folder.glob(f"{name}*"):
            left.unlink()


@needs_namespaces
@pytest.mark.usefixtures("passing_sockets")
async def test_sockets_that_come_and_go_keep_no_command_from_starting(
    box: Box, scale: Scale
) -> None:
    for _ in range(scale(6, 20)):
        assert (await box.run("exit 7")).exit_code == 7
        await box.runner.close()


@needs_namespaces
async def test_links_in_place_of_folders_do_not_lead_out_of_later_commands(tmp_path: Path) -> None:
    outside = place_outside() / f".outside-{os.getpid()}"
    outside.mkdir()
    box = Box(tmp_path, write=[".", "build"])
    (box.work / "build").mkdir()
    try:
        await box.run(
            f"rmdir build; ln -s {outside} build; mv $TMPDIR/tmp $TMPDIR/old; ln -s {outside} $TMPDIR/tmp"
        )
        await box.runner.close()
        with pytest.raises(CommandNotStarted, match="a command put a link in place of the folder"):
            await box.run("echo x > /tmp/escaped; echo x > build/escaped")
        (Path(box.sandbox.temporary_folder or "") / "tmp").unlink()
        await box.run("echo x > /tmp/escaped; echo x > build/escaped")
        other = box.sandbox.with_policy(parse_policy({"write": ["build"]}))
        assert other.written == (str(box.work / "build"),)
        assert list(outside.iterdir()) == []
    finally:
        await box.close()
        shutil.rmtree(outside)


@needs_namespaces
async def test_the_folder_for_temporary_files_keeps_its_place_in_a_writable_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, outside = Box(tmp_path), tmp_path / "outside"
    outside.mkdir()
    monkeypatch.setattr(session_state, "temporary_folder", lambda: str(box.work))
    try:
        await box.run(
            f"mv $TMPDIR moved; ln -s {outside} $TMPDIR; mv $TMPDIR/proxies x; echo x > $TMPDIR/x"
        )
        await box.runner.close()
        assert (await box.run("cat $TMPDIR/x; test ! -w $TMPDIR/proxies")).exit_code == 0
        assert box.output == "x\n"
        assert list(outside.iterdir()) == []
    finally:
        await box.close()


@needs_namespaces
async def test_a_folder_that_was_exchanged_is_not_entered(box: Box, tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        # Readable by the policy, but not what is mounted inside at this path.
        command = Command(["/bin/sh", "-c", "pwd; ls"], {"PATH": os.environ["PATH"]}, descriptor)
        with pytest.raises(Exception, match="No such file"):
            await box.runner.run(command, timeout=10, output=lambda data: None)
    finally:
        os.close(descriptor)


REFUSING = """
import struct, sys
from amplifier_support.sandbox import available, namespaces, seccomp, system_calls
number, error = int(sys.argv[1]), int(sys.argv[2])
filter = b"".join(struct.pack("=HBBI", *each) for each in (
    (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7FFF0000)))
program = system_calls._Program(len(filter) // 8, filter)
system_calls.libc.prctl(38, 1, 0, 0, 0)
assert system_calls.libc.prctl(22, 2, system_calls.ctypes.byref(program), 0, 0) == 0
available._SWITCHES = ((sys.argv[3], "1", "AppArmor restricts user namespaces"),)
print(available.kernel_layer().works, available.kernel_layer().detail)
print(available.namespace_layer().works, available.namespace_layer().detail)
"""


def layers_without(call: int, error: int, setting: Path) -> list[str]:
    """The kernel layer and the namespace layer where the system refuses a call."""
    line = [sys.executable, "-c", REFUSING, str(call), str(error), str(setting)]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.splitlines()


@needs_namespaces
def test_namespaces_that_can_be_made_but_not_used_are_unavailable(tmp_path: Path) -> None:
    """As on a system whose AppArmor takes the capabilities in new user namespaces away."""
    setting = tmp_path / "setting"
    setting.write_text("1\n")
    architecture = seccomp.architecture()
    assert architecture is not None
    kernel, own = layers_without(architecture.calls["mount"], errno.EACCES, setting)
    assert kernel.startswith("True Landlock")
    assert own == "False AppArmor restricts user namespaces"
    setting.write_text("0\n")
    own = layers_without(architecture.calls["mount"], errno.EACCES, setting)[1]
    assert own.startswith(
        "False the system refuses to make namespaces: PermissionError: [Errno 13]"
    )


@needs_namespaces
def test_a_kernel_that_offers_landlock_and_refuses_it_has_no_sandbox(tmp_path: Path) -> None:
    restrict_self = 446
    kernel, own = layers_without(restrict_self, errno.ENOSYS, tmp_path / "none")
    assert kernel.startswith(
        "False no command starts with Landlock and seccomp here (OSError: [Err"
    )
    assert own.startswith("False")


def test_a_policy_with_host_names_needs_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    if not available.kernel_layer().works:
        pytest.skip("there is no kernel layer here")
    monkeypatch.setattr(
        available, "namespace_layer", lambda: available.Layer(False, "they are switched off")
    )
    policy = parse_policy({"network": ["example.com"]})
    assert policy is not None
    assert available.missing(policy) == (
        "the network by host name needs namespaces: they are switched off"
    )
