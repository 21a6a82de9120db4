"""The Tab key in real shells."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.support.cli import child_environment

SHELLS = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "-i"],
}
LOADING = {
    "bash": 'eval "$(amplifier --show-completion)"',
    "zsh": 'autoload -Uz compinit; compinit -u; eval "$(amplifier --show-completion)"',
    "fish": "amplifier --show-completion | source",
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
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = child_environment(
        tmp_path / "home", {"PATH": path, "TERM": "dumb", "HOME": str(tmp_path), "PS1": "$ "}
    )
    found = pexpect.spawn(
        program, SHELLS[request.param], env=env, cwd=tmp_path, encoding="utf-8", timeout=30
    )
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
