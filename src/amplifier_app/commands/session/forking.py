"""`amplifier session fork`."""

from __future__ import annotations

from typing import Annotated

from amplifier_app.base.errors import UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import Output, to_stderr
from amplifier_app.commands.answers import YesOption, confirm
from amplifier_app.commands.plan_options import takes_plan_options
from amplifier_app.commands.run.choose import choose, fork_with
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.session.shared import SessionArgument
from amplifier_app.commands.typer_options import option
from amplifier_app.render.table import OutputOption
from amplifier_app.runtime import describe
from amplifier_app.sessions.backups import Restore, plan_restore, restore
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.fork import fork_session
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import short_id


@takes_plan_options("plan", "provider", "model", "sets")
def fork(
    session_id: SessionArgument,
    at: Annotated[
        int | None,
        option(
            "--at STEP",
            "Keep the conversation up to the end of this step. [default: all of it]",
            min=1,
        ),
    ] = None,
    *,
    files: Annotated[
        bool, option("--files", "Also restore the files that the session changed after this step.")
    ] = False,
    yes: YesOption = False,
    output: OutputOption = "text",
    request: Request,
) -> None:
    """Start a new session from a step of another one, without asking a model.

    \b
      amplifier session fork 1a2b3c --at 4
      amplifier session fork 1a2b3c --at 4 --model claude-opus-5-5 --files
      amplifier run --fork 1a2b3c "Try it another way."

    The new session has the same conversation up to that step, byte for byte, and the plan of the
    other one unless you change it. Prints its id.
    """
    store = SessionStore()
    source = store.find(session_id)
    if files and at is None:
        raise UsageError("--files needs --at: files are restored to their state after a step")
    restoring = _restoring(source, at) if files and at is not None else []
    if restoring:
        _print_plan(restoring)
        count = sum(not file.reason for file in restoring)
        if count and not confirm(f"Change {describe.count(count, 'file')}?", yes):
            to_stderr("Nothing was done.")
            return
    new = _fork(source, at, request)
    restored = restore(source.path, restoring)
    if output == "json":
        _print_json(new, restored)
        return
    for file in restored:
        if file.reason and file not in restoring:
            to_stderr(f"amplifier: not restored: {one_line(file.path)}: {file.reason}")
    print(new.id)
    step = new.metadata["forked_from"]["step"]
    id = SessionStore().shortest_id(new.id)
    to_stderr(
        f"Forked {short_id(source.id)} after step {step}. Resume with: amplifier run --resume {id}"
    )


def _print_json(new: SessionFolder, restored: list[Restore]) -> None:
    files = [{"path": file.path, "action": file.action, "reason": file.reason} for file in restored]
    data = {"id": new.id, "forked_from": new.metadata["forked_from"], "files": files}
    print(json_text(data))


def _fork(source: SessionFolder, step: int | None, request: Request) -> SessionFolder:
    if not (request.plan or request.provider or request.model or request.sets):
        # The plan is not read: a fork needs nothing that the plan mentions.
        return fork_session(SessionStore(), source, step=step)
    chosen = choose(request._replace(resume=source.id), Output(2))
    return fork_with(chosen.plan, request, source, chosen.project, step)


def _restoring(source: SessionFolder, step: int) -> list[Restore]:
    project = source.metadata.get("project")
    if not isinstance(project, str):
        raise UsageError(f"session {source.id} does not record the directory it worked in")
    return plan_restore(source.path, source.conversation(), step, project)


def _print_plan(restoring: list[Restore]) -> None:
    for file in restoring:
        reason = f": {file.reason}" if file.reason else ""
        to_stderr(f"  {file.action:<8} {one_line(file.path)}{reason}")
