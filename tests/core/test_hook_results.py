"""Effects of a hook's result: injections, messages, approvals."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_core.approval import ApprovalTimeoutError
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.models import ContextInjection, HookResult


class Context:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def add_message(self, message: dict[str, Any]) -> None:
        self.messages.append(message)


class Display:
    def __init__(self) -> None:
        self.shown: list[tuple[str, str, str]] = []

    def show_message(self, message: str, level: str, source: str) -> None:
        self.shown.append((message, level, source))


class Approval:
    """Returns scripted answers and records the requests."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: tuple[Any, ...] = ()

    async def request_approval(self, *asked: Any) -> Any:
        self.asked = asked
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def make(approval: Any = None, display: Any = None, **session: Any) -> ModuleCoordinator:
    holder = SimpleNamespace(session_id="s", parent_id=None, config={"session": session})
    return ModuleCoordinator(holder, approval, display)


@pytest.fixture
def context() -> Context:
    return Context()


async def test_an_injection_is_stored_with_its_hook(context: Context) -> None:
    coordinator = make()
    await coordinator.mount("context", context)
    result = HookResult(
        action="inject_context",
        context_injection="fix \x00this\x1b\n",
        context_injection_role="user",
        reason="r",
        data={"d": 1},
        user_message="m",
        suppress_output=True,
    )
    left = await coordinator.process_hook_result(result, "tool:post", "linter")
    assert (left.action, left.reason, left.data) == ("continue", "r", {"d": 1})
    assert (left.user_message, left.suppress_output) == ("m", True)
    assert left.context_injection is None
    assert left is not result
    (message,) = context.messages
    assert (message["role"], message["content"]) == ("user", "fix this\n")
    metadata = message["metadata"]
    assert metadata.pop("timestamp").endswith("+00:00")
    assert metadata == {
        "source": "hook",
        "hook_name": "linter",
        "event": "tool:post",
        "requested_role": "user",
        "ephemeral": False,
        "persisted": True,
    }


async def test_ephemeral_injections_are_left_for_the_caller(context: Context) -> None:
    coordinator = make()
    await coordinator.mount("context", context)
    result = HookResult(
        action="inject_context",
        context_injection="merged",
        context_injections=[
            ContextInjection(content="stored", hook_name="a", event="e"),
            ContextInjection(content="one", role="user", ephemeral=True, hook_name="b", event="e"),
            ContextInjection(
                content="two", ephemeral=True, append_to_last_tool_result=True, hook_name="c"
            ),
        ],
    )
    left = await coordinator.process_hook_result(result, "e")
    assert [message["content"] for message in context.messages] == ["stored"]
    assert (left.action, left.ephemeral, left.context_injection) == (
        "inject_context",
        True,
        "one\n\ntwo",
    )
    assert left.context_injection_role == "user"
    assert left.append_to_last_tool_result is True
    assert [item.hook_name for item in left.context_injections] == ["b", "c"]


async def test_one_injection_over_the_limit_stops_all_of_them(context: Context) -> None:
    display = Display()
    coordinator = make(display=display, injection_size_limit=5)
    await coordinator.mount("context", context)
    items = [ContextInjection(content="12345"), ContextInjection(content="123456", hook_name="h")]
    result = HookResult(action="inject_context", context_injections=items, user_message="m")
    with pytest.raises(ValueError, match="exceeds 5 characters: hook 'h'"):
        await coordinator.process_hook_result(result, "e")
    assert (display.shown, context.messages) == ([], [])


