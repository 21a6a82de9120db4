"""One prompt, repeated with feedback until the answer matches its schema and the checks pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amplifier_app.base.errors import UsageError
from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.runtime.turns.turn import NO_TURN, TurnResult, combine_turns
from amplifier_core.events import PROVIDER_REQUEST
from amplifier_core.models import HookResult
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import RESPONSE_FORMAT

if TYPE_CHECKING:
    from amplifier_app.runtime.answer_schema import Answer, AnswerSchema
    from amplifier_app.runtime.checks import CheckResult, CheckRunner
    from amplifier_app.runtime.session import OpenSession

_HINT_LINES = 10


class Requirements(NamedTuple):
    """The requirements of an answer.

    Attributes:
        schema: The JSON Schema of the answer; None if it is text.
        checks: The commands that must succeed; None if there are none.
        retries: How often the model may correct an answer.
    """

    schema: AnswerSchema | None = None
    checks: CheckRunner | None = None
    retries: int = 0


class Attempts:
    """Sends a prompt, and feedback on the answers, until the requirements are met.

    Args:
        session: The session.
        requirements: What the answer must meet.
        to_outcome: The outcome of a turn.

    Attributes:
        data: The JSON value of the answer; None without a schema.
    """

    def __init__(
        self,
        session: OpenSession,
        requirements: Requirements,
        to_outcome: Callable[[TurnResult], Outcome],
    ) -> None:
        self._session = session
        self._required = requirements
        self._to_outcome = to_outcome
        self._turns: list[TurnResult] = []
        self._response: str | None = None
        self._checking: asyncio.Task[list[CheckResult]] | None = None
        self._is_stopped = False
        self.data: Any = None

    @property
    def turn(self) -> TurnResult:
        """All turns so far as one, with the last answer."""
        if not self._turns:
            return NO_TURN
        turn = combine_turns(self._turns)
        return turn if self._response is None else turn._replace(response=self._response)

    @property
    def checks(self) -> list[CheckResult]:
        """The last result of each check that has run."""
        checks = self._required.checks
        return [] if checks is None else list(checks.results.values())

    def stop(self, immediate: bool) -> None:
        """Stop the running turn or check."""
        self._stop(lambda: self._session.stop(immediate))

    def stop_after_step(self) -> None:
        """Stop the running turn after its step, or the running check."""
        self._stop(self._session.stopping.request_after_step)

    def _stop(self, stop_turn: Callable[[], None]) -> None:
        self._is_stopped = True
        if self._checking is not None:
            self._checking.cancel()
        else:
            stop_turn()

    async def run(self, prompt: str, answer: str | None = None) -> Outcome:
        """Send the prompt and return how it ended.

        Args:
            prompt: The prompt.
            answer: The answer to it that an interrupted run left; the prompt is then not sent again.

        Raises:
            Exception: The error that ended a turn.
            asyncio.CancelledError: A check was stopped.
        """
        schema = self._required.schema
        if schema is None:
            return await self._until_accepted(prompt, answer)
        coordinator = self._session.session.coordinator
        limit, size = coordinator.injection_size_limit, len(schema.instruction)
        if limit is not None and size > limit:
            raise UsageError(
                f"the instruction with the schema has {size:,} characters, more than "
                f"session.injection_size_limit ({limit:,})",
                hint="Raise the limit, or use a shorter schema.",
            )
        # Part of the requests only: the conversation, which may go on without a schema, has the user's prompt.
        instruction = HookResult(
            action="inject_context",
            context_injection=schema.instruction,
            context_injection_role="user",
            ephemeral=True,
        )
        remove = coordinator.hooks.register(
            PROVIDER_REQUEST, lambda event, data: instruction, name="answer-schema"
        )
        RESPONSE_FORMAT.register(coordinator, schema.response_format)
        try:
            return await self._until_accepted(prompt, answer)
        finally:
            RESPONSE_FORMAT.register(coordinator, None)
            remove()

    async def _until_accepted(self, following: str, answer: str | None) -> Outcome:
        schema = self._required.schema
        left = self._required.retries
        while True:
            outcome = await self._turn(following, answer)
            answer = None
            if outcome.ending is not Ending.OK or self._is_stopped:
                if schema is None and self.turn.has_answer:
                    self._session.renderer.accepted(self.turn.response)
                return outcome
            failure, following = await self._examine()
            if failure is None:
                self._session.renderer.accepted(self.turn.response)
                return outcome
            if not left:
                if failure.ending is Ending.CHECK_FAILED:
                    # The answer is valid; the exit code shows that a check failed.
                    self._session.renderer.accepted(self.turn.response)
                return failure
            count = self._required.retries - left + 1
            text = f"{failure.message}; retry {count} of {self._required.retries}"
            self._session.renderer.notice(text, "warning", "check")
            left -= 1

    async def _turn(self, prompt: str, answer: str | None) -> Outcome:
        self._response = None
        self._session.turn = NO_TURN
        try:
            if answer is None:
                # The user did not write the feedback that checks give.
                self._session.goes_on = self._session.goes_on or bool(self._turns)
                await self._session.run(prompt)
            else:
                self._session.turn = NO_TURN._replace(response=answer, status="success")
        finally:
            self._turns.append(self._session.turn)
        return self._to_outcome(self._session.turn)

    async def _examine(self) -> tuple[Outcome | None, str]:
        """Why the last answer is not accepted, and the prompt to send next."""
        schema, checks = self._required.schema, self._required.checks
        if schema is not None:
            answer = schema.check(self._session.turn.response)
            if answer is None or answer.problems:
                return _mismatch(answer), schema.feedback(answer)
            self._response, self.data = answer.text, answer.value
        if checks is None:
            return None, ""
        failed = [check for check in await self._run_checks(checks) if not check.passed]
        if not failed:
            return None, ""
        return _failure_outcome(failed), _feedback(failed)

    async def _run_checks(self, checks: CheckRunner) -> list[CheckResult]:
        self._checking = asyncio.ensure_future(checks.run(self.turn.response))
        try:
            results = await self._checking
        finally:
            self._checking = None
        for result in results:
            self._session.renderer.check_ended(result)
        return results


def _mismatch(answer: Answer | None) -> Outcome:
    if answer is None:
        message = "the answer contains no JSON value"
    else:
        message = f"the answer does not match the schema: {'; '.join(answer.problems)}"
    hint = "Use a stronger model (--model), a simpler schema, or more --retries."
    return Outcome(Ending.PROVIDER, message, hint)


def _failure_outcome(failed: list[CheckResult]) -> Outcome:
    first = failed[0]
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    message = f"check {first.name!r} failed ({first.ending}){more}"
    lines = first.output.splitlines()[-_HINT_LINES:]
    hint = "Run it to see what is wrong, or allow more corrections with --retries N."
    return Outcome(Ending.CHECK_FAILED, message, "\n".join([*lines, hint]))


def _feedback(failed: list[CheckResult]) -> str:
    """The prompt after checks that failed."""
    parts = ["These checks of your work failed:"]
    for result in failed:
        output = result.output.rstrip("\n")
        parts.append(f"$ {result.command}\n{output}\n[{result.ending}]")
    parts.append("Fix the cause, then answer the original request again.")
    return "\n\n".join(parts)
