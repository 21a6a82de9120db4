"""Planting what runs later, outside of the sandbox: in the repository and its settings."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from catalogue import Refused, Situation, any_of, attempt

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
