"""`amplifier session verify`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from amplifier_app.base.errors import SessionError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.session.shared import from_index
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.render.table import OutputOption
from amplifier_app.runtime import describe
from amplifier_app.sessions.removal import remove_leftovers
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import session_ids
from amplifier_app.sessions.verification import Finding, repair, verify


def verify_sessions(
    ids: Annotated[list[str] | None, argument("ID", "Session ids. [default: all]")] = None,
    fix: Annotated[
        bool, option("--repair", "Repair what can be repaired; damaged files are kept.")
    ] = False,
    output: OutputOption = "text",
) -> None:
    """Check saved sessions for damage.

    \b
      amplifier session verify
      amplifier session verify 1a2b3c --repair

    Exits with 6 if a session cannot be resumed as it is. A session in use is not repaired.
    """
    store = SessionStore()
    chosen = [store.find(item).id for item in ids] if ids else sorted(session_ids(store.root))
    results = {item: verify(store.root / item) for item in chosen}
    results = {item: findings for item, findings in results.items() if findings}
    repaired: dict[str, list[Finding]] = {}
    for session_id, findings in results.items() if fix else ():
        try:
            left = repair(store.root / session_id, findings)
        except SessionError as error:
            to_stderr(f"amplifier: not repaired: {error.message}")
            continue
        problems = {item.problem for item in left}
        repaired[session_id] = [finding for finding in findings if finding.problem not in problems]
        results[session_id] = left
    if fix:
        remove_leftovers(store.root)
    from_index(lambda index: None)
    if output == "json":
        print(json_text(_as_data(results, repaired)))
    else:
        _print(results, repaired, len(chosen))
    if any(finding.is_error for findings in results.values() for finding in findings):
        raise typer.Exit(6)


def _as_data(
    results: dict[str, list[Finding]], repaired: dict[str, list[Finding]]
) -> list[dict[str, Any]]:
    return [
        {
            "id": session_id,
            "problems": [
                {
                    "problem": finding.problem,
                    "error": finding.is_error,
                    "repairable": finding.repair is not None,
                    "hint": finding.hint or None,
                }
                for finding in findings
            ],
            "repaired": [repair.problem for repair in repaired.get(session_id, [])],
        }
        for session_id, findings in results.items()
    ]


def _print(
    results: dict[str, list[Finding]], repaired: dict[str, list[Finding]], checked: int
) -> None:
    can_repair = 0
    for session_id, findings in results.items():
        for finding in repaired.get(session_id, []):
            print(f"{session_id}: repaired: {finding.problem}")
        for finding in findings:
            can_repair += finding.repair is not None
            print(f"{session_id}: {'error' if finding.is_error else 'warning'}: {finding.problem}")
            if finding.hint:
                print(f"  {finding.hint}")
    left = sum(bool(findings) for findings in results.values())
    to_stderr(f"{describe.count(checked, 'session')} checked, {left} with problems.")
    if can_repair:
        to_stderr("Repair what can be repaired: amplifier session verify --repair")
