"""`amplifier test`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.file_writing import write_whole
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending
from amplifier_app.base.paths import temporary_dir
from amplifier_app.base.redact import redact
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.signals import Interrupts
from amplifier_app.base.stdio import claim_stdout
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.option import Option
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import argument, takes_options
from amplifier_app.render.table import Format, OutputOption
from amplifier_kit.plan_tests.cases import Case, find_cases
from amplifier_kit.plan_tests.expectations import Tested, run_case
from amplifier_kit.plan_tests.grammar import test_schema
from amplifier_kit.plan_tests.report import (
    Progress,
    as_json,
    as_junit,
    failures_text,
    summary,
)
from amplifier_kit.plan_tests.running import Runner
from amplifier_support.named_tuple import NamedTuple

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_JUNIT = "junit"


class RunOptions(NamedTuple):
    """Which tests run, and how."""

    keyword: Annotated[
        str | None, Option("-k TEXT", "Run only tests with TEXT in their file or name.")
    ] = None
    exit_first: Annotated[bool, Option("-x, --exitfirst", "Stop at the first test that fails.")] = (
        False
    )
    list_only: Annotated[bool, Option("--list", "List the tests instead of running them.")] = False
    update: Annotated[
        bool,
        Option(
            "--update",
            "Record the recordings of the tests again, with the providers of their plans.",
        ),
    ] = False
    report: Annotated[
        str | None, Option("--report junit=FILE", "Write a JUnit report to FILE.")
    ] = None
    verbose: Annotated[bool, Option("-v, --verbose", "Print a line for each test.")] = False


@app.command()
@takes_options(RunOptions)
@takes_options(Request, "trust", "no_project", group="Options")
def run_tests(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        argument(
            "PATH", "Test files, folders, or FILE::NAME for one test. [default: the current folder]"
        ),
    ] = None,
    *,
    options: RunOptions,
    request: Request,
    output: OutputOption = "text",
) -> None:
    """Test plans without a model: with scripts or recordings of it.

    \b
      amplifier test
      amplifier test plans/review.test.yaml::'denies rm'
      amplifier test -k review --report junit=results.xml

    Runs the tests in *.test.yaml files; see: amplifier docs testing. Exits with 9 if one fails, and
    with 78 if a test file is invalid.
    """
    report_file = _report_file(options.report)
    cases = find_cases(targets or [], options.keyword)
    if options.list_only:
        _print_list(cases, output)
        return
    # Otherwise each test would fail for it.
    temporary_dir()
    started = time.monotonic()
    invocation: Invocation = context.obj
    stdout = invocation.stdout = invocation.resources.enter_context(claim_stdout())

    def write(text: str) -> None:
        if output != "json":
            stdout.write(redact(for_terminal(text)))

    progress = Progress(write, len(cases), verbose=options.verbose)
    runner = Runner(trust=request.trust, no_project=request.no_project, update=options.update)
    ended, stopped = run_loop(_run(runner, cases, progress, exit_first=options.exit_first))
    seconds = time.monotonic() - started
    left = len(cases) - len(ended)
    write(f"{failures_text(ended)}\n{summary(ended, left, seconds)}\n")
    if output == "json":
        stdout.write(f"{redact(json_text(as_json(ended, left, seconds)))}\n")
    if report_file is not None:
        write_whole(report_file, redact(as_junit(ended)).encode("utf-8", "replace").decode())
    if stopped is not None:
        raise typer.Exit(stopped.exit_code)
    if any(test.status != "passed" for test in ended):
        raise typer.Exit(Ending.CHECK_FAILED.exit_code)


async def _run(
    runner: Runner, cases: list[Case], progress: Progress, *, exit_first: bool
) -> tuple[list[Tested], Ending | None]:
    """The tests that ran to their end, and what stopped the others; None if nothing did."""
    ended: list[Tested] = []
    running: list[asyncio.Task[Tested]] = []
    with Interrupts(lambda immediate: running[-1].cancel()) as interrupts:
        for case in cases:
            running.append(asyncio.ensure_future(run_case(runner, case)))
            await asyncio.wait(running[-1:])
            tested = None if running[-1].cancelled() else running[-1].result()
            # An interrupt may have been the reason for a failure.
            if tested is None or (interrupts.received is not None and tested.status != "passed"):
                break
            ended.append(tested)
            progress.show(tested)
            if interrupts.received is not None or (exit_first and tested.status != "passed"):
                break
    progress.stop()
    if interrupts.received is None:
        return ended, None
    return ended, Ending.TERMINATED if interrupts.terminated else Ending.INTERRUPTED


def _print_list(cases: list[Case], output: Format) -> None:
    if output == "json":
        listed = [
            {"id": case.id, "file": case.file, "line": case.at.line, "name": case.name}
            for case in cases
        ]
        print(json_text(listed))
        return
    for case in cases:
        print(for_terminal(case.id))


def _report_file(report: str | None) -> Path | None:
    """
    Raises:
        UsageError: It is not `junit=FILE`.
    """
    if report is None:
        return None
    kind, _, file = report.partition("=")
    if kind != _JUNIT or not file:
        raise UsageError(f"--report: expected junit=FILE, got {report!r}")
    return Path(file)


def test() -> None:
    """Print the JSON Schema of test files."""
    print(json_text(test_schema()))
