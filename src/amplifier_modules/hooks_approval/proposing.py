"""The mode `propose`: the model reads and hands in a proposal; nothing changes before the user accepts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from amplifier_core.approval import ApprovalTimeoutError, ToolApproval, ToolApprovalSystem
from amplifier_core.events import PROVIDER_REQUEST
from amplifier_core.models import HookResult, ToolResult
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.module.tools import CheckedTool
from amplifier_modules.hooks_approval.config import MODULE_ID, PROPOSE, PROPOSED, ApprovalMode, Mode
from amplifier_support.session_capabilities import DEPTH, WORKING_DIR

GO, AUTO, DECLINE = "Allow, and ask before edits", "Allow, in the mode auto", "Deny"

_REMINDER = f"""\
<system-reminder source="{MODULE_ID}">
The user wants a proposal first: do not change anything yet, and do not ask for it by other means. Read what you need
to know, then call the tool `{PROPOSE}` with what you would do. Once the user accepts, carry it out.
</system-reminder>"""


class ProposeTool(CheckedTool):
    """Ask the user to accept a proposal.

    Args:
        coordinator: See `amplifier_core.coordinator.ModuleCoordinator`.
        mode: Changed when the user accepts.
        timeout: Seconds to wait for an answer.
    """

    name = PROPOSE
    description = (
        "Hand in your proposal for the task, once you know enough to carry it out. The user reads it, may "
        "edit it, and accepts it or says what to change. Write what will be changed in which files, why, and "
        "how it will be verified; name alternatives you decided against. 'todos' are the steps in order."
    )
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "proposal": {"type": "string", "description": "The proposal, in Markdown"},
            "todos": {
                "type": "array",
                "description": "The steps; they become the to-do list",
                "items": {
                    "type": "object",
                    "properties": {
                        "content": {"type": "string"},
                        "status": {"type": "string", "enum": ["pending"]},
                    },
                    "required": ["content"],
                },
            },
        },
        "required": ["proposal", "todos"],
        "additionalProperties": False,
    }

    def __init__(self, coordinator: Any, mode: ApprovalMode, timeout: float) -> None:
        self._coordinator = coordinator
        self._mode = mode
        self._timeout = timeout

    async def run(self, values: dict[str, Any]) -> ToolResult:
        proposal: str = values["proposal"]
        todos: list[dict[str, Any]] = values["todos"]
        option, comment, edited = await self._ask(proposal, todos)
        if option is None:
            await self._emit("open", proposal, todos)
            return ToolResult(
                output="The proposal is handed in, and the user decides later. End now with one short sentence, "
                "without further tool calls."
            )
        if option not in (GO, AUTO):
            await self._emit("revise" if comment else "declined", proposal, todos)
            said = f"The user says: {comment}" if comment else "Ask the user for the reason."
            text = f"the proposal is not accepted. {said}"
            return ToolResult(success=False, error={"message": text, "denied": True})
        proposal = edited or proposal
        await self._emit("accepted", proposal, todos)
        modes: dict[str, Mode] = {GO: "ask", AUTO: "auto"}
        await self._mode.set(modes[option])
        listed = await self._keep(todos)
        todo = ", and keep the to-do list up to date" if listed else ""
        text = f"The user accepts the proposal. Carry it out now{todo}."
        return ToolResult(output=f"{text} The user has edited it:\n\n{edited}" if edited else text)

    async def _ask(
        self, proposal: str, todos: list[dict[str, Any]]
    ) -> tuple[str | None, str | None, str | None]:
        """The option, the user's comment and the edited proposal; no option if no one can be asked."""
        system = self._coordinator.approval_system
        if not getattr(system, "is_interactive", False):
            return None, None, None
        options = [GO, AUTO, DECLINE]
        try:
            if not isinstance(system, ToolApprovalSystem):
                option = await system.request_approval(proposal, options, self._timeout, "deny")
                return option, None, None
            request = ToolApproval(
                question=f"Accept this proposal?\n\n{proposal}",
                tool_name=self.name,
                tool_input={"proposal": proposal, "todos": todos},
                working_dir=WORKING_DIR.of(self._coordinator) or ".",
                options=options,
                is_proposal=True,
            )
            answer = await system.request_tool_approval(request, self._timeout)
        except ApprovalTimeoutError:
            return None, None, None
        edited = (answer.input or {}).get("proposal")
        return answer.option, answer.comment, edited if edited != proposal else None

    async def _keep(self, todos: list[dict[str, Any]]) -> bool:
        """Set the steps as the to-do list, if the session has one."""
        tool = self._coordinator.get("tools", "todo")
        if tool is None or not todos:
            return False
        items = [{"content": str(todo["content"]), "status": "pending"} for todo in todos]
        result: Any = await tool.execute({"action": "create", "todos": items})
        return bool(getattr(result, "success", False))

    async def _emit(self, decision: str, proposal: str, todos: list[dict[str, Any]]) -> None:
        facts = {"proposal": proposal, "todos": todos, "decision": decision}
        await self._coordinator.hooks.emit(PROPOSED, {**facts, **event_ids()})


class Proposing:
    """Offers the tool, and reminds the model, as long as the session is in the mode.

    Attributes:
        close: Stops reminding.
    """

    def __init__(self, coordinator: Any, mode: ApprovalMode, timeout: float) -> None:
        self._coordinator = coordinator
        self._mode = mode
        self._tool = ProposeTool(coordinator, mode, timeout)
        # An agent works for a session that has the tool, or had it.
        self._is_agent = bool(DEPTH.of(coordinator))
        self.close: Callable[[], None] = coordinator.hooks.register(
            PROVIDER_REQUEST, self._on_request, name=MODULE_ID
        )

    async def follow(self) -> None:
        """Mount or unmount the tool, as the mode is now."""
        mounted = self._coordinator.get("tools", PROPOSE)
        if self._mode.mode == PROPOSE and mounted is None and not self._is_agent:
            await self._coordinator.mount("tools", self._tool, name=PROPOSE)
        elif self._mode.mode != PROPOSE and mounted is self._tool:
            await self._coordinator.unmount("tools", PROPOSE)

    async def _on_request(self, event: str, data: Any) -> HookResult | None:
        about = cast("Mapping[str, Any]", data) if isinstance(data, Mapping) else {}
        if self._mode.mode != PROPOSE or self._is_agent or about.get("purpose"):
            return None
        return HookResult.model_construct(
            action="inject_context",
            context_injection=_REMINDER,
            context_injection_role="user",
            ephemeral=True,
            suppress_output=True,
        )
