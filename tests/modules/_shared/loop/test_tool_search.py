"""Deferrable tools: offered by name only, until the model searches for them or calls them."""

import pytest

from tests.modules._shared.loop.rig import FunctionTool, Rig, call, calls, echo_tool, shout


def deferrable(name: str, description: str = "", **properties: str) -> FunctionTool:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    tool = FunctionTool(name, shout, schema)
    tool.description = description
    tool.deferrable = True  # pyright: ignore[reportAttributeAccessIssue]
    return tool


def add_shop(rig: Rig) -> None:
    rig.add_tool(echo_tool())
    rig.add_tool(deferrable("refundPayment", "Give the money back", text="string"))
    rig.add_tool(deferrable("list_orders", "List what a customer has bought", text="string"))
    rig.add_tool(deferrable("archive", "Store old documents", folder="string"))


def offered(rig: Rig) -> list[list[str]]:
    """The names of the tools in each request."""
    return [data["tools"] for data in rig.of("provider:request")]


async def test_requests_name_deferrable_tools_and_offer_found_ones_last(rig: Rig) -> None:
    add_shop(rig)
    rig.add_tool(echo_tool("shell"))
    provider = rig.replies(
        calls(call("tool_search", query="refunding payments")),
        calls(call("refundPayment", "pay", text="now")),
        "done",
    )
    assert await rig.run() == "done"
    first, *later = offered(rig)
    assert first == ["echo", "shell", "tool_search"]
    assert later == [[*first, "refundPayment"]] * 2
    assert rig.context.results()["pay"] == "NOW"
    descriptions = [request.tools[2].description or "" for request in provider.requests]
    assert descriptions[0].endswith("Tools: archive, list_orders, refundPayment")
    assert len(set(descriptions)) == 1


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("customers bought", ["list_orders"]),
        ("document", ["archive"]),
        ("some folders", ["archive"]),
        ("archive, refundPayment", ["archive", "refundPayment"]),
        ("weather", []),
    ],
)
async def test_a_search_finds_tools_by_words_and_names(
    rig: Rig, query: str, found: list[str]
) -> None:
    add_shop(rig)
    rig.replies(calls(call("tool_search", query=query)), "done")
    await rig.run()
    assert offered(rig)[1] == ["echo", "tool_search", *found]


async def test_a_tool_that_is_called_without_a_search_runs_and_is_offered(rig: Rig) -> None:
    add_shop(rig)
    rig.replies(
        calls(call("list_orders", "bad", of="me"), call("archive", "good", folder="a")), "done"
    )
    await rig.run()
    results = rig.context.results()
    assert "invalid arguments for tool 'list_orders'" in results["bad"]
    assert "error" not in results["good"]
    assert offered(rig)[1] == ["echo", "tool_search", "list_orders", "archive"]


async def test_the_stored_conversation_decides_what_is_offered(rig: Rig) -> None:
    add_shop(rig)
    rig.replies(
        calls(call("tool_search", query="archive")),
        calls(call("tool_search", query="list_orders")),
        "done",
        "again",
        "anew",
    )
    await rig.run()
    last = offered(rig)[-1]
    assert last == ["echo", "tool_search", "archive", "list_orders"]
    await rig.run()  # a new orchestrator, as in a resumed session
    assert offered(rig)[-1] == last
    del rig.context.messages[3:]  # up to the first search
    await rig.run()
    assert offered(rig)[-1] == ["echo", "tool_search", "archive"]


async def test_a_mounted_tool_of_the_same_name_is_kept(rig: Rig) -> None:
    add_shop(rig)
    rig.add_tool(echo_tool("tool_search"))
    rig.replies(calls(call("tool_search", "own", text="mine")), "done")
    await rig.run()
    assert rig.context.results()["own"] == "MINE"
    assert offered(rig)[0] == list(rig.tools)


async def test_without_deferrable_tools_there_is_no_search(rig: Rig) -> None:
    rig.add_tool(echo_tool())
    rig.replies(calls(call("tool_search", "none", query="echo")), "done")
    await rig.run()
    assert offered(rig) == [["echo"], ["echo"]]
    assert "unknown tool 'tool_search'" in rig.context.results()["none"]


async def test_a_long_list_of_names_is_cut_and_still_searched(rig: Rig) -> None:
    for number in range(1000):
        rig.add_tool(deferrable(f"tool_number_{number:03}"))
    provider = rig.replies(calls(call("tool_search", query="number 999")), "done")
    await rig.run()
    [search] = provider.requests[0].tools
    description = search.description or ""
    assert len(description) < 9_000
    assert description.endswith("and more that a search finds")
    assert "tool_number_999" in offered(rig)[1]
