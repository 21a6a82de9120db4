"""What handlers decide about each request, each tool call and each answer."""

import re
from typing import Any

import pytest

from amplifier_core.llm_errors import ConfigurationError
from amplifier_core.models import HookResult
from tests.extras.loop_events.conftest import Events
from tests.modules._shared.loop.rig import FunctionTool, echo_tool
from tests.support.llm_server import Reply, ToolCall


def asks(what: str = "a", tool: str = "echo", **more: Any) -> Reply:
    return Reply(tool_calls=[ToolCall(tool, {"text": what}, id=f"call_{what}")], **more)


def offered(request: Any) -> dict[str, dict[str, Any]]:
    """The tools of a request to the Messages API, by name."""
    return {tool["name"]: tool for tool in request.body.get("tools", [])}


# The provider


async def test_a_handler_chooses_the_provider_of_each_request(rig: Events) -> None:
    await rig.says(asks("a"), other=("done",))
    rig.add_tool(echo_tool())
    rig.change(
        "provider:resolve", lambda data: {"provider": "openai"} if data["iteration"] == 2 else None
    )

    assert await rig.run("go") == "done"

    assert [r.body["model"] for r in rig.main.completions] == ["claude-sonnet-5-5"]
    assert [r.body["model"] for r in rig.other.completions] == ["gpt-4o"]
    first = rig.of("provider:resolve")[0]
    assert first["providers"] == ["anthropic", "openai"]
    assert (first["provider"], first["model"]) == ("anthropic", "claude-sonnet-5-5")
    assert (first["step"], first["iteration"]) == ("prompt", 1)
    assert [d["provider"] for d in rig.of("provider:request")] == ["anthropic", "openai"]


async def test_the_default_model_does_not_follow_to_another_provider(rig: Events) -> None:
    await rig.says(other=("done",))
    rig.config["default_model"] = "claude-opus-5"
    rig.change("provider:resolve", lambda _: {"provider": "openai"})
    await rig.run()
    assert rig.other.completions[0].body["model"] == "gpt-4o"


@pytest.mark.parametrize("chosen", ["absent", {"name": "openai"}])
async def test_a_provider_that_is_not_mounted_is_an_error(rig: Events, chosen: Any) -> None:
    await rig.says("never")
    rig.change("provider:resolve", lambda _: {"provider": chosen})
    fault = re.escape(f"handler of provider:resolve chose the provider '{chosen}'")
    with pytest.raises(ConfigurationError, match=fault):
        await rig.run()
    assert rig.ending() == ("error", None)
    assert rig.main.requests == []


# The tools


async def test_tools_left_out_are_neither_seen_nor_run(rig: Events) -> None:
    await rig.says(asks("a", "rm"), "I see.")
    rig.add_tool(echo_tool())
    removing = rig.add_tool(echo_tool("rm"))
    rig.change(
        "tools:offer", lambda data: {"tools": [t for t in data["tools"] if t["name"] != "rm"]}
    )

    assert await rig.run("go") == "I see."

    assert list(offered(rig.main.completions[0])) == ["echo"]
    assert removing.inputs == []
    assert "unknown tool 'rm'; available tools: echo" in rig.context.results()["call_a"]


async def test_rewritten_tools_are_offered_and_checked_as_rewritten(rig: Events) -> None:
    await rig.says(asks("a"), asks("b"), "done")
    tool = rig.add_tool(echo_tool())
    parameters = {"type": "object", "properties": {"text": {"enum": ["b"]}}, "required": ["text"]}

    def rewrite(data: dict[str, Any]) -> dict[str, Any]:
        return {"tools": [{"name": "echo", "description": "only b", "parameters": parameters}]}

    rig.change("tools:offer", rewrite)
    assert await rig.run("go") == "done"

    reported = offered(rig.main.completions[0])["echo"]
    assert (reported["description"], reported["input_schema"]) == ("only b", parameters)
    assert tool.inputs == [{"text": "b"}]
    assert "invalid arguments" in rig.context.results()["call_a"]
    assert rig.context.results()["call_b"] == "B"


async def test_a_renamed_tool_is_known_to_policies_by_its_own_name(rig: Events) -> None:
    await rig.says(asks("a", "shout"), asks("b", "shout"), "done")
    tool = rig.add_tool(echo_tool())
    rig.change("tools:offer", lambda _: {"tools": [{"name": "shout", "tool": "echo"}]})
    rig.on(
        "tool:pre",
        lambda data: (
            HookResult(action="deny", reason="no echo of b")
            if data["tool_name"] == "echo" and data["tool_input"] == {"text": "b"}
            else None
        ),
    )
    assert await rig.run("go") == "done"

    assert list(offered(rig.main.completions[0])) == ["shout"]
    assert tool.inputs == [{"text": "a"}]
    assert rig.context.results() == {"call_a": "A", "call_b": "Error: denied: no echo of b"}
    assert [(d["tool_name"], d["called_as"]) for d in rig.of("tool:post")] == [("echo", "shout")]


