"""Runs the attempts through the program, in a world of their own.

    python -m tests.e2e.escapes.drive '{"level": "kernel", "user": 65534, "program": [...], ...}'

prints what came of it as JSON. As root it is started in mount, pid, network and IPC namespaces that are
its own, so that an attempt which succeeds cannot harm the machine.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from amplifier_support.sandbox import seccomp
from tests.support.cli import child_environment
from tests.support.outside import Outside
from tests.support.plans import mock_plan

_CATALOGUE = Path(__file__).with_name("catalogue.py")
_SOURCES = Path(__file__).parents[3] / "src"
_CLONE_NEWUSER = 0x10000000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _ALLOW = 38, 22, 0x7FFF0000
_SIOCSIFFLAGS, _UP_RUNNING = 0x8914, 0x41
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    if os.geteuid() == 0:
        _start_loopback()
        # No process inside may have the number of one outside by chance.
        Path("/proc/sys/kernel/ns_last_pid").write_text("20000")
    with _place() as place, Outside(place, user=wanted["user"], python=wanted["python"]) as outside:
        done = _run(wanted, outside)
        answers = _answers(outside.work)
        problems = _text(outside.work / "problems")
        beat = _text(outside.work / "heartbeat")
        time.sleep(0.2)
        # What was planted runs now, if it does.
        subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", str(outside.work), "status"],
            capture_output=True,
            check=False,
        )
        left = ["heartbeat"] if _text(outside.work / "heartbeat") != beat else []
        left += ["commondir"] if (outside.work / ".git/commondir").exists() else []
        result = {
            "answers": answers,
            "problems": problems,
            "changes": outside.changes(),
            "left": left,
            **done,
        }
    print(json.dumps(result))


@contextlib.contextmanager
def _place() -> Generator[Path]:
    """A folder that is neither below /tmp nor part of the machine's disk."""
    if os.geteuid() != 0:
        with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
            yield Path(folder)
        return
    place = Path("/srv")
    _mount("tmpfs", place, "tmpfs", b"mode=755")
    # Others could not reach the program below a home directory, or not read its files.
    for name, packages in (("src", _SOURCES), ("site", sysconfig.get_path("purelib"))):
        for folder in (name, f"upper-{name}", f"work-{name}"):
            (place / folder).mkdir()
        layers = f"lowerdir={packages},upperdir={place}/upper-{name},workdir={place}/work-{name}"
        _mount("overlay", place / name, "overlay", layers.encode())
        unreadable = ["!", "-perm", "-o=r", "-exec", "chmod", "a+rX", "{}", "+"]
        subprocess.run(["find", place / name, *unreadable], check=True)
    yield place


def _mount(source: str, target: Path, kind: str, data: bytes) -> None:
    if _LIBC.mount(source.encode(), bytes(target), kind.encode(), 0, data) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {source} at {target}")


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP_RUNNING))


_CONTROLS = (
    *(
        ".envrc",
        ".mcp.json",
        ".pre-commit-config.yaml",
        ".vscode/tasks.json",
        ".github/workflows/a.yaml",
    ),
    *(".claude/settings.json", ".husky/pre-commit", ".amplifier/settings.yaml", "plan.yaml"),
)
_AT_LOGIN = (".bashrc", ".profile", ".zshenv", ".config/fish/config.fish")


def _homes(place: str, outside: Outside) -> tuple[Path, Path]:
    """The home directory of the user, and the folder of the program."""
    if place == "home":
        return outside.work, outside.work / ".config" / "amplifier"
    if place == "parent":
        return outside.home, outside.work / "state" / "amplifier"
    return outside.home, outside.home / ".amplifier"


