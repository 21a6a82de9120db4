"""200 tools of a real server: requests carry their names, and the schemas that the model has searched for."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.extras.tool_mcp.support import raw, session
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.llm.http import Request
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall

PROVIDERS: dict[str, dict[str, Any]] = {
    "anthropic": {"module": "provider-anthropic"},
    "references": {"module": "provider-anthropic", "config": {"tool_references": True}},
    "chat": {"module": "provider-openai", "config": {"api": "chat", "model": "gpt-4.1"}},
    "responses": {"module": "provider-openai", "config": {"api": "responses", "model": "gpt-4.1"}},
    "responses references": {
        "module": "provider-openai",
        "config": {"api": "responses", "model": "gpt-6-sol", "tool_references": True},
    },
}
WITHOUT_REFERENCES = [name for name in PROVIDERS if "references" not in name]
RIGHT = "mcp_many_refund_payment"


def write_plan(folder: Path, provider: str = "anthropic", **more: Any) -> Path:
    config = {"wait": 30, "servers": {"many": raw("many", env={"CALLS": str(folder / "calls")})}}
    tools = [{"module": "tool-mcp", "config": config | more.pop("config", {})}]
    plan = {
        "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
        "providers": [PROVIDERS[provider]],
        "tools": [*tools, *more.pop("tools", ())],
        **more,
    }
    path = folder / "plan.yaml"
    path.write_text(json.dumps(plan))
    return path


def run(folder: Path, server: ScriptedLLM, *words: str | Path, code: int = 0) -> Finished:
    env: dict[str, str | None] = {
        "ANTHROPIC_API_KEY": "sk-test-key-of-the-run",
        "ANTHROPIC_BASE_URL": server.base_url,
        "OPENAI_API_KEY": "sk-test-key-of-the-run",
        "OPENAI_BASE_URL": server.openai_base_url,
    }
    finished = run_amplifier("run", *words, cwd=folder, home=folder / "home", env=env)
    assert finished.code == code, finished.stderr
    return finished


def names(request: Request) -> list[str]:
    found = [
        tool
        for item in request.body.get("input", ())
        for tool in item.get("tools", ())
        if item.get("type") == "tool_search_output"
    ]
    tools = [*request.body["tools"], *found]
    return [tool.get("function", tool).get("name", tool.get("type")) for tool in tools]


def tools_as_text(request: Request) -> str:
    # A mark of where the cached prefix ends is not part of it.
    marks = {"cache_control"}
    tools = request.body["tools"]
    return json.dumps([{k: v for k, v in tool.items() if k not in marks} for tool in tools])


def tokens(request: Request) -> int:
    return len(json.dumps(request.body)) // 4


def search(query: str) -> Reply:
    return Reply(tool_calls=[ToolCall("tool_search", {"query": query})])


def call_first_match(request: Request) -> Reply:
    """Call the first tool that the search found, as a model would, if its schema is offered."""
    pattern = r'(?:- |"(?:tool_)?name": ")(mcp_many_\w+)'
    conversation = request.body.get("messages") or request.body["input"]
    match = re.search(pattern, json.dumps(conversation))
    assert match is not None
    assert match[1] in names(request)
    return Reply(tool_calls=[ToolCall(match[1], {"text": "order 12"})])


@pytest.mark.parametrize("provider", WITHOUT_REFERENCES)
def test_one_search_finds_the_right_of_200_tools(tmp_path: Path, provider: str) -> None:
    script = [search("refund a payment"), call_first_match, "done"]
    with ScriptedLLM.running(script) as server:
        run(tmp_path, server, "--plan", write_plan(tmp_path, provider), "go")
        first, second, third = server.completions
    assert (tmp_path / "calls").read_text() == "refund_payment\n"
    assert "order 12" in json.dumps(third.body)
    assert tokens(first) <= 4_000
    assert "mcp_many_send_report" in tools_as_text(first)  # by name
    # What the provider has cached of the first request is the same in later ones.
    assert tools_as_text(second).startswith(tools_as_text(first).removesuffix("]"))
    assert RIGHT in names(second)[len(names(first)) :]
    assert tools_as_text(third) == tools_as_text(second)

    if provider == "anthropic":
        with ScriptedLLM.running(["done"]) as server:
            plan = write_plan(tmp_path, provider, config={"defer": False})
            run(tmp_path, server, "--plan", plan, "go")
            [whole] = server.completions
        assert tokens(whole) > 50_000
        assert len(names(whole)) == 200


def test_a_reference_leaves_the_whole_prefix_as_it_was(tmp_path: Path) -> None:
    script = [search("refund a payment"), call_first_match, "done"]
    with ScriptedLLM.running(script) as server:
        run(tmp_path, server, "--plan", write_plan(tmp_path, "references"), "go")
        first, second, third = server.completions
    assert (tmp_path / "calls").read_text() == "refund_payment\n"
    for later in (second, third):
        loaded = [tool for tool in later.body["tools"] if not tool.get("defer_loading")]
        assert loaded == first.body["tools"]
        assert later.body.get("system") == first.body.get("system")
        [result] = later.body["messages"][2]["content"]
        assert result["content"][0] == {"type": "tool_reference", "tool_name": RIGHT}


def test_the_responses_api_loads_a_tool_where_a_search_has_found_it(tmp_path: Path) -> None:
    script = [search("refund a payment"), call_first_match, "done"]
    with ScriptedLLM.running(script) as server:
        run(tmp_path, server, "--plan", write_plan(tmp_path, "responses references"), "go")
        first, second, third = server.completions
        assert server.rejections == []
    assert (tmp_path / "calls").read_text() == "refund_payment\n"
    [searching] = [tool for tool in first.body["tools"] if tool["type"] == "tool_search"]
    assert searching["execution"] == "client"
    assert "mcp_many_send_report" in searching["description"]
    for later in (second, third):
        assert later.body["tools"] == first.body["tools"]
        _, called, found, *_ = later.body["input"]
        assert called["arguments"] == {"query": "refund a payment"}
        assert called["call_id"] == found["call_id"]
        assert RIGHT in [tool["name"] for tool in found["tools"]]
        assert all(tool["defer_loading"] for tool in found["tools"])


def test_a_resumed_session_offers_the_same_tools(tmp_path: Path) -> None:
    script = [search("refund a payment"), "found", "done"]
    with ScriptedLLM.running(script) as server:
        run(tmp_path, server, "--plan", write_plan(tmp_path), "go")
        run(tmp_path, server, "--continue", "go on")
        _, before, after = server.completions
    assert RIGHT in names(before)
    assert tools_as_text(after) == tools_as_text(before)


def test_rules_decide_on_tools_that_are_found(tmp_path: Path) -> None:
    rules = [{"action": "allow", "tool": "mcp_many_read_*"}, {"action": "deny", "tool": RIGHT}]
    found = [ToolCall("mcp_many_read_invoice", {"text": "a"}), ToolCall(RIGHT, {"text": "b"})]
    script = [search("payments"), Reply(tool_calls=found), "done"]
    with ScriptedLLM.running(script) as server:
        plan = write_plan(tmp_path, hooks=[{"module": "hooks-approval"}], approvals=rules)
        denied = run(tmp_path, server, "--plan", plan, "go", code=8)
        second, third = server.completions[1:]
    assert f"'{RIGHT}' was denied" in denied.stderr
    assert "'tool_search'" not in denied.stderr
    assert "You can call these tools now" in json.dumps(second.body["messages"])
    assert (tmp_path / "calls").read_text() == "read_invoice\n"
    assert "denied: " in json.dumps(third.body["messages"])


def test_an_agent_searches_for_itself(tmp_path: Path) -> None:
    agents = {"clerk": {"description": "Does the work", "instruction": "Work."}}
    task = ToolCall("task", {"agent": "clerk", "instruction": "Give the money back."})
    script = [
        search("archive a survey"),
        Reply(tool_calls=[task]),
        search("refund a payment"),
        call_first_match,
        "done",
        "all done",
    ]
    with ScriptedLLM.running(script) as server:
        plan = write_plan(tmp_path, agents=agents, tools=[{"module": "tool-task"}])
        run(tmp_path, server, "--plan", plan, "go")
        requests = server.completions
    assert (tmp_path / "calls").read_text() == "refund_payment\n"
    assert names(requests[2])[-1] == "tool_search"
    assert RIGHT in names(requests[3])
    assert RIGHT not in names(requests[5])


@pytest.mark.thorough
def test_the_weight_of_a_plan_is_that_of_its_first_request(tmp_path: Path) -> None:
    words = ("plan", "check", "--tokens", "--output", "json", "-f")
    plan = write_plan(tmp_path)
    finished = succeed(*words, plan, cwd=tmp_path, env={"ANTHROPIC_API_KEY": "sk-test"})
    weight = json.loads(finished.stdout)["tokens"]
    parts = {(part["kind"], part["name"]): part["tokens"] for part in weight["parts"]}
    assert sum(parts.values()) == weight["total"] <= 4_000
    assert 1_000 < parts["tool", "tool_search"] < parts["server", "many"] + 2_500


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="starts servers")
@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({}, ["create_invoice", "read_invoice", "list_invoice"]),
        ({"keep": 0}, []),
        (
            {"keep": ["*_send_report", "mcp_many_list_a*"]},
            ["list_article", "list_account", "send_report"],
        ),
    ],
)
async def test_some_tools_are_always_offered(config: dict[str, Any], kept: list[str]) -> None:
    async with session({"many": raw("many")}, **config) as mcp:
        tools = mcp.coordinator.get("tools")
        assert [name for name, tool in tools.items() if not tool.deferrable] == [
            f"mcp_many_{name}" for name in kept
        ]
        [command] = await mcp.coordinator.collect_contributions("chat.commands")
        states: str = await command["handler"]()
    assert states.startswith(f"many: ready, {200 - len(kept)} of 200 tools deferred: mcp_many_")


async def test_the_plan_decides_which_servers_are_deferred() -> None:
    async def deferred(servers: dict[str, Any], **config: Any) -> set[str]:
        async with session(servers, keep=0, **config) as mcp:
            tools = mcp.coordinator.get("tools").values()
            return {tool.server.name for tool in tools if tool.deferrable}

    few, all_of_many = raw(), raw("many")
    assert await deferred({"few": few}) == set()
    assert await deferred({"few": few}, defer=True) == {"few"}
    assert await deferred({"few": {**few, "defer": True}}) == {"few"}
    assert await deferred({"few": few, "many": all_of_many}) == {"few", "many"}
    assert await deferred({"few": {**few, "defer": False}, "many": all_of_many}) == {"many"}
    assert await deferred({"few": few, "many": all_of_many}, defer=False) == set()
    exactly_30 = raw("many", tools={"allow": ["read_*", "*_invoice", "send_meeting"]})
    assert await deferred({"many": exactly_30}) == set()
    more = {**exactly_30, "tools": {"allow": ["read_*", "*_invoice", "send_meeting", "list_order"]}}
    assert await deferred({"many": more}) == {"many"}
