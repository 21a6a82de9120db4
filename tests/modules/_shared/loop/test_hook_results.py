"""What hooks answer is honoured at every step."""

from typing import Any

import pytest

from amplifier_core.approval import ApprovalTimeoutError
from amplifier_core.message_models import ChatResponse, TextBlock
from amplifier_core.models import HookResult
from tests.modules._shared.loop.rig import FunctionTool, Rig, call, calls, echo_tool, shout


class Approval:
    """Answers questions from a list and remembers them."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        self.asked.append(prompt)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Display:
    def __init__(self) -> None:
        self.shown: list[str] = []

    def show_message(self, message: str, level: str, source: str = "hook") -> None:
        self.shown.append(f"{level}: {message}")


def deny(reason: str | None = "not today") -> HookResult:
    return HookResult(action="deny", reason=reason)


def inject(text: str, **fields: Any) -> HookResult:
    return HookResult(action="inject_context", context_injection=text, **fields)


def modify(**changes: Any) -> Any:
    return lambda data: HookResult(action="modify", data={**data, **changes})


class TestDeny:
    @pytest.mark.parametrize("event", ["prompt:submit", "execution:start", "provider:request"])
    async def test_before_the_provider_ends_the_turn_with_the_reason(
        self, rig: Rig, event: str
    ) -> None:
        provider = rig.replies("never")
        rig.on(event, deny())

        assert await rig.run() == "Denied: not today"

        assert provider.requests == []
        done = rig.last("orchestrator:complete")
        assert (done["status"], done["reason"], done["turn_count"]) == ("incomplete", "denied", 0)
        assert rig.last("prompt:complete")["response"] == "Denied: not today"

    async def test_a_denied_prompt_is_not_stored(self, rig: Rig) -> None:
        rig.replies("never")
        rig.on("prompt:submit", deny(None))

        assert await rig.run() == "Denied: no reason given"
        assert rig.context.messages == []
        assert "execution:start" not in rig.names()
        assert "execution:end" not in rig.names()

    async def test_a_denied_response_is_not_stored(self, rig: Rig) -> None:
        rig.replies("something bad")
        rig.on("provider:response", deny("policy"))

        assert await rig.run() == "Denied: policy"
        assert rig.context.roles() == ["user"]

    async def test_a_denied_tool_is_not_run_and_the_model_is_informed(self, rig: Rig) -> None:
        tool = rig.add_tool(echo_tool())
        rig.replies(calls(call(id="c1", text="a")), "understood")
        rig.on("tool:pre", deny("too dangerous"))

        assert await rig.run() == "understood"

        assert tool.inputs == []
        assert rig.context.results() == {"c1": "Error: denied: too dangerous"}
        assert rig.context.messages[2]["is_error"] is True
        assert rig.last("tool:error")["error"] == {
            "type": "Denied",
            "message": "denied: too dangerous",
        }
        assert rig.of("tool:post") == []

    async def test_a_denied_result_does_not_reach_the_model(self, rig: Rig) -> None:
        tool = rig.add_tool(echo_tool())
        rig.replies(calls(call(id="c1", text="secret")), "fine")
        rig.on("tool:post", deny("leaks"))

        await rig.run()

        assert tool.inputs == [{"text": "secret"}]
        assert rig.context.results() == {"c1": "Error: denied: leaks"}

    async def test_during_a_stream_stops_the_answer(self, streaming_rig: Rig) -> None:
        rig = streaming_rig
        rig.replies({"text": "one two three four"}, chunk_size=4)
        rig.on(
            "content_block:delta", lambda data: deny("enough") if "two" in data["delta"] else None
        )

        assert await rig.run() == "Denied: enough"
        # The rig listens behind the hook, which lets the first piece through and not the second.
        assert [data["delta"] for data in rig.of("content_block:delta")] == ["one "]
        assert rig.of("provider:error")
        assert rig.context.roles() == ["user"]

    async def test_closing_events_cannot_be_denied(self, rig: Rig) -> None:
        rig.replies("answer")
        for event in ("execution:end", "prompt:complete", "orchestrator:complete"):
            rig.on(event, deny())

        assert await rig.run() == "answer"


class TestModify:
    async def test_prompt(self, rig: Rig) -> None:
        provider = rig.replies("ok")
        rig.on("prompt:submit", modify(prompt="better prompt"))

        await rig.run("prompt")

        assert rig.context.messages[0]["content"] == "better prompt"
        assert provider.requests[0].messages[-1].content == "better prompt"
        assert rig.last("execution:start")["prompt"] == "better prompt"

    async def test_a_prompt_emptied_by_a_hook_is_refused(self, rig: Rig) -> None:
        rig.replies("never")
        rig.on("prompt:submit", modify(prompt=""))
        with pytest.raises(ValueError, match="Prompt cannot be empty"):
            await rig.run("prompt")

    async def test_messages_of_one_request(self, rig: Rig) -> None:
        provider = rig.replies("ok")
        rig.on("provider:request", modify(messages=[{"role": "user", "content": "instead"}]))

        await rig.run("original")

        assert [m.content for m in provider.requests[0].messages] == ["instead"]
        assert rig.context.messages[0]["content"] == "original"

    async def test_tools_and_model_of_one_request(self, rig: Rig) -> None:
        rig.add_tool(echo_tool("one"))
        rig.add_tool(echo_tool("two"))
        provider = rig.replies("ok")
        rig.on("provider:request", modify(tools=["two"], model="cheap"))

        await rig.run()

        request = provider.requests[0]
        assert [tool.name for tool in request.tools or []] == ["two"]
        assert request.model == "cheap"

    @pytest.mark.parametrize("key", ["tool_input", "input"])
    async def test_tool_input_under_either_name(self, rig: Rig, key: str) -> None:
        tool = rig.add_tool(echo_tool())
        rig.replies(calls(call(id="c1", text="plain")), "done")
        rig.on("tool:pre", modify(**{key: {"text": "changed"}}))

        await rig.run()

        assert tool.inputs == [{"text": "changed"}]
        post = rig.last("tool:post")
        assert post["tool_input"] == post["input"] == {"text": "changed"}
        # What the model asked for stays on record.
        assert rig.context.messages[1]["content"][0]["input"] == {"text": "plain"}

    async def test_input_changed_in_place_counts_when_the_hook_says_so(self, rig: Rig) -> None:
        tool = rig.add_tool(echo_tool())
        rig.replies(calls(call(text="plain")), "done")

        def in_place(data: dict[str, Any]) -> HookResult:
            data["tool_input"]["text"] = "changed"
            return HookResult(action="modify", data=data)

        rig.on("tool:pre", in_place)
        await rig.run()
        assert tool.inputs == [{"text": "changed"}]

    async def test_input_changed_in_place_does_not_count_otherwise(self, rig: Rig) -> None:
        tool = rig.add_tool(echo_tool())
        rig.replies(calls(call(text="plain")), "done")

        def silently(data: dict[str, Any]) -> None:
            data["tool_input"]["text"] = "changed"

        rig.on("tool:pre", silently)
        await rig.run()
        assert tool.inputs == [{"text": "plain"}]

    @pytest.mark.parametrize("replacement", [{"text": 7}, "no object"])
    async def test_an_invalid_replacement_is_not_run(self, rig: Rig, replacement: Any) -> None:
        tool = rig.add_tool(echo_tool())
        rig.replies(calls(call(id="c1", text="a")), "done")
        rig.on("tool:pre", modify(tool_input=replacement))

        await rig.run()

        assert tool.inputs == []
        assert rig.context.results()["c1"].startswith("Error: invalid arguments for tool 'echo'")

    async def test_response(self, rig: Rig) -> None:
        rig.replies("with a secret")
        redacted = ChatResponse(content=[TextBlock(text="without")])
        rig.on("provider:response", modify(response=redacted))

        assert await rig.run() == "without"
        assert rig.context.messages[-1]["content"] == [{"type": "text", "text": "without"}]

    async def test_final_text(self, rig: Rig) -> None:
        rig.replies("plain")
        rig.on("prompt:complete", modify(response="framed"))
        assert await rig.run() == "framed"

    async def test_modification_counts_next_to_an_injection(self, rig: Rig) -> None:
        """The final data is used whatever the strongest answer was."""
        tool = rig.add_tool(echo_tool())
        rig.replies(calls(call(text="plain")), "done")
        rig.on("tool:pre", modify(tool_input={"text": "changed"}))
        rig.on("tool:pre", inject("be careful"))

        await rig.run()

        assert tool.inputs == [{"text": "changed"}]
        assert any(m["content"] == "be careful" for m in rig.context.messages)


@pytest.mark.parametrize("alone", [False, True], ids=["coordinator", "alone"])
class TestInject:
    async def test_stored_before_the_prompt(self, rig: Rig, alone: bool) -> None:
        provider = rig.replies("ok")
        rig.on("prompt:submit", inject("today is Monday", context_injection_role="user"))

        await rig.run("hi", alone=alone)

        assert [m["content"] for m in rig.context.messages[:2]] == ["today is Monday", "hi"]
        assert rig.context.messages[0]["role"] == "user"
        assert len(provider.requests) == 1

    async def test_ephemeral_text_on_provider_request_is_in_that_very_request(
        self, rig: Rig, alone: bool
    ) -> None:
        provider = rig.replies("ok")
        rig.on("provider:request", inject("now", context_injection_role="user", ephemeral=True))

        await rig.run("hi", alone=alone)

        assert "now" in str(provider.requests[0].messages)
        assert rig.context.roles() == ["user", "assistant"]

    async def test_ephemeral_text_behind_the_last_tool_result(self, rig: Rig, alone: bool) -> None:
        rig.add_tool(echo_tool())
        provider = rig.replies(calls(call(id="c1", text="a")), "ok")
        rig.on("tool:post", inject("lint: 3", ephemeral=True, append_to_last_tool_result=True))

        await rig.run("hi", alone=alone)

        last = provider.requests[1].messages[-1]
        assert last.role == "tool"
        assert last.content == "A\n\nlint: 3"
        assert rig.context.results() == {"c1": "A"}

    @pytest.mark.parametrize("event", ["tool:pre", "tool:post", "tool:error"])
    async def test_text_for_storage_waits_until_every_call_is_answered(
        self, rig: Rig, event: str, alone: bool
    ) -> None:
        async def fail(_: dict[str, Any]) -> None:
            raise RuntimeError("broken")

        rig.add_tool(echo_tool())
        rig.add_tool(FunctionTool("fail", fail))
        rig.replies(calls(call(text="a"), call("fail"), call(text="b")), "done")
        rig.on(event, inject("remember"))

        await rig.run(alone=alone)

        roles = rig.context.roles()
        injected = 3 if event == "tool:pre" else 2 if event == "tool:post" else 1
        assert roles == ["user", "assistant", *["tool"] * 3, *["system"] * injected, "assistant"]

    async def test_several_hooks_at_once_keep_their_own_ways(self, rig: Rig, alone: bool) -> None:
        provider = rig.replies("ok")
        rig.on("prompt:submit", inject("kept"), name="one")
        rig.on("prompt:submit", inject("passing", ephemeral=True), name="two")

        await rig.run("hi", alone=alone)

        assert [m["content"] for m in rig.context.messages[:2]] == ["kept", "hi"]
        assert rig.context.messages[0]["metadata"]["hook_name"] == "one"
        assert "passing" in str(provider.requests[0].messages)

    async def test_text_injected_during_a_stream_is_not_lost(self, rig: Rig, alone: bool) -> None:
        rig.add_tool(echo_tool())
        provider = rig.replies(calls(call(text="a")), "ok")
        rig.on("content_block:start", inject("seen", context_injection_role="user", ephemeral=True))

        await rig.run(alone=alone)

        assert "seen" in str(provider.requests[1].messages)


async def test_an_injection_over_the_limit_is_dropped_and_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.plan["session"]["injection_size_limit"] = 10
    rig.replies("ok")
    rig.on("prompt:submit", inject("x" * 11))

    assert await rig.run() == "ok"

    assert rig.context.roles() == ["user", "assistant"]
    assert "exceeds 10 characters" in caplog.text


async def test_an_injection_over_the_limit_drops_no_other(rig: Rig) -> None:
    rig.plan["session"]["injection_size_limit"] = 10
    provider = rig.replies("ok")
    rig.on("provider:request", inject("x" * 11, ephemeral=True), name="long")
    rig.on("provider:request", inject("short", ephemeral=True), name="short")

    assert await rig.run() == "ok"

    assert "short" in str(provider.requests[0].messages)
    assert "xxx" not in str(provider.requests[0].messages)


class TestAskUser:
    ASK = HookResult(action="ask_user", approval_prompt="Really?")

    async def test_no_answer_in_time_counts_as_the_default(self, rig: Rig) -> None:
        rig.with_people(Approval(ApprovalTimeoutError("late")))
        tool = rig.add_tool(echo_tool())
        rig.replies(calls(call(id="c1", text="a")), "done")
        rig.on("tool:pre", self.ASK)

        await rig.run()

        assert tool.inputs == []
        assert "Approval timeout" in rig.context.results()["c1"]

    @pytest.mark.parametrize("alone", [False, True], ids=["coordinator", "alone"])
    async def test_calls_are_denied_if_no_one_can_be_asked(self, rig: Rig, alone: bool) -> None:
        tool = rig.add_tool(echo_tool())
        rig.replies(calls(call(id="c1", text="a")), "done")
        rig.on("tool:pre", self.ASK)

        assert await rig.run(alone=alone) == "done"

        assert tool.inputs == []
        assert rig.context.results()["c1"].startswith("Error: denied: ")

    async def test_several_calls_are_asked_about_one_after_the_other(self, rig: Rig) -> None:
        approval = Approval("Allow", "Deny", "Allow")
        rig.with_people(approval)
        tool = rig.add_tool(echo_tool())
        rig.replies(calls(*[call(id=f"c{i}", text=f"t{i}") for i in range(3)]), "done")
        rig.on(
            "tool:pre",
            lambda data: HookResult(
                action="ask_user", approval_prompt=f"run {data['tool_input']['text']}?"
            ),
        )

        await rig.run()

        assert approval.asked == ["run t0?", "run t1?", "run t2?"]
        assert tool.inputs == [{"text": "t0"}, {"text": "t2"}]
        assert rig.context.results()["c0"] == "T0"
        assert rig.context.results()["c1"] == "Error: denied: User denied: run t1?"

    async def test_refused_prompt_ends_the_turn(self, rig: Rig) -> None:
        rig.with_people(Approval("Deny"))
        rig.replies("never")
        rig.on("prompt:submit", self.ASK)
        assert await rig.run() == "Denied: User denied: Really?"

    async def test_a_failing_approval_runs_nothing_and_answers_every_call(self, rig: Rig) -> None:
        """Fails closed, also with an error that an oversized injection would raise too."""
        rig.with_people(Approval(ValueError("terminal gone")))
        tool = rig.add_tool(echo_tool())
        rig.replies(calls(call(id="c1", text="a"), call(id="c2", text="b")), "done")
        rig.on("tool:pre", self.ASK)

        with pytest.raises(ValueError, match="terminal gone"):
            await rig.run()

        assert tool.inputs == []
        assert list(rig.context.results()) == ["c1", "c2"]
        assert rig.last("orchestrator:complete")["status"] == "error"


async def test_messages_for_the_user_are_shown(rig: Rig) -> None:
    display = Display()
    rig.with_people(display=display)
    rig.add_tool(FunctionTool("echo", shout))
    rig.replies(calls(call(text="a")), "done")
    rig.on(
        "tool:pre",
        HookResult(
            action="deny", reason="no", user_message="blocked it", user_message_level="warning"
        ),
    )

    await rig.run()

    assert display.shown == ["warning: blocked it"]