async def test_a_name_is_enough_to_offer_a_tool(rig: Events) -> None:
    await rig.says("done")
    for name in ("one", "two"):
        rig.add_tool(echo_tool(name))
    rig.change("tools:offer", lambda _: {"tools": ["two"]})
    await rig.run()
    assert list(offered(rig.main.completions[0])) == ["two"]
    assert rig.of("provider:request")[0]["tools"] == ["two"]


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (["nothing"], "names the tool 'nothing', which is not mounted: echo"),
        ([{"name": "x", "tool": "nothing"}], "names the tool 'nothing'"),
        ([{"name": "x", "tool": ["echo"]}], "names the tool"),
        ([{"description": "nameless"}], "left a tool without a name"),
        ([7], "left a tool without a name"),
    ],
)
async def test_a_tool_that_does_not_exist_is_an_error(rig: Events, tools: Any, said: str) -> None:
    await rig.says("never")
    rig.add_tool(echo_tool())
    rig.change("tools:offer", lambda _: {"tools": tools})
    with pytest.raises(ConfigurationError, match=f"a handler of tools:offer {said}"):
        await rig.run()


# The tool that runs


async def test_a_scheduler_vetoes_a_call(rig: Events) -> None:
    await rig.says(asks("a"), "I see.")
    tool = rig.add_tool(echo_tool())
    rig.on("tool:selecting", HookResult(action="deny", reason="too dear"))

    assert await rig.run("go") == "I see."

    assert tool.inputs == []
    assert rig.context.results() == {"call_a": "Error: denied: too dear"}
    assert rig.of("tool:pre") == []
    assert rig.last("tool:error")["error"]["type"] == "Denied"
    assert rig.of("tool:selected") == []


@pytest.mark.parametrize("key", ["tool_name", "tool"])
async def test_a_scheduler_has_another_tool_answer(rig: Events, key: str) -> None:
    await rig.says(asks("a", "slow"), asks("b", "quick"), "done")
    slow, quick = rig.add_tool(echo_tool("slow")), rig.add_tool(echo_tool("quick"))
    rig.change("tool:selecting", lambda _: {key: "quick"})

    assert await rig.run("go") == "done"

    assert (slow.inputs, quick.inputs) == ([], [{"text": "a"}, {"text": "b"}])
    assert rig.of("tool:selecting")[0]["available_tools"] == ["slow", "quick"]
    keys = ("tool", "source", "original_tool", "tool_call_id")
    assert [tuple(d[key] for key in keys) for d in rig.of("tool:selected")] == [
        ("quick", "scheduler", "slow", "call_a"),
        ("quick", "llm", None, "call_b"),
    ]
    assert [d["tool_name"] for d in rig.of("tool:pre")] == ["quick", "quick"]
    # The model reads the result under the name it called.
    assert [m["name"] for m in rig.context.messages if m["role"] == "tool"] == ["slow", "quick"]


async def test_what_is_no_name_selects_nothing(rig: Events) -> None:
    await rig.says(asks("a"), "done")
    tool = rig.add_tool(echo_tool())
    rig.change("tool:selecting", lambda _: {"tool": ["other"]})
    assert await rig.run("go") == "done"
    assert tool.inputs == [{"text": "a"}]


async def test_a_tool_that_is_not_offered_cannot_be_selected(rig: Events) -> None:
    await rig.says(asks("a"), "I see.")
    tool = rig.add_tool(echo_tool())
    rig.change("tool:selecting", lambda _: {"tool_name": "nothing"})
    await rig.run("go")
    assert tool.inputs == []
    assert "chose the tool 'nothing', which is not offered" in rig.context.results()["call_a"]


# What comes next


async def test_a_handler_stops_after_a_tool_call(rig: Events) -> None:
    """As with a tool by which the model hands in its result."""
    await rig.says(asks("a", text="Here it is."))
    rig.add_tool(echo_tool())
    rig.change("loop:next", lambda data: {"next": "end"} if "echo" in data["tool_calls"] else None)

    assert await rig.run("go") == "Here it is."

    assert rig.ending() == ("success", None)
    assert rig.context.roles() == ["user", "assistant", "tool"]
    assert len(rig.main.completions) == 1