async def test_the_budget_of_a_turn_warns_and_is_reset(
    context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = make(injection_budget_per_turn=2)
    await coordinator.mount("context", context)
    result = HookResult(action="inject_context", context_injection="12345678", ephemeral=True)
    await coordinator.process_hook_result(result, "e")
    assert "budget" not in caplog.text
    await coordinator.process_hook_result(result, "e")
    assert "over the budget of 2" in caplog.text
    caplog.clear()
    coordinator.reset_turn()
    await coordinator.process_hook_result(result, "e")
    assert "budget" not in caplog.text


async def test_without_a_context_an_injection_is_dropped() -> None:
    result = HookResult(action="inject_context", context_injection="x")
    assert (await make().process_hook_result(result, "e")).action == "continue"


async def test_a_context_with_a_synchronous_add_message_works() -> None:
    stored: list[Any] = []

    class Plain:
        def add_message(self, message: dict[str, Any]) -> None:
            stored.append(message)

    coordinator = make()
    await coordinator.mount("context", Plain())
    result = HookResult(action="inject_context", context_injection="x")
    await coordinator.process_hook_result(result, "e")
    assert len(stored) == 1


@pytest.mark.parametrize("action", ["continue", "deny", "modify", "inject_context"])
async def test_messages_reach_the_user_with_their_source(action: Any) -> None:
    display = Display()
    coordinator = make(display=display)
    result = HookResult(action=action, user_message="m", user_message_level="warning")
    await coordinator.process_hook_result(result, "e", "linter")
    named = result.model_copy(update={"user_message_source": "own"})
    await coordinator.process_hook_result(named, "e", "linter")
    assert display.shown == [("m", "warning", "hook:linter"), ("m", "warning", "hook:own")]


async def test_a_message_that_cannot_be_shown_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    result = HookResult(user_message="m", suppress_output=True)
    with caplog.at_level(logging.DEBUG):
        assert await make().process_hook_result(result, "e", "h") is result
    assert "hook:h: m" in caplog.text

    class Broken:
        def show_message(self, *args: Any) -> None:
            raise RuntimeError("boom")

    assert await make(display=Broken()).process_hook_result(result, "e") is result
    assert "boom" in caplog.text


@pytest.mark.parametrize("answer", ["Allow", "Allow Once", "allow once", "ALLOW ALWAYS"])
async def test_an_allowing_answer_continues(answer: str) -> None:
    approval = Approval(answer)
    result = HookResult(action="ask_user", data={"d": 1}, user_message="not shown")
    display = Display()
    left = await make(approval, display).process_hook_result(result, "e")
    assert (left.action, left.data) == ("continue", {"d": 1})
    assert isinstance(approval.asked[0], str)
    assert approval.asked[1:] == (["Allow", "Deny"], 300.0, "deny")
    assert display.shown == []


@pytest.mark.parametrize("answer", ["Deny", "Yes", "", None, 1])
async def test_any_other_answer_denies(answer: Any) -> None:
    result = HookResult(action="ask_user", approval_prompt="Really?", approval_options=["Yes"])
    approval = Approval(answer)
    left = await make(approval).process_hook_result(result, "e")
    assert left.action == "deny"
    assert left.reason == "User denied: Really?"
    assert approval.asked[:2] == ("Really?", ["Yes"])


async def test_without_an_approval_system_the_request_is_denied() -> None:
    left = await make().process_hook_result(HookResult(action="ask_user"), "e")
    assert (left.action, left.reason) == ("deny", "No approval system available")


async def test_a_synchronous_approval_system_works() -> None:
    class Plain:
        def request_approval(self, *asked: Any) -> str:
            return "Allow"

    left = await make(Plain()).process_hook_result(HookResult(action="ask_user"), "e")
    assert left.action == "continue"


@pytest.mark.parametrize(("default", "action"), [("allow", "continue"), ("deny", "deny")])
async def test_a_timeout_applies_the_default(default: Any, action: str) -> None:
    result = HookResult(action="ask_user", approval_default=default, approval_timeout=3)
    left = await make(Approval(ApprovalTimeoutError())).process_hook_result(result, "e")
    assert left.action == action
    if action == "deny":
        assert left.reason == "Approval timeout after 3 s"


async def test_other_failures_of_the_approval_system_propagate() -> None:
    with pytest.raises(RuntimeError, match="boom"):
        await make(Approval(RuntimeError("boom"))).process_hook_result(
            HookResult(action="ask_user"), "e"
        )


async def test_a_plain_dict_is_not_a_result() -> None:
    with pytest.raises(AttributeError):
        await make().process_hook_result({"action": "continue"}, "e")  # type: ignore[arg-type]


async def test_exceptions_of_a_context_propagate() -> None:
    class Broken:
        async def add_message(self, message: Any) -> None:
            raise LookupError("no room")

    coordinator = make()
    await coordinator.mount("context", Broken())
    with pytest.raises(LookupError):
        await coordinator.process_hook_result(
            HookResult(action="inject_context", context_injection="x"), "e"
        )


async def test_a_coordinator_with_another_get_is_used_through_it() -> None:
    context = Context()

    class Other(ModuleCoordinator):
        def get(self, mount_point: str, name: str | None = None) -> Any:
            return context if mount_point == "context" else super().get(mount_point, name)

    other = Other()
    assert other.get_mounted("context") is context
    result = HookResult(action="inject_context", context_injection="note")
    await other.process_hook_result(result, "tool:post", "hook")
    assert len(context.messages) == 1
