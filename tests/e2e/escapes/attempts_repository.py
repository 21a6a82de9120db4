"""Planting what runs later, outside of the sandbox: in the repository and its settings."""

import os
import shutil
import subprocess
from pathlib import Path

from catalogue import Refused, Situation, any_of, attempt, checked, libc

_RENAME_EXCHANGE, _AT_FDCWD = 2, -100

_EVIL = "#!/bin/sh\necho escaped > '{outside}/escape-{number}'\n"


def _plant(path: str, at: Situation, number: int) -> None:
    Path(path).write_text(_EVIL.format(outside=at.outside, number=number))
    Path(path).chmod(0o755)


@attempt(101, "namespaces", "plant a hook of git")
def hook(at: Situation) -> None:
    _plant(".git/hooks/pre-commit", at, 101)


@attempt(102, "namespaces", "change a hook of git")
def changed_hook(at: Situation) -> None:
    _plant(".git/hooks/post-checkout", at, 102)


@attempt(103, "namespaces", "set a program in the configuration of git")
def configuration(at: Situation) -> None:
    _plant("program-103", at, 103)
    with open(".git/config", "a") as file:
        file.write(f"[core]\n\tfsmonitor = {at.workspace}/program-103\n")


@attempt(104, "namespaces", "set it with git itself, which replaces the file")
def configured(at: Situation) -> None:
    line = ["git", "config", "core.fsmonitor", f"{at.workspace}/program-103"]
    done = subprocess.run(line, capture_output=True, check=False)
    if done.returncode:
        raise Refused(done.stderr.decode())


@attempt(105, "namespaces", "put another folder in the place of .git")
def other_repository(at: Situation) -> None:
    def move(name: str) -> None:
        os.rename(name, f"{name}-105")
        os.mkdir(name)

    any_of([lambda n=n: move(n) for n in (".git", ".git/hooks")])


@attempt(106, "namespaces", "plant a plan")
def plan(at: Situation) -> None:
    any_of(
        [
            lambda: Path(".amplifier/settings.yaml").write_text("escaped: true\n"),
            lambda: os.rename(".amplifier", ".amplifier-106"),
        ]
    )


@attempt(107, "namespaces", "have git read its configuration from another folder")
def common_folder(at: Situation) -> None:
    os.mkdir("common-107")
    Path(".git/commondir").write_text("../common-107\n")
    raise Refused("only what is left at the end can tell")


@attempt(
    110, "namespaces", "change what runs later: tasks of editors, settings of agents, the plan"
)
def controls(at: Situation) -> None:
    def change(path: str) -> None:
        name = os.path.join(path, "escape-110") if os.path.isdir(path) else path
        with open(name, "a") as file:
            file.write("escaped: true\n")

    any_of([lambda p=p: change(p) for p in at.controls])


@attempt(
    111, "namespaces", "put something else in the place of what runs later, or of a folder above"
)
def replaced(at: Situation) -> None:
    def exchange(path: str) -> None:
        Path("new-111").mkdir(exist_ok=True)
        new, old = b"new-111", path.encode()
        checked(libc.renameat2(_AT_FDCWD, new, _AT_FDCWD, old, _RENAME_EXCHANGE))

    places = [*at.controls, f"{at.workspace}/.github", f"{at.workspace}/.git"]
    ways = (
        lambda path: os.rename(path, f"{at.workspace}/moved-111"),
        exchange,
        lambda path: shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path),
        lambda path: os.replace(_fresh("file-111"), path),
    )
    any_of([lambda w=way, p=path: w(p) for way in ways for path in places])


def _fresh(name: str) -> str:
    Path(name).write_text("escaped\n")
    return name


@attempt(112, "namespaces", "write to the configuration of git through a hard link or a descriptor")
def linked_configuration(at: Situation) -> None:
    def by_link() -> None:
        os.link(".git/config", "link-112")
        with open("link-112", "a") as file:
            file.write("[core]\n\tfsmonitor = escaped\n")

    def by_descriptor() -> None:
        descriptor = os.open(".git/config", os.O_RDONLY)
        with open(f"/proc/self/fd/{descriptor}", "a") as file:
            file.write("[core]\n\tfsmonitor = escaped\n")

    def by_folder() -> None:
        descriptor = os.open(".git", os.O_PATH)
        os.rename("config", "config-112", src_dir_fd=descriptor, dst_dir_fd=descriptor)

    any_of([by_link, by_descriptor, by_folder])


@attempt(113, "kernel", "read a hidden file")
def secret(at: Situation) -> str:
    def read(path: str) -> None:
        text = Path(path).read_text()
        if not text:
            raise Refused("it is empty")

    def linked(path: str, number: int) -> None:
        os.link(path, f"link-113-{number}")
        read(f"link-113-{number}")

    def symbolic(path: str, number: int) -> None:
        os.symlink(os.path.dirname(path), f"symbolic-113-{number}")
        read(f"symbolic-113-{number}/{os.path.basename(path)}")

    roots = ("", "/proc/self/root", "/proc/1/root", f"/proc/{os.getppid()}/root")
    numbered = list(enumerate(at.secrets))
    any_of(
        [
            *(lambda p=f"{root}{path}": read(p) for root in roots for path in at.secrets),
            *(lambda p=path, n=number: linked(p, n) for number, path in numbered),
            *(lambda p=path, n=number: symbolic(p, n) for number, path in numbered),
        ]
    )


@attempt(114, "kernel", "move a hidden file, or a folder above it, for the next command")
def moved_secret(at: Situation) -> None:
    def move(path: str) -> None:
        os.rename(path, f"{at.workspace}/moved-114")

    above = {os.path.dirname(path) for path in at.secrets} - {at.workspace, at.home}
    above |= {os.path.dirname(path) for path in above} - {at.workspace, at.home, "/"}
    inside = [path for path in (*at.secrets, *above) if path.startswith(f"{at.workspace}/")]
    any_of([lambda p=path: move(p) for path in inside])


@attempt(115, "kernel", "uncover hidden files, or take the mounts of what is read-only away")
def uncovered(at: Situation) -> None:
    detach = 2
    places = (*at.secrets, *map(os.path.dirname, at.secrets), ".git/config", ".git", at.workspace)
    any_of([lambda p=place: checked(libc.umount2(p.encode(), detach)) for place in places])


@attempt(116, "kernel", "write where a folder was left open by what starts commands")
def launcher_folder(at: Situation) -> None:
    def write(place: str) -> None:
        with open(f"{place}{at.outside}/escape-116", "w") as file:
            file.write("escaped")

    pids = ("1", "self", *map(str, at.launchers()))
    places = [f"/proc/{pid}/{name}" for pid in pids for name in ("root", "cwd")]
    places += [f"/proc/{pid}/fd/{number}" for pid in pids for number in range(64)]
    any_of([lambda p=place: write(p) for place in places])


@attempt(117, "namespaces", "change the mode of a device of the machine")
def device_mode(at: Situation) -> None:
    mode = os.stat("/dev/full").st_mode & 0o777
    os.chmod("/dev/full", mode ^ 1)
    os.chmod("/dev/full", mode)
