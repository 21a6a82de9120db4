"""The Tab key in real shells."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.support.cli import amplifier_command, child_environment
from tests.support.warm_program import warm_program

SHELLS = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "-i"],
}
# The program looks which shell has started it, so that it cannot be cloned here.
PROGRAM = amplifier_command()[0]
LOADING = {
    "bash": f'eval "$({PROGRAM} --show-completion)"',
    "zsh": f'autoload -Uz compinit; compinit -u; eval "$({PROGRAM} --show-completion)"',
    "fish": f"{PROGRAM} --show-completion | source",
}
# Instead of the program, which the completion still finds: shells prefer functions.
SHOWING = {
    "bash": "amplifier() { printf '<%s>' \"$@\"; }",
    "zsh": "amplifier() { printf '<%s>' \"$@\"; }",
    "fish": "function amplifier; printf '<%s>' $argv; end",
}


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[pexpect.spawn[str]]:
    """An interactive shell that has loaded the completion."""
    program = shutil.which(request.param)
    if program is None:
        pytest.skip(f"{request.param} is not installed")
    (tmp_path / "home" / "profiles").mkdir(parents=True)
    (tmp_path / "home" / "profiles" / "weekly-review.yaml").write_text("extends: default\n")
    # Names are part of code that shells evaluate.
    (tmp_path / "home" / "profiles" / "weekly$(touch pwned);`id`.yaml").write_text("a: 1\n")
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = child_environment(
        tmp_path / "home", {"PATH": path, "TERM": "dumb", "HOME": str(tmp_path), "PS1": "$ "}
    )
    options: dict[str, Any] = {"cwd": tmp_path, "encoding": "utf-8", "timeout": 30}
    with warm_program(tmp_path / "bin"):
        found = pexpect.spawn(program, SHELLS[request.param], env=env, **options)
        found.sendline(f"{LOADING[request.param]}; {SHOWING[request.param]}; echo load''ed")
        found.expect_exact("loaded")
        yield found
        found.close(force=True)


def test_the_tab_key_completes_commands_options_and_values(
    shell: pexpect.spawn[str], tmp_path: Path
) -> None:
    shell.sendline("amplifier ru\t--prof\tweekl\t--provider\tanth\t")
    shell.expect_exact("<run><--profile><weekly-review><--provider><anthropic>")
    # No space after the `=`, where the value follows.
    for _ in range(2):
        shell.sendline("amplifier run --set tools.tool-bash.config.max_sp\t5")
        shell.expect_exact("<run><--set><tools.tool-bash.config.max_spill=5>")
    assert not list(tmp_path.glob("**/pwned"))