def _run(wanted: dict[str, Any], outside: Outside) -> dict[str, Any]:
    work = outside.work
    home, own = _homes(wanted["place"], outside)
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    secrets = [home / ".ssh/id", home / ".config/gh/hosts.yml", own / "keys.env"]
    files = [*secrets, work / ".git/hooks/post-checkout", *(work / name for name in _CONTROLS)]
    files += [home / name for name in _AT_LOGIN if home == work]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("secret: text\n" if file in secrets else "")
    controls = {str(work / Path(name).parts[0]) for name in _CONTROLS} - {str(work / ".github")}
    situation = {
        **outside.facts(),
        "home": str(home),
        "secrets": list(map(str, secrets)),
        "controls": sorted(controls | {str(work / ".github/workflows")}),
    }
    (work / "situation.json").write_text(json.dumps(situation))
    # Where nothing can be created.
    for name in ("answers", "problems"):
        (work / name).touch()
    # The folder of this run may be in it.
    others = shutil.ignore_patterns("tmp*")
    shutil.copytree(_CATALOGUE.parent, work / "escapes", ignore=others)
    catalogue = f"{wanted['python']} -I -B escapes/catalogue.py situation.json"
    command = f"{catalogue} > answers 2> problems; echo $? >> problems"
    call = {"name": "bash", "input": {"command": command, "timeout": 100}}
    value = "off" if wanted["level"] == "off" else {"level": wanted["level"]}
    session = {"orchestrator": "loop-basic", "context": "context-simple", "sandbox": value}
    replies = [{"tool_calls": [call]}, "done here"]
    plan = mock_plan(work, replies, tools=[{"module": "tool-bash"}], session=session)
    if wanted["user"] is not None:
        for top in (work, outside.home):
            for path in (top, *top.rglob("*")):
                os.chown(path, wanted["user"], wanted["user"], follow_symlinks=False)
    outside.remember()
    environment = child_environment(own, wanted["environment"])
    environment["HOME"] = str(home)
    line = [*wanted["program"], "run", "-f", str(plan), "go", "--output", "json"]

    def become() -> None:
        if wanted["level"] == "kernel" or not wanted["namespaces"]:
            _refuse_namespaces() if wanted["user"] is None else _without_namespaces()
        if wanted["user"] is not None:
            os.setgroups([])
            os.setgid(wanted["user"])
            os.setuid(wanted["user"])

    ran = subprocess.run(
        line, cwd=work, env=environment, capture_output=True, check=False, timeout=150, preexec_fn=become
    )  # fmt: skip
    return {
        "code": ran.returncode,
        "stdout": ran.stdout.decode(errors="replace"),
        "stderr": ran.stderr.decode(errors="replace"),
    }


def _refuse_namespaces() -> None:
    """Make no namespaces from now on, as in many containers; root stays root."""
    calls = seccomp.ARCHITECTURES[os.uname().machine].calls
    steps = (
        (0x20, 0, 0, 0),
        (0x15, 0, 1, calls["unshare"]),
        (0x06, 0, 0, 0x50001),
        (0x06, 0, 0, _ALLOW),
    )
    filter = b"".join(struct.pack("=HBBI", *step) for step in steps)
    pointer = ctypes.create_string_buffer(filter, len(filter))
    program = struct.pack("@HP", len(steps), ctypes.addressof(pointer))
    if _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or _LIBC.prctl(
        _PR_SET_SECCOMP, 2, program, 0, 0
    ):
        raise OSError(ctypes.get_errno(), "cannot set a filter")


def _without_namespaces() -> None:
    """Enter a user namespace with all users, in which there can be no others."""
    asked, entered = os.pipe(), os.pipe()
    own = os.getpid()
    helper = os.fork()
    if helper == 0:
        os.read(entered[0], 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{own}/{name}").write_text("0 0 100000\n")
        os.write(asked[1], b"x")
        os._exit(0)
    if _LIBC.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "no user namespace")
    os.write(entered[1], b"x")
    os.read(asked[0], 1)
    os.waitpid(helper, 0)
    for name in ("user", "mnt"):
        Path(f"/proc/sys/user/max_{name}_namespaces").write_text("0")
    for descriptor in (*asked, *entered):
        os.close(descriptor)


def _answers(work: Path) -> list[Any]:
    return [json.loads(line) for line in _text(work / "answers").splitlines()]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
