"""CPU of the commands of everyday use, now and at an earlier commit, in interleaved pairs.

    python -m tests.bench.against_base [COMMIT]

Without COMMIT, it is the last one that is a day older than the newest. Both run with the packages of this
environment. A row fails if the median ratio of its pairs is over 1.1 twice: once more if it was the first
time, over three times as many pairs, since a machine may be busy and few pairs vary by more than a tenth.
"""

import compileall
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench.processes import Bench, Cost
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall

ROOT = Path(__file__).parents[2]
MAX_RATIO = 1.1
_SECONDS = 2.5
"""Time for the pairs of one row."""
_MIN_PAIRS = 5
_MESSAGES = 4_000
_CALLS = 20


class Row(NamedTuple):
    """One command.

    Attributes:
        name: Its name in the table.
        replies: The answers of the model; the last one is repeated.
        run: Runs it once.
        prepare: Runs once before.
    """

    name: str
    replies: list[Reply | str]
    run: Callable[[Bench], Cost]
    prepare: Callable[[Bench], None] = lambda _: None


def _resumable(bench: Bench) -> None:
    bench.amplifier("--session", "long", "hi")
    with (bench.sessions / "long" / "transcript.jsonl").open("a", encoding="utf-8") as transcript:
        for number in range(_MESSAGES // 2):
            answer = [{"type": "text", "text": f"answer {number} {'y' * 300}"}]
            question = {"role": "user", "content": f"question {number} {'x' * 100}"}
            for message in (question, {"role": "assistant", "content": answer}):
                transcript.write(json.dumps(message) + "\n")


def _with_notes(bench: Bench) -> None:
    (bench.folder / "notes.txt").write_text("a line of notes\n" * _CALLS)


def rows() -> Iterator[Row]:
    """Yield the commands to compare."""
    calls = [ToolCall("read_file", {"path": "notes.txt", "offset": n + 1}) for n in range(_CALLS)]
    yield Row("--version", ["hi"], lambda bench: bench.command("--version"))
    yield Row("run --help", ["hi"], lambda bench: bench.command("run", "--help"))
    yield Row("one prompt", ["hi"], lambda bench: bench.amplifier("hi"))
    yield Row(
        f"{_CALLS} tool calls",
        [*(Reply(tool_calls=[call]) for call in calls), "done"],
        lambda bench: bench.amplifier("--max-turns", "1000", "go"),
        _with_notes,
    )
    yield Row(
        f"resume {_MESSAGES:,} messages",
        ["hi"],
        lambda bench: bench.amplifier("--resume", "long", "hi"),
        _resumable,
    )


def compare(row: Row, before: Path, folder: Path, times: int = 1) -> float:
    """Return the median ratio of CPU now to CPU with the source folder `before`."""
    now, base = _measure(row, [ROOT / "src", before], folder, _SECONDS * times)
    ratio = statistics.median(b / a for a, b in zip(base, now, strict=True))
    cpu = f"{statistics.median(base) * 1e3:7.1f} ms {statistics.median(now) * 1e3:7.1f} ms"
    print(f"{row.name:24} {cpu} {ratio:6.2f}  ({len(now)} pairs)", flush=True)
    return ratio


def _measure(row: Row, sources: list[Path], folder: Path, seconds: float) -> list[list[float]]:
    """CPU seconds of each run with each of the source folders, by turns."""
    with ScriptedLLM.running(row.replies, repeat_last=True) as server:
        benches = [
            Bench(server.base_url, Path(tempfile.mkdtemp(dir=folder)), source) for source in sources
        ]
        for bench in benches:
            row.prepare(bench)
            server.rewind()
            row.run(bench)
        costs: list[list[float]] = [[] for _ in benches]
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(costs[0]) < _MIN_PAIRS:
            pair = list(enumerate(benches))
            for index, bench in pair if len(costs[0]) % 2 else reversed(pair):
                server.rewind()
                costs[index].append(row.run(bench).cpu)
    return costs


@contextmanager
def _checked_out(commit: str, folder: Path) -> Generator[Path]:
    """The source folder of another commit, compiled."""
    tree = folder / "base"
    subprocess.run(
        ["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], cwd=ROOT, check=True
    )
    try:
        for source in (tree / "src", ROOT / "src"):
            compileall.compile_dir(source, quiet=2)
        yield tree / "src"
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def _commit_of_the_day_before() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    day_before = int(git("log", "-1", "--format=%ct")) - 24 * 3600
    return git("rev-list", "-1", f"--before={day_before}", "HEAD") or git("rev-parse", "HEAD")


def main() -> int:
    """Print a row for each command; 1 if one has become dearer."""
    commit = sys.argv[1] if len(sys.argv) > 1 else _commit_of_the_day_before()
    with tempfile.TemporaryDirectory() as name, _checked_out(commit, Path(name)) as before:
        print(f"CPU of a run, medians: {commit[:12]}, now, ratio")
        dearer = [
            row.name
            for row in rows()
            if all(compare(row, before, Path(name), times) > MAX_RATIO for times in (1, 3))
        ]
    if dearer:
        print(f"over {MAX_RATIO}: {', '.join(dearer)}")
    return bool(dearer)


if __name__ == "__main__":
    sys.exit(main())
