"""`--approve-with`: a program that answers in the user's place.

For each question it gets one JSON object on stdin and answers on stdout, with a word or an object:

    {"schema_version": 1, "kind": "tool", "tool": "bash", "input": {…}, "question": "…", "reason": "…",
     "agent": "", "working_dir": "/work", "session_id": "…"}
    allow | deny | ask | {"decision": "allow", "reason": "…", "input": {…}}

`reason` is for the model; `input` replaces that of a call that is allowed, and the rules are applied to it.
Other questions have the kind `question`, with `options`. A program that fails, runs out of time or answers
with anything else denies.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from amplifier_app.base.errors import UsageError
from amplifier_app.base.sanitize import one_line
from amplifier_core.cancellation import is_failure, task_cancel_count
from amplifier_support.environment import without_secrets
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.process.commands import ProcessRunner
from amplifier_support.process.with_input import run_with_input
from amplifier_support.working_folder import working_folder

Decision = Literal["allow", "deny", "ask"]

SECONDS = 300.0
"""Time limit of an answer if the question has none."""

_MAX_SHOWN = 300


class ProgramAnswer(NamedTuple):
    """The answer to a question.

    Attributes:
        decision: `ask` leaves it to the user.
        reason: The reason for the model.
        input: The input to use instead of that of the call.
        problem: Why the program could not answer; it then denies.
    """

    decision: Decision
    reason: str | None = None
    input: dict[str, Any] | None = None
    problem: str | None = None


Decide = Callable[[Mapping[str, Any]], Any]
"""Answers a question: given the mapping above, it returns a decision, or a mapping with one, or an awaitable of
either."""


def read_answer(value: Any) -> ProgramAnswer:
    """The answer in what a program or a function returned; anything unclear denies."""
    answer: Mapping[str, Any] = value if isinstance(value, Mapping) else {"decision": value}
    decision, reason, changed = (answer.get(name) for name in ("decision", "reason", "input"))
    unknown = sorted(map(str, answer.keys() - {"decision", "reason", "input"}))
    if decision not in ("allow", "deny", "ask"):
        given_text = one_line(repr(decision), _MAX_SHOWN)
        return _failed(f"its decision is {given_text}, not allow, deny or ask")
    if unknown:
        return _failed(f"its answer has unknown keys: {', '.join(unknown)}")
    if reason is not None and not isinstance(reason, str):
        return _failed("its reason is not text")
    if changed is not None and (not isinstance(changed, dict) or decision != "allow"):
        return _failed("'input' must be an object, and is only for 'allow'")
    return ProgramAnswer(decision, reason, cast("dict[str, Any] | None", changed))


def _failed(problem: str) -> ProgramAnswer:
    return ProgramAnswer("deny", problem=problem)


def check_program(command: str) -> None:
    """Check that the program of a shell command exists, before there is a question.

    A command that begins with anything but a plain name or path is up to the shell.

    Raises:
        UsageError: It is missing or not executable.
    """
    word = re.match(r"\s*([\w./+-]+)(?:\s|$)", command)
    if word is None or shutil.which(word[1]):
        return
    # Words of the shell itself, such as `exec`.
    known = ["sh", "-c", f"command -v {word[1]}"]
    if "/" in word[1] or subprocess.run(known, capture_output=True, check=False).returncode:
        state = "not executable" if os.path.exists(word[1]) else "missing"
        raise UsageError(f"--approve-with: the program {word[1]!r} is {state}")


async def ask_program(
    command: str, question: Mapping[str, Any], timeout: float | None
) -> ProgramAnswer:
    """Run the program and read its answer.

    Args:
        command: A shell command of the user; it runs with the user's rights and environment.
        question: See above.
        timeout: Seconds to wait.
    """
    runner = ProcessRunner(None)
    try:
        ran = await run_with_input(
            runner,
            command,
            stdin=json.dumps({"schema_version": 1, **question}).encode("ascii") + b"\n",
            environment=without_secrets(os.environ, passthrough=("*",)),
            folder=working_folder(),
            timeout=timeout or SECONDS,
        )
    finally:
        await runner.close()
    errors = one_line(ran.errors.decode("utf-8", "replace"), _MAX_SHOWN)
    problem = ran.problem or (f"it exited with code {ran.exit_code}" if ran.exit_code else None)
    if problem is not None:
        return _failed(f"{problem}{f' ({errors})' if errors else ''}")
    try:
        value: Any = json.loads(ran.output)
    except (ValueError, RecursionError):
        value = ran.output.decode("utf-8", "replace").strip()
    return read_answer(value)


async def ask_function(
    decide: Decide, question: Mapping[str, Any], timeout: float | None
) -> ProgramAnswer:
    """Call the function and read its answer; see `ask_program`."""
    cancels = task_cancel_count()
    try:
        async with asyncio.timeout(timeout or SECONDS):
            value = decide(question)
            return read_answer(await value if inspect.isawaitable(value) else value)
    except TimeoutError:
        return _failed("it did not answer in time")
    # The function is foreign code; whatever it raises, also `SystemExit`, must not allow the call.
    except BaseException as error:
        if not is_failure(error, cancels):
            raise
        return _failed(f"it raised {type(error).__name__}: {error}")