async def test_a_handler_says_what_the_answer_is(rig: Events) -> None:
    await rig.says("forty-two")
    rig.change("loop:next", lambda data: {"response": data["response"].upper()})
    assert await rig.run("go") == "FORTY-TWO"


async def test_a_handler_stops_the_turn_as_not_complete(rig: Events) -> None:
    await rig.says(asks("a"))
    rig.add_tool(echo_tool())
    rig.on("loop:next", HookResult(action="deny", reason="that will do"))
    assert await rig.run("go") == "Denied: that will do"
    assert rig.ending() == ("incomplete", "denied")
    assert rig.last("step:end")["reason"] == "denied"
    assert rig.context.results() == {"call_a": "A"}


async def test_a_handler_lets_it_go_on_after_an_answer(rig: Events) -> None:
    await rig.says("Half of it.", "More of it.", "All of it.")
    prompts = iter([{"next": "continue", "prompt": "And the rest?"}, {"next": "continue"}])
    rig.change("loop:next", lambda _: next(prompts, None))

    assert await rig.run("go") == "All of it."

    assert rig.said() == ["go", "And the rest?", "Continue."]
    reported = rig.of("loop:next")
    assert [d["response"] for d in reported] == ["Half of it.", "More of it.", "All of it."]
    assert [d["iteration"] for d in reported] == [1, 2, 3]
    assert {d["turn_id"] for d in reported} == {rig.last("orchestrator:complete")["turn_id"]}
    assert reported[0]["finish_reason"] in ("stop", "end_turn")


async def test_a_handler_adds_a_word_after_tool_calls(rig: Events) -> None:
    await rig.says(asks("a"), "done")
    rig.add_tool(echo_tool())
    rig.change("loop:next", lambda data: {"prompt": "Now hurry."} if data["tool_calls"] else None)
    assert await rig.run("go") == "done"
    assert rig.context.roles() == ["user", "assistant", "tool", "user", "assistant"]
    assert rig.said() == ["go", "Now hurry."]


async def test_streaming_is_kept(rig: Events) -> None:
    await rig.says("one two three")
    await rig.run()
    assert rig.main.completions[0].body["stream"] is True
    deltas = [d["delta"] for d in rig.of("content_block:delta") if d["block_type"] == "text"]
    assert "".join(deltas) == "one two three"
    assert rig.of("provider:stream")


async def test_without_streaming_answers_come_whole(rig: Events) -> None:
    await rig.says("one two three")
    rig.config["streaming"] = False
    assert await rig.run() == "one two three"
    assert rig.of("provider:stream") == []


async def test_rewritten_tools_stay_the_same_tools_within_a_turn(rig: Events) -> None:
    """Their schemas are compiled once, not for every request."""
    await rig.says(asks("a"), asks("b"), "done")
    rig.add_tool(FunctionTool("echo", echo_tool()._function))
    rig.change("tools:offer", lambda _: {"tools": [{"name": "echo", "description": "other"}]})
    seen: list[int] = []
    loop = rig.loop
    rig.make_loop = lambda: loop  # type: ignore[method-assign]
    problem = loop.state.checker.problem

    def looked(tool: Any, name: str, arguments: dict[str, Any]) -> str | None:
        seen.append(id(tool))
        return problem(tool, name, arguments)

    loop.state.checker.problem = looked  # type: ignore[method-assign]
    await rig.run("go")
    assert len(seen) == 2
    assert len(set(seen)) == 1


async def test_redaction_decides_nothing(rig: Events) -> None:
    """Steps, tools and answers come through hooks-redaction as they are."""
    from amplifier_modules import hooks_redaction
    from tests.support import planted

    secret = planted.SECRETS["github-classic"]
    await rig.loop.mount(rig.coordinator)
    await hooks_redaction.mount(rig.coordinator, {})
    await hooks_redaction.on_session_ready(rig.coordinator)
    rig.config["steps"] = [{"name": "use", "prompt": f"Use {secret}."}, {"name": "tell"}]
    await rig.says(asks(secret), f"{secret} used", "done")
    tool = rig.add_tool(echo_tool())
    tool.description = f"takes {secret}"

    assert await rig.run("go") == "done"

    assert rig.said()[1] == f"Use {secret}."
    assert offered(rig.main.completions[0])["echo"]["description"] == f"takes {secret}"
    assert tool.inputs == [{"text": secret}]
    assert rig.of("step:end")[0]["response"] == f"{secret} used"
