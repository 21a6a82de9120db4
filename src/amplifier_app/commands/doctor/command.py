"""`amplifier doctor`: is everything there that a run needs?"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Annotated

import typer

from amplifier_app.base.outcome import Ending
from amplifier_app.render.table import Format, OutputOption

if TYPE_CHECKING:
    from amplifier_app.commands.doctor.check import Check
    from amplifier_app.render.report import Line

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def doctor(
    online: Annotated[
        bool,
        typer.Option("--online", help="Ask the provider that a run would ask for one word, too."),
    ] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Check what a run needs: Python, git, uv, terminal, keys, settings, profiles, disk, trust.

    Looks only: nothing is changed, and without --online nobody is asked over the network. A line
    marked 'warn' may be in the way of something, one marked 'FAIL' is; below it is how to mend
    it. Exit code 78 if anything failed, else 0.
    """
    from amplifier_app.commands.doctor.examine import examine

    # What modules log about missing keys is told by the checks.
    logging.getLogger().addHandler(logging.NullHandler())
    checks = list(examine(online=online))
    failed = any(check.state == "fail" for check in checks)
    if output is Format.JSON:
        rows = [check._asdict() for check in checks]
        print(json.dumps({"ok": not failed, "checks": rows}, indent=2))
    else:
        from amplifier_app.render.report import print_lines

        print_lines(lambda width: _lines(checks, width))
    if failed:
        raise typer.Exit(Ending.CONFIGURATION.exit_code)


def _lines(checks: list[Check], width: int) -> list[Line]:
    from amplifier_app.base.checks import Check as Shown
    from amplifier_app.render.report import Span, lines_of_checks

    shown = [
        Shown(
            check.name,
            check.state == "ok",
            check.message,
            "error" if check.state == "fail" else "warning",
            check.mend,
        )
        for check in checks
    ]
    lines = lines_of_checks(shown, width)
    failed = sum(check.state == "fail" for check in checks)
    warned = sum(check.state == "warn" for check in checks)
    verdict = [Span("all is well", "good")] if not failed + warned else []
    if failed:
        verdict.append(Span(f"{failed} failed", "bad"))
    if warned:
        verdict.append(Span(f"{', ' if verdict else ''}{warned} with warnings", "warn"))
    return [*lines, [], verdict]
