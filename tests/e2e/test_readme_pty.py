"""The README's blocks, word for word and in order, in one terminal without anything of the user."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from amplifier_modules.provider_anthropic.config import DEFAULT_MODEL
from tests.support.cli import child_environment
from tests.support.llm_server import ScriptedLLM
from tests.support.warm_program import warm_program

ROOT = Path(__file__).parents[2]
KEY = "sk-secret-0123456789abcdef"
INSTALLATION = "python3 -m venv .venv && . .venv/bin/activate && pip install -q '.[local]' && "
"""Left out: `.ci/run` runs the first block in a clean clone."""

ANSWERS = {
    "amplifier init": [
        (r"Provider \[\w+\]: ", "anthropic"),
        (r"API key \([^)]*\): ", KEY),
        (r"API address[^\n]*: ", ""),
        (r"\nModel \[[^\n]*\]: ", ""),
        (r"\nMode \[ask\]: ", ""),
    ],
    "amplifier": [(r"\x1b\]133;A\x1b\\", "/quit")],
}
"""The questions of commands that ask, and what the reader types."""

SHELL = re.compile(r"\[(\d+)\]\$ ")


def blocks() -> list[tuple[str, str]]:
    """The languages and texts of the README's blocks, up to the one that runs the suite."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("<!-- test -->")[0]
    return re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the blocks need of a clone of the repository."""
    folder = tmp_path / "amplifier"
    for name in ("examples", "src/amplifier_app"):
        shutil.copytree(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="drives a pseudo-terminal")
def test_the_blocks_work_in_order_in_one_terminal(clone: Path, tmp_path: Path) -> None:
    lines = [line for language, text in blocks() if language == "sh" for line in text.splitlines()]
    assert lines[0].startswith(INSTALLATION)
    assert {"amplifier init", "amplifier"} < {line.partition(" #")[0].strip() for line in lines}
    for language, text in blocks():
        if language != "sh":
            name, _, content = text.partition("\n")
            path = clone / name.removeprefix("# ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    model = ScriptedLLM.running(["ready"] * 30, api_key=KEY, models=[DEFAULT_MODEL])
    programs = tmp_path / "bin"
    with model as server, warm_program(programs):
        # The model that is offered is the default one: settings do not apply to plan files.
        environment = child_environment(
            tmp_path / "home",
            {
                "ANTHROPIC_BASE_URL": server.base_url,
                "HOME": str(tmp_path),
                "PATH": os.pathsep.join(
                    [str(programs), str(Path(sys.executable).parent), "/usr/bin", "/bin"]
                ),
                "PS1": "[$?]$ ",
                "TERM": "xterm-256color",
            },
        )
        shell = pexpect.spawn(
            "bash",
            ["--norc", "--noprofile", "--noediting"],
            cwd=str(clone),
            env=environment,
            dimensions=(40, 160),
            encoding="utf-8",
            echo=False,
            timeout=60,
        )
        try:
            shell.expect(SHELL)
            for line in lines:
                if line.startswith(INSTALLATION):
                    continue
                shell.sendline(line)
                for question, answer in ANSWERS.get(line.partition(" #")[0].strip(), []):
                    shell.expect(question)
                    shell.send(answer + "\r")
                shell.expect(SHELL)
                assert shell.match.group(1) == "0", f"{line}\n{shell.before}"
        finally:
            shell.close(force=True)
    assert (clone / "out.json").read_text().startswith("{")
    rows = (clone / "out" / "results.jsonl").read_text().splitlines()
    assert len(rows) == len([*clone.glob("src/amplifier_app/*.py")])
