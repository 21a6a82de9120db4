"""Providers of others that return or raise anything: an answer, or a clear error that names them."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support import hostile_provider
from tests.support.cli import run_amplifier
from tests.support.thorough import Scale

_NOT_FOR_USERS = re.compile(r"Traceback \(|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
SOME = ("calls: deep", "exit 0", "cancelled", "blocks: endless", "blocks: type is a list")


def problems(folder: Path, source: Path, case: str, *, streams: bool) -> list[str]:
    folder.mkdir()
    plan = folder / "plan.yaml"
    plan.write_text(
        "session: {orchestrator: loop-streaming, context: context-simple}\n"
        f"providers:\n  - module: provider-odd\n    source: {source}\n"
        f"    config: {{case: '{case}', streams: {str(streams).lower()}}}\n"
        "tools: [{module: tool-filesystem}]\nhooks: [{module: hooks-logging}]\n"
    )
    found: list[str] = []
    codes = {0, 3, 5, 75}
    commands = ("run", "-f", str(plan), "--session", "s1", "go"), ("session", "show", "s1")
    for command in commands:
        done = run_amplifier(*command, home=folder / "home", cwd=folder)
        text = done.stdout + done.stderr
        if done.code not in codes or _NOT_FOR_USERS.search(text):
            found.append(f"{case}, {streams=}: {command[:2]}: exit {done.code}, {text[-1000:]!r}")
        if done.code == 0 and command[0] == "run" and not done.stdout.strip():
            found.append(f"{case}, {streams=}: exit 0 without an answer")
        codes = {0}
    return found


def test_whatever_a_provider_returns_or_raises_the_run_ends_clearly(
    tmp_path: Path, scale: Scale
) -> None:
    source = hostile_provider.write(tmp_path)
    cases = scale(SOME, tuple(hostile_provider.CASES))
    jobs = [(case, streams) for case in cases for streams in scale((True,), (False, True))]

    def play(number: int) -> list[str]:
        case, streams = jobs[number]
        return problems(tmp_path / str(number), source, case, streams=streams)

    with ThreadPoolExecutor(2) as pool:
        found = [problem for each in pool.map(play, range(len(jobs))) for problem in each]
    assert not found, "\n".join(found)
