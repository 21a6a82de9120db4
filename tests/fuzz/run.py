"""Fuzz one target: python -m tests.fuzz.run TARGET --seconds N

Uses atheris, which follows the coverage of the code, if it is installed, and random changes of the corpus if not.
Each failure is printed once for each place in the code, and its input saved in --findings. The exit code is 1 if there
was one. Add inputs worth keeping to tests/fuzz/corpus/TARGET; the suite runs all of them.
"""

import argparse
import hashlib
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from amplifier_app.base.own_packages import OWN_PACKAGES
from tests.fuzz.files import FOLDER, memory_folder, remove_files
from tests.fuzz.mutation import mutate

CORPUS = Path(__file__).with_name("corpus")
_MAX_SECONDS = 1.0
_MAX_BYTES = 100 * 1024 * 1024
_LONGEST = 20_000
_SLOWDOWN = 4
"""How much slower code may be while its coverage is recorded."""


class TooExpensive(Exception):
    """An input takes more time or memory than a reader may."""


def corpus_of(target: str) -> list[Path]:
    """The inputs kept for a target."""
    return sorted((CORPUS / target).iterdir())


def execute(target: str, data: bytes, *, slowdown: float = 1) -> None:
    """Run a target on one input.

    Raises:
        TooExpensive: It takes more than 1 s of processor time, times `slowdown`, or 100 MB.
        Exception: Anything that the target should not raise.
    """
    from tests.fuzz.targets import TARGETS

    begun, before = time.process_time(), _peak_memory()
    TARGETS[target].run(data)
    seconds, grown = time.process_time() - begun, _peak_memory() - before
    if seconds > _MAX_SECONDS * slowdown:
        raise TooExpensive(f"{seconds:.1f} s of processor time")
    if grown > _MAX_BYTES:
        raise TooExpensive(f"{grown / 1024**2:.0f} MB of memory")


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def mutations(target: str, seed: int) -> Iterator[bytes]:
    """Endless random changes of the corpus; the same for the same seed."""
    from tests.fuzz.targets import TARGETS

    chance = random.Random(f"{target} {seed}")
    inputs = [path.read_bytes() for path in corpus_of(target)]
    while True:
        yield mutate(chance.choice(inputs), chance, TARGETS[target].tokens)[:_LONGEST]


class Findings:
    """The inputs that failed, one for each place of a failure.

    Args:
        target: What is fuzzed.
        folder: Where they are saved.
        slowdown: See `execute`.
    """

    def __init__(self, target: str, folder: Path, slowdown: float = 1) -> None:
        self._target = target
        self._folder = folder
        self._slowdown = slowdown
        self.places: set[str] = set()
        self.inputs = 0

    def run(self, data: bytes) -> None:
        """Run the target; a failure is saved and printed."""
        self.inputs += 1
        try:
            execute(self._target, data, slowdown=self._slowdown)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            place = f"{type(error).__name__} at {frames[-1].filename}:{frames[-1].lineno}"
            if place not in self.places:
                self.places.add(place)
                self._save(data)

    def _save(self, data: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._target}-{hashlib.sha256(data).hexdigest()[:8]}"
        path.write_bytes(data)
        traceback.print_exc(chain=False)
        print(f"Repeat it with: python -m tests.fuzz.run {self._target} --input {path}", flush=True)

    def report(self) -> int:
        """Print a summary; returns the exit code."""
        print(f"{self._target}: {self.inputs:,} inputs, {len(self.places)} findings", flush=True)
        return 1 if self.places else 0


def _fuzz_at_random(target: str, seconds: float, findings: Path, seed: int) -> int:
    found = Findings(target, findings)
    end = time.monotonic() + seconds
    inputs = mutations(target, seed)
    while time.monotonic() < end:
        found.run(next(inputs))
    remove_files()
    return found.report()


def _fuzz_with_coverage(target: str, seconds: float, findings: Path, seed: int) -> int:
    """Fuzz in a process of its own, which libFuzzer ends without running what Python does at the end."""
    before = set(findings.glob("*"))
    with tempfile.TemporaryDirectory(prefix="amplifier-fuzz-", dir=memory_folder()) as work:
        options = (target, f"--seconds={seconds}", f"--findings={findings}", f"--seed={seed}")
        command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.run", *options]
        subprocess.run([*command, f"--work={work}"], check=False)
    found = len(set(findings.glob("*")) - before)
    print(f"{target}: {found} findings")
    return 1 if found else 0


def _run_atheris(target: str, seconds: float, findings: Path, seed: int, work: Path) -> None:
    """Does not return."""
    import atheris

    os.environ[FOLDER] = str(work)
    with atheris.instrument_imports(include=[*OWN_PACKAGES]):
        from tests.fuzz.targets import TARGETS
    found = Findings(target, findings, _SLOWDOWN)

    def change(data: bytes, largest: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.3:
            return atheris.Mutate(data, largest)
        return mutate(data, chance, TARGETS[target].tokens)[:largest]

    # Inputs that reach new code go into the first folder.
    new = work / "new"
    new.mkdir()
    limits = [f"-max_total_time={seconds:.0f}", f"-max_len={_LONGEST}", "-timeout=120"]
    limits += ["-rss_limit_mb=4000", f"-seed={seed}", f"-artifact_prefix={work}/"]
    atheris.Setup(
        [sys.argv[0], *limits, str(new), str(CORPUS / target)], found.run, custom_mutator=change
    )
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--input", type=Path, help="Run this file instead of fuzzing.")
    parser.add_argument("--random", action="store_true", help="Do not use atheris.")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        _run_atheris(options.target, options.seconds, options.findings, options.seed, options.work)
    if options.input:
        try:
            execute(options.target, options.input.read_bytes())
        finally:
            remove_files()
        return 0
    try:
        import atheris  # noqa: F401
    except ImportError:
        options.random = True
    how = _fuzz_at_random if options.random else _fuzz_with_coverage
    return how(options.target, options.seconds, options.findings, options.seed)


if __name__ == "__main__":
    sys.exit(main())
