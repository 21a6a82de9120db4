"""`amplifier doctor`: check the setup and suggest fixes.

The checks of `amplifier doctor`, all read-only.

machine.py     Python, this program, git, uv, the sandbox, the terminal, proxies
storage.py     keys, cache, sessions: existence, ownership, disk space
documents.py   settings, profiles, the project and whether it is trusted
models.py      providers and their keys; uses the network only with --online
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from amplifier_app.base.checks import Check as Shown
from amplifier_app.base.errors import AppError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending
from amplifier_app.commands.doctor import documents, machine, models, storage
from amplifier_app.commands.doctor.check import Check
from amplifier_app.render.report import Span, lines_of_checks, print_lines
from amplifier_app.render.table import OutputOption
from amplifier_app.runtime import describe

if TYPE_CHECKING:
    from amplifier_app.commands.doctor.check import Check
    from amplifier_app.render.report import Line

Examination = Callable[[], Iterable[Check]]


def examine(*, online: bool = False) -> Iterator[Check]:
    """Yield each check as it completes.

    Args:
        online: Whether to test the default provider with a one-word request.
    """
    examinations: list[tuple[str, Examination]] = [
        ("python", machine.python),
        ("amplifier", machine.amplifier),
        ("git", machine.git),
        ("uv", machine.uv),
        ("sandbox", machine.sandbox),
        ("terminal", machine.terminal),
        ("proxies", machine.proxies),
        ("home", storage.home),
        ("keys", storage.keys),
        ("cache", storage.cache),
        ("sessions", storage.sessions),
        ("project", documents.project),
        ("settings", documents.settings),
        ("profiles", documents.profiles),
        ("providers", models.providers),
    ]
    if online:
        examinations.append(("online", models.online))
    for name, examination in examinations:
        try:
            yield from examination()
        except AppError as error:
            yield Check(name, "fail", error.message, error.hint)
        # An unexpected failure in one examination must not hide the others.
        except Exception as error:
            yield Check(name, "fail", f"the check failed: {type(error).__name__}: {error}")


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def doctor(
    online: Annotated[
        bool,
        typer.Option("--online", help="Also test the default provider with a one-word request."),
    ] = False,
    output: OutputOption = "text",
) -> None:
    """Check your setup and suggest fixes.

    \b
      amplifier doctor
      amplifier doctor --online

    Checks Python, git, uv, the sandbox, the terminal, keys, settings, profiles, disk space and
    trust. Changes nothing, and stays offline unless you pass --online. Lines marked 'warn' may
    cause problems, lines marked 'FAIL' do; each is followed by a fix. Exits with 78 if a check
    failed.
    """
    # The checks report the missing keys that modules log.
    logging.getLogger().addHandler(logging.NullHandler())
    checks = list(examine(online=online))
    failed = any(check.state == "fail" for check in checks)
    if output == "json":
        rows = [_facts(check) for check in checks]
        print(json_text({"ok": not failed, "checks": rows}))
    else:
        print_lines(lambda width: _lines(checks, width))
    if failed:
        raise typer.Exit(Ending.CONFIGURATION.exit_code)


def _facts(check: Check) -> dict[str, str | None]:
    """A check as the JSON output has it."""
    return {"name": check.name, "state": check.state, "message": check.message, "mend": check.fix}


def _lines(checks: list[Check], width: int) -> list[Line]:
    shown = [
        Shown(
            check.name,
            check.state == "ok",
            check.message,
            "error" if check.state == "fail" else "warning",
            check.fix,
        )
        for check in checks
    ]
    lines = lines_of_checks(shown, width)
    failed = sum(check.state == "fail" for check in checks)
    warned = sum(check.state == "warn" for check in checks)
    verdict = [Span("Everything looks good.", "good")] if not failed + warned else []
    if failed:
        verdict.append(Span(f"{failed} failed", "bad"))
    if warned:
        warnings = describe.count(warned, "warning")
        verdict.append(Span(f"{', ' if verdict else ''}{warnings}", "warn"))
    return [*lines, [], verdict]
