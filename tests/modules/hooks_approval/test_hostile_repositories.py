"""No repository runs a program through a git command that needs no approval."""

import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from amplifier_core.testing import TestCoordinator
from amplifier_modules import hooks_approval, tool_bash
from amplifier_modules.hooks_approval.read_only_commands import runs_only_git
from amplifier_support.sandbox.policy import WORKSPACE, SandboxPolicy
from amplifier_support.sandbox.sandbox import Sandbox
from amplifier_support.session_capabilities import APPROVAL_POLICY, SANDBOX, WORKING_DIR
from tests.support.thorough import Scale

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")

WHO = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")


def git(folder: Path, *arguments: str | Path) -> str:
    command = ["git", "-C", folder, *WHO, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Attack(NamedTuple):
    """One hostile repository.

    Attributes:
        name: Its name, also of the file that its program creates.
        command: The command that runs the program in a session without this module.
        prepare: Makes the repository hostile; returns the folder to work in.
    """

    name: str
    command: str
    prepare: Callable[[Path, str], Path]


SYNTAXES = {
    "plain": "[{head}]\n\t{key} = {value}\n",
    "one-line": "[core] [{head}] {key}={value}\n",
    "case": "[{upper}]\n{key} = {value}\n",
    "quoted": '[{head}]{key}="{value}"\n',
    "continued": "[{head}]\n{key} = \\\n{value}\n",
    "comment": "# x ; [core\n; ]\n[{head}] # x\n {key} = {value} # y\n",
    "returns": "[{head}]\r\n\t{key} = {value}\r\n",
}
SETTINGS = {
    "fsmonitor": ("core", "fsmonitor", "git status"),
    "external": ("diff", "external", "git diff"),
    "textconv": ('diff "x]y"', "textconv", "git log -p"),
    "command": ('diff "x]y"', "command", "git diff"),
    "clean": ('filter "x]y"', "clean", "git diff"),
    "include": ("include", "path", "git status"),
    "includeIf": ('includeIf "gitdir:**"', "path", "git status"),
}


def configured(head: str, key: str, syntax: str, *, mark: bool = False) -> Callable[..., Path]:
    def prepare(work: Path, program: str) -> Path:
        value = program
        if key == "path":
            (work / "other").write_text(f"[core]\nfsmonitor = {program}\n")
            value = "../other"
        upper = head.upper() if '"' not in head else head
        text = syntax.format(head=head, upper=upper, key=key, value=value)
        file = work / ".git/config"
        old = file.read_bytes()
        # A byte order mark counts only at the start.
        file.write_bytes(b"\xef\xbb\xbf" + text.encode() + old if mark else old + text.encode())
        return work

    return prepare


def text_conversion(program: str) -> str:
    return f'[diff "x]y"]\ntextconv = {program}\n'


def bare(work: Path, program: str, target: Path) -> Path:
    """Make a bare repository with a text conversion."""
    shutil.copytree(work / ".git", target, dirs_exist_ok=True)
    config = "[core]\nrepositoryformatversion = 0\nbare = true\n" + text_conversion(program)
    (target / "config").write_text(config)
    (target / "info").mkdir(exist_ok=True)
    (target / "info/attributes").write_text("* diff=x]y\n")
    return target


def embedded(work: Path, program: str) -> Path:
    """In an ordinary clone, a folder that git takes for a repository."""
    bare(work, program, work / "data")
    (work / "docs").mkdir()
    (work / "docs/HEAD").write_text((work / ".git/HEAD").read_text())
    (work / "docs/commondir").write_text("../data\n")
    return work / "docs"


def pointed(pointer: str, target: str) -> Callable[..., Path]:
    def prepare(work: Path, program: str) -> Path:
        bare(work, program, work / target)
        (work / target / "config").write_text(text_conversion(program))
        shutil.rmtree(work / ".git")
        (work / ".git").write_text(pointer)
        return work

    return prepare


def common(name: str) -> Callable[..., Path]:
    def prepare(work: Path, program: str) -> Path:
        bare(work, program, work / ".git" / name)
        (work / ".git/commondir").write_text(f"{name}\n")
        return work

    return prepare


def beside(below: bool, entry: bool) -> Callable[..., Path]:
    def prepare(work: Path, program: str) -> Path:
        place = bare(work, program, work / "bare")
        folder = place / "objects/deep" if below else place
        folder.mkdir(exist_ok=True)
        if entry:
            (folder / ".git").mkdir()
        return folder

    return prepare


def hooked(folder: str | None) -> Callable[..., Path]:
    def prepare(work: Path, program: str) -> Path:
        hooks = work / (folder or ".git/hooks")
        if folder:
            git(work, "config", "core.hooksPath", folder)
        hooks.mkdir(exist_ok=True)
        (hooks / "post-index-change").write_text(f"#!/bin/sh\n{program}\n")
        (hooks / "post-index-change").chmod(0o755)
        os.utime(work / "f", (1, 1))
        return work

    return prepare


def inner(work: Path, program: str) -> Path:
    """A repository as an entry of another one, and its configuration."""
    shutil.copytree(work / ".git", work / "inner/.git")
    git(work, "-c", "advice.addEmbeddedRepo=false", "add", "inner")
    git(work / "inner", "config", "core.fsmonitor", program)
    return work


def former(work: Path, program: str) -> Path:
    """The same in the history only, where its difference is shown."""
    inner(work, "")
    git(work, "commit", "-qm", "inner")
    git(work, "rm", "-q", "--cached", "inner")
    git(work, "commit", "-qm", "none")
    (work / "inner/.git/info").mkdir(exist_ok=True)
    (work / "inner/.git/info/attributes").write_text("* diff=x]y\n")
    with (work / "inner/.git/config").open("a") as file:
        file.write(text_conversion(program))
    return work


def former_by_default(work: Path, program: str) -> Path:
    git(former(work, program), "config", "diff.submodule", "diff")
    return work


def linked(work: Path, program: str) -> Path:
    git(work, "worktree", "add", "-q", work / "tree")
    git(work, "config", "core.fsmonitor", program)
    return work / "tree"


def own_settings(work: Path, program: str) -> Path:
    """Settings of one work tree only."""
    git(work, "config", "extensions.worktreeConfig", "true")
    git(work, "config", "--worktree", "core.fsmonitor", program)
    return work


def signed(where: str) -> Callable[..., Path]:
    def prepare(work: Path, program: str) -> Path:
        commit = git(work, "cat-file", "commit", "HEAD")
        head, _, message = commit.partition("\n\n")
        signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----"
        (work / "commit").write_text(f"{head}\n{signature}\n\n{message}")
        id = git(work, "hash-object", "-t", "commit", "-w", "commit").strip()
        git(work, "update-ref", "HEAD", id)
        if where == "program":
            git(work, "config", "log.showSignature", "true")
        git(work, "config", "gpg.program" if where == "program" else "gpg.openpgp.program", program)
        return work

    return prepare


def partial(*settings: str) -> Callable[..., Path]:
    """A clone without its objects, which git gets from a remote when it needs them."""

    def prepare(work: Path, program: str) -> Path:
        blob = git(work, "rev-parse", "HEAD:f").strip()
        (work / ".git/objects" / blob[:2] / blob[2:]).unlink()
        for key, value in (
            ("core.repositoryFormatVersion", "1"),
            ("extensions.partialClone", "origin"),
            ("remote.origin.promisor", "true"),
            *zip(settings[::2], settings[1::2], strict=True),
        ):
            git(work, "config", key, value.replace("PROGRAM", program))
        return work

    return prepare


def merged(work: Path, program: str) -> Path:
    """A merge whose difference to a merge of git's own is shown."""
    (work / ".gitattributes").write_text("* merge=x\n")
    git(work, "checkout", "-qb", "b")
    for branch, text in (("b", "b\n"), ("main", "c\n")):
        git(work, "checkout", "-qf", branch)
        (work / "f").write_text(text)
        git(work, "add", ".")
        git(work, "commit", "-qm", branch)
    git(work, "merge", "-q", "-s", "ours", "b", "-m", "m")
    (work / ".gitattributes").write_text("* merge=x\n")
    git(work, "config", "merge.x.driver", program)
    return work


def untouched(work: Path, program: str) -> Path:
    return work


def attacks(every_syntax_of: Collection[str]) -> Iterator[Attack]:
    """The attacks; settings that are not named come in two ways to write them."""
    for number, (setting, (head, key, command)) in enumerate(SETTINGS.items()):
        names = [*SYNTAXES]
        for name in names if setting in every_syntax_of else ("plain", names[number]):
            attack = configured(head, key, SYNTAXES[name])
            yield Attack(f"{setting}-{name}", command, attack)
        syntax = SYNTAXES["plain"]
        yield Attack(f"{setting}-mark", command, configured(head, key, syntax, mark=True))
    yield Attack("embedded", "git log -p", embedded)
    yield Attack("gitdir-spaces", "git log -p", pointed("gitdir:  evil\n", " evil"))
    yield Attack("gitdir-end", "git log -p", pointed("gitdir: evil \n", "evil "))
    yield Attack("gitdir-plain", "git show", pointed("gitdir: evil\n", "evil"))
    yield Attack("gitdir-returns", "git show", pointed("gitdir: evil\r\n", "evil"))
    yield Attack("commondir-end", "git log -p", common("evil "))
    yield Attack("commondir-spaces", "git log -p", common(" evil"))
    for below in (False, True):
        for entry in (False, True):
            yield Attack(f"bare-{below}-{entry}", "git log -p", beside(below, entry))
    yield Attack("hook", "git status", hooked(None))
    yield Attack("hook-elsewhere", "git status", hooked("my-hooks"))
    yield Attack("inner", "git status", inner)
    yield Attack("former", "git log -p --submodule=diff", former)
    yield Attack("former-default", "git log -p", former_by_default)
    yield Attack("linked", "git status", linked)
    yield Attack("own-settings", "git status", own_settings)
    yield Attack("signature", "git log", signed("program"))
    yield Attack("signature-format", "git log --format=%G?", signed("openpgp"))
    yield Attack("signature-option", "git log --show-signature", signed("openpgp"))
    ssh = ("remote.origin.url", "ssh://h/x", "core.sshCommand", "PROGRAM")
    yield Attack("partial-ssh", "git show", partial(*ssh))
    pack = ("remote.origin.url", ".", "remote.origin.uploadpack", "PROGRAM")
    yield Attack("partial-pack", "git show", partial(*pack))
    ext = ("remote.origin.url", "ext::PROGRAM", "protocol.ext.allow", "always")
    yield Attack("partial-ext", "git log -p", partial(*ext))
    yield Attack("merge", "git show --remerge-diff HEAD", merged)
    yield Attack("pager", "git grep '-nOPROGRAM;:' .", untouched)


def make_repository(folder: Path) -> Path:
    git(folder.parent, "init", "-q", "-b", "main", folder)
    (folder / "f").write_text("one\n")
    (folder / ".gitattributes").write_text("* diff=x]y filter=x]y\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "x")
    (folder / "f").write_text("two\n")
    return folder


async def test_no_hostile_repository_runs_a_program_without_approval(
    tmp_path: Path, scale: Scale
) -> None:
    marks, template = tmp_path / "marks", make_repository(tmp_path / "template")
    marks.mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    cases = list(attacks(scale(["fsmonitor"], [*SETTINGS])))
    assert len({attack.name for attack in cases}) == len(cases) >= scale(48, 64)
    free: list[tuple[Attack, str, Path]] = []
    for attack in cases:
        work = shutil.copytree(template, tmp_path / "repositories" / attack.name, symlinks=True)
        program = programs / attack.name
        program.write_text(f"#!/bin/sh\n: > '{marks}/{attack.name}'\n")
        program.chmod(0o755)
        folder = attack.prepare(work, str(program))
        command = attack.command.replace("PROGRAM", str(program))
        for mark in marks.iterdir():
            mark.unlink()
        # The attack is real: an approved command runs as the user's own git would.
        run_directly(command, folder)
        assert [mark.name for mark in marks.iterdir()] == [attack.name], attack.name
        free.append((attack, command, folder))
        (marks / attack.name).unlink()
    coordinator = TestCoordinator()
    remove = await hooks_approval.mount(coordinator, {})
    decide = APPROVAL_POLICY.of(coordinator)
    assert decide is not None
    for mode in ("ask", "read-only", "auto"):
        for attack, command, folder in free:
            values = {"command": command}
            decision = decide("bash", values, working_dir=str(folder), mode=mode)["decision"]
            if decision == "allow":
                for policy in (None, WORKSPACE):
                    await run_command(command, str(folder), policy)
            assert not list(marks.iterdir()), (attack.name, mode)
    remove()


def run_directly(command: str, folder: Path) -> None:
    argv, none = ["sh", "-c", command], subprocess.DEVNULL
    subprocess.run(argv, cwd=folder, stdin=none, stdout=none, stderr=none, check=False)


async def run_command(command: str, folder: str, policy: SandboxPolicy | None) -> None:
    coordinator = TestCoordinator()
    WORKING_DIR.register(coordinator, folder)
    sandbox = Sandbox(policy, folder=folder)
    SANDBOX.register(coordinator, sandbox)
    close = await tool_bash.mount(coordinator, {})
    await coordinator.get("tools")["bash"].execute({"command": command})
    await close()
    sandbox.close()


def test_usual_repositories_run_only_git(tmp_path: Path) -> None:
    work = make_repository(tmp_path / "work")
    git(work, "worktree", "add", "-q", tmp_path / "tree")
    git(tmp_path, "clone", "-q", work, tmp_path / "clone")
    (work / "sub").mkdir()
    (tmp_path / "none").mkdir()
    git(tmp_path, "init", "-q", "--bare", tmp_path / "bare")
    for key, value in (
        ("core.hooksPath", ".husky"),
        ("core.fsmonitor", "true"),
        ("user.name", "a"),
        ("branch.main.vscode-merge-base", "origin/main"),
    ):
        git(work, "config", key, value)
    for name in ("work", "work/sub", "work/.git", "tree", "clone", "none", "bare"):
        assert runs_only_git(str(tmp_path / name)), name
    git(tmp_path / "clone", "submodule", "--quiet", "add", work, "module")
    assert runs_only_git(str(tmp_path / "clone/module"))
    assert not runs_only_git(str(tmp_path / "clone"))
    git(work, "config", "core.worktree", tmp_path)
    assert not runs_only_git(str(work))
