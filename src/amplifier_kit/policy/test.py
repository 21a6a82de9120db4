"""`amplifier policy test`."""

# Named after its command; it is not a test.
# ruff: noqa: PT028

from __future__ import annotations

from typing import Annotated, Any

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending
from amplifier_app.base.redact import redactor
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.plan import ResolvedPlan
from amplifier_app.render.table import OutputOption
from amplifier_app.runtime.approvals.policy import Decision, place_of_rule, policy_of
from amplifier_kit.policy.calls import ModeOption, describe_call, parse_call

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("test")
@takes_plan_options("profile", "plan", "sets")
def test_command(
    call: Annotated[
        str,
        typer.Argument(metavar="CALL", help="The call, as 'bash: rm -rf build', or a tool."),
    ],
    input: Annotated[
        str | None,
        typer.Argument(metavar="JSON", help="The input of the tool.", show_default=False),
    ] = None,
    *,
    request: Request,
    mode: ModeOption = None,
    output: OutputOption = "text",
) -> None:
    """Show the decision on a tool call, and the rule that made it.

    \b
      amplifier policy test 'bash: rm -rf build'
      amplifier policy test 'edit_file: src/app.py' --mode edits
      amplifier policy test web_fetch '{"url": "https://example.com"}'

    Decides like a session in this directory would, without asking or running anything. Exits with 0
    if the call is allowed, and with 8 if it is denied or needs approval.
    """
    tool, values = parse_call(call, input)
    chosen = chosen_plan(request)
    decision = run_loop(_decision(chosen, tool, values, mode))
    place = place_of_rule(chosen, decision)
    facts = {
        "decision": decision.action,
        "by": decision.by,
        "reason": decision.reason,
        "at": place,
    }
    if output == "json":
        print(json_text(redactor().value({"tool": tool, "input": values, **facts})))
    else:
        print(f"{decision.action:<6} {describe_call(tool, values)}")
        print(f"by     {decision.by}{f' ({place})' if place else ''}")
        if decision.reason:
            print(f"reason {decision.reason}")
    if decision.action != "allow":
        raise typer.Exit(Ending.DENIED.exit_code)


async def _decision(
    plan: ResolvedPlan, tool: str, values: dict[str, Any], mode: str | None
) -> Decision:
    async with policy_of(plan) as decide:
        return decide(tool, values, mode=mode)
