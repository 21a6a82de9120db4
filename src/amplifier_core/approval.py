"""Protocols that an app implements for the user: approval, and messages of hooks."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from amplifier_support.named_tuple import NamedTuple


class ApprovalTimeoutError(Exception):
    """An approval request timed out."""


@runtime_checkable
class ApprovalSystem(Protocol):
    """Asks the user for approval; passed to the session by the app."""

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: Literal["allow", "deny"]
    ) -> str:
        """Ask the user and return the chosen one of `options`.

        Args:
            prompt: The question.
            options: The possible answers.
            timeout: Seconds to wait.
            default: What the kernel does after a timeout.

        Raises:
            ApprovalTimeoutError: There was no answer in time.
        """
        ...


class ToolApproval(NamedTuple):
    """A tool call to be approved, with what an app needs to show it.

    Attributes:
        question: The question as text, for apps that show nothing else.
        tool_name: The tool.
        tool_input: Its input.
        working_dir: The directory that relative paths in the input start at.
        options: The possible answers.
        reason: Why it is asked about; None if there is no particular reason.
        ranges: The calls that an answer can apply to if it is remembered, from narrow to wide, such
            as ``["exactly this command", "commands that start with pytest"]``.
        usual_range: The position of the one that is meant if the answer has none.
        stored_in: The file in which an answer for later sessions is stored; None if it is not.
        position: Its number among the calls of this step that ask.
        total: How many calls of this step ask.
        is_proposal: Whether the call does nothing itself, but proposes what to do: its input has the
            `proposal`, in Markdown, which an answer may replace.
    """

    question: str
    tool_name: str
    tool_input: Mapping[str, Any]
    working_dir: str
    options: list[str]
    reason: str | None = None
    ranges: Sequence[str] = ()
    usual_range: int = 0
    stored_in: str | None = None
    position: int = 1
    total: int = 1
    is_proposal: bool = False


class ToolApprovalAnswer(NamedTuple):
    """An answer to a `ToolApproval`.

    Attributes:
        option: One of its options.
        comment: What the user says to the model along with a denial.
        by: Who answered: the `user`, a `program` in the user's place, or a `policy` of the app.
        range: The position of the calls it applies to if it is remembered, in `ranges`; None for the
            usual ones.
        input: The input to use instead, if the call is allowed; rules apply to it as well.
    """

    option: str
    comment: str | None = None
    by: Literal["user", "program", "policy"] = "user"
    range: int | None = None
    input: dict[str, Any] | None = None


@runtime_checkable
class ToolApprovalSystem(Protocol):
    """An `ApprovalSystem` that can show a tool call, for example as a diff. Optional for apps."""

    async def request_tool_approval(
        self, request: ToolApproval, timeout: float
    ) -> ToolApprovalAnswer:
        """Ask the user about a tool call.

        Raises:
            ApprovalTimeoutError: There was no answer within `timeout` seconds.
        """
        ...


@runtime_checkable
class AnswerSystem(Protocol):
    """An `ApprovalSystem` that can ask the user for an answer of their own. Optional for apps."""

    async def request_answer(
        self, prompt: str, options: list[str] | None, timeout: float | None
    ) -> str | None:
        """Ask the user.

        Args:
            prompt: The question, and who asks it.
            options: The possible answers; None for any text.
            timeout: Seconds to wait; None to wait forever.

        Returns:
            The answer; None if there is no one to ask, or the user does not answer.

        Raises:
            ApprovalTimeoutError: There was no answer within `timeout` seconds.
        """
        ...


@runtime_checkable
class DisplaySystem(Protocol):
    """Shows messages to the user; passed to the session by the app."""

    def show_message(
        self, message: str, level: Literal["info", "warning", "error"], source: str = "hook"
    ) -> None:
        """Show one message; `source` names its origin (``hook:<name>``)."""
        ...
