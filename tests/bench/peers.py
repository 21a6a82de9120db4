"""CPU and memory of a prompt in ours and other agents, against one scripted model server.

    python -m tests.bench.peers [codex=PROGRAM] [claude=PROGRAM] [runs=15]

Each program is a native executable of its package; ours comes from AMPLIFIER_BENCH_VENV, if set. The runs are interleaved; the table has medians of CPU
seconds in user and system mode, of all processes that a run started and waited for.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.bench.processes import Bench, bin_folder
from tests.support.cli import child_environment
from tests.support.llm_server import Reply, ScriptedLLM

DELTAS = 20_000
BARE = "bare httpx"

CODEX_CONFIG = """\
model = "gpt-5"
model_provider = "mock"
[model_providers.mock]
name = "mock"
base_url = "{url}/v1"
env_key = "MOCK_KEY"
wire_api = "responses"
"""


class Agent(NamedTuple):
    """A program and how it is asked.

    Attributes:
        name: Its name in the table.
        program: Its executable.
        prompt: The arguments before a prompt.
        environment: Its variables.
    """

    name: str
    program: str
    prompt: tuple[str, ...]
    environment: Mapping[str, str]


def agents(url: str, folder: Path, programs: Mapping[str, str]) -> list[Agent]:
    """Return the programs to compare, the httpx program first."""
    bench = Bench(url, folder)
    common = {"HOME": str(folder), "PATH": os.environ["PATH"], "COLUMNS": "80"}
    key = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "test-key"}
    own = {**child_environment(folder / "home", key, network=True), "COLUMNS": "80"}
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        own.pop(name, None)
    codex_home = folder / "codex"
    codex_home.mkdir()
    (codex_home / "config.toml").write_text(CODEX_CONFIG.format(url=url))
    codex = {**common, "CODEX_HOME": str(codex_home), "MOCK_KEY": "test-key"}
    claude = {**common, **key, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1"}
    programs_here = bin_folder()
    listed = [
        Agent(BARE, str(programs_here / "python"), (str(bench.folder / "reader.py"),), own),
        Agent("codex", programs.get("codex", ""), ("exec", "--skip-git-repo-check"), codex),
        Agent("claude", programs.get("claude", ""), ("-p",), claude),
        Agent("amplifier", str(programs_here / "amplifier"), ("run",), own),
    ]
    return [agent for agent in listed if agent.program]


def measure(agent: Agent, arguments: Sequence[str], folder: Path) -> tuple[float, float]:
    """Run a program once.

    Returns:
        CPU seconds and peak memory in MB.
    """
    with subprocess.Popen(
        [agent.program, *arguments],
        cwd=folder,
        env=dict(agent.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (agent.name, arguments)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def compare(row: str, argument: str, compared: list[Agent], folder: Path, runs: int) -> None:
    """Print the row of a prompt, or of an option, in the table."""
    is_option = argument.startswith("--")
    results: dict[str, list[tuple[float, float]]] = {agent.name: [] for agent in compared}
    for _ in range(runs + 1):
        for agent in compared:
            words = [argument] if is_option else [*agent.prompt, argument]
            if not (is_option and agent.name == BARE):
                results[agent.name].append(measure(agent, words, folder))
    cells: list[str] = []
    for costs in results.values():
        later = costs[1:]  # the first run fills caches
        medians = [statistics.median(values) for values in zip(*later, strict=True)]
        # What starts a program counts until then, so the peak of a small one is not its own.
        memory = "" if is_option or not medians else f", {medians[1]:.0f} MB"
        cells.append(f"{medians[0]:.3f} s{memory}" if medians else "–")
    print(f"| {row} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the table."""
    options = dict(option.split("=", 1) for option in sys.argv[1:])
    runs = int(options.pop("runs", 15))
    long_text = Reply("word " * DELTAS, deltas=DELTAS)
    with (
        tempfile.TemporaryDirectory() as name,
        ScriptedLLM.running(["hi"], repeat_last=True, strict=False, require_key=False) as server,
    ):
        folder = Path(name)
        compared = agents(server.base_url, folder, options)
        print(f"| | {' | '.join(agent.name for agent in compared)} |")
        print(f"|---{'|---' * len(compared)}|")
        for option in ("--version", "--help"):
            compare(f"`{option}`", option, compared, folder, runs)
        compare("one prompt", "hello", compared, folder, runs)
        server.replies[:] = [long_text]
        compare(f"{DELTAS:,} deltas to a pipe", "hello", compared, folder, max(3, runs // 3))


if __name__ == "__main__":
    main()
