"""The handlers of the README do what it says."""

import re
from pathlib import Path
from typing import Any

import yaml

from amplifier_extras import loop_events
from amplifier_extras.loop_events.turn import EventsConfig
from amplifier_modules._shared.module.config import parse_config
from tests.extras.loop_events.conftest import Events
from tests.modules._shared.loop.rig import echo_tool
from tests.support.llm_server import Reply, ToolCall

README = (Path(loop_events.__file__).parent / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found
    return found[1]


async def test_the_handlers(rig: Events) -> None:
    await rig.says(
        Reply(tool_calls=[ToolCall("slow_search", {"text": "x"}, id="call_x")]),
        "TODO: the rest.",
        "Worked.",
        "2 FAILED",
        "Fixed.",
        "All passed",
        "Looks good.",
        other=("A plan.",),
    )
    for name in ("slow_search", "grep", "bash"):
        rig.add_tool(echo_tool(name))
    rig.config["steps"] = [
        {"name": "plan"},
        {"name": "fix", "prompt": "Do it."},
        {"name": "test", "prompt": "Test it."},
        {"name": "review", "prompt": "Review it."},
    ]
    module: dict[str, Any] = {}
    exec(block("python").replace('"fast"', '"openai"'), module)
    stop = await module["mount"](rig.coordinator)

    assert await rig.run("go") == "Looks good."

    assert rig.steps_run() == ["plan", "fix", "test", "fix", "test", "review"]
    assert rig.other.completions[0].body["model"] == "small-model"
    assert [d["tool_name"] for d in rig.of("tool:post")] == ["grep"]
    assert "Finish the remaining TODOs." in rig.said()
    offered = {tool["name"] for tool in rig.main.completions[-1].body["tools"]}
    assert offered == {"slow_search", "grep"}
    stop()


def test_the_plan() -> None:
    orchestrator = yaml.safe_load(block("yaml"))["session"]["orchestrator"]
    settings = parse_config(EventsConfig, orchestrator["config"], "loop-events")
    assert [step.name for step in settings.steps] == ["draft", "review", "fix"]
