"""`amplifier policy replay`."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.redact import redactor
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.plan import ResolvedPlan
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.runtime.approvals.policy import Decision, place_of_rule, policy_of
from amplifier_app.runtime.describe import count
from amplifier_kit.policy.calls import ModeOption, SavedCall, describe_call, saved_calls

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class _Replayed(NamedTuple):
    call: SavedCall
    decision: Decision


@app.command("replay")
@takes_plan_options("profile", "plan", "sets")
def replay_command(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Session ids. [default: all]", show_default=False),
    ] = None,
    *,
    request: Request,
    mode: ModeOption = None,
    asks: Annotated[bool, typer.Option("--asks", help="Also list calls that would ask.")] = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=0, metavar="N", help="List at most N calls; 0 lists all."
        ),
    ] = 50,
    output: OutputOption = "text",
) -> None:
    """Apply the rules to the tool calls of saved sessions, and list those they would deny.

    \b
      amplifier policy replay
      amplifier policy replay -f plan.yaml --asks
      amplifier policy replay 1a2b3c --mode read-only

    Nothing is run. Each call is decided as if in the directory of its session.
    """
    chosen = chosen_plan(request)
    replayed = run_loop(_replay(chosen, ids or [], mode))
    denied = [one for one in replayed if one.decision.action == "deny"]
    asking = [one for one in replayed if one.decision.action == "ask"]
    listed = [one for one in replayed if one in denied or (asks and one in asking)]
    if output == "json":
        rows = [_facts(chosen, one) for one in listed]
        facts = {"calls": len(replayed), "denied": len(denied), "asked": len(asking)}
        print(json_text(redactor().value({**facts, "listed": rows})))
        return
    end = ":" if listed else ""
    calls = count(len(replayed), "call")
    print(f"would have denied {len(denied):,} and asked about {len(asking):,} of {calls}{end}")
    if not listed:
        return
    shown = listed[:limit] if limit else listed
    columns = [
        Column("SESSION", "middle", drop=1),
        Column("CALL", right=True),
        "DECISION",
        Column("WHAT", "end"),
        Column("BY", "middle"),
    ]
    print_table(columns, [_row(chosen, one) for one in shown])
    if len(shown) < len(listed):
        print(f"{len(listed) - len(shown):,} more: -n 0")


async def _replay(plan: ResolvedPlan, ids: list[str], mode: str | None) -> list[_Replayed]:
    async with policy_of(plan) as decide:
        return [
            _Replayed(call, decide(call.tool, call.input, working_dir=call.project, mode=mode))
            for call in saved_calls(ids)
        ]


def _row(plan: ResolvedPlan, one: _Replayed) -> list[str]:
    call, decision = one
    by = place_of_rule(plan, decision) or decision.by
    what = describe_call(call.tool, call.input)
    return [call.session_id, str(call.number), decision.action, what, by]


def _facts(plan: ResolvedPlan, one: _Replayed) -> dict[str, object]:
    call, decision = one
    return {
        "session_id": call.session_id,
        "call": call.number,
        "tool": call.tool,
        "input": call.input,
        "decision": decision.action,
        "by": decision.by,
        "reason": decision.reason,
        "at": place_of_rule(plan, decision),
    }
