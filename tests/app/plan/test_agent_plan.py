"""The plan a sub-agent runs: an agent on top of the plan it gets its task in."""

from typing import Any

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_app.plan.agent_plan import Narrowing, agent_plan
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.sources.loading import load, load_plan
from tests.app.plan.conftest import Write

PLAN = """\
name: lead
instruction: You lead.
session: {orchestrator: {module: loop-basic, config: {max_iterations: 9}}, context: context-simple}
providers:
  - {module: provider-a, config: {model: large, priority: 5}}
  - {module: provider-b, config: {model: other}}
tools:
  - {module: tool-bash, config: {timeout: 7}}
  - {module: tool-filesystem, source: ./files, config: {allowed_read_paths: [a], deep: {x: 1}}}
  - tool-task
hooks: [hooks-logging, {module: hooks-approval, config: {default: ask}}]
agents:
"""


def planned(agents: str, write: Write, name: str = "it", **narrowed: Narrowing) -> ResolvedPlan:
    return agent_plan(load(plan=write(PLAN + agents), environ={}), name, **narrowed)


def modules(plan: ResolvedPlan, section: str) -> list[str]:
    return [entry["module"] for entry in plan.mount_plan()[section]]


def entry(plan: ResolvedPlan, section: str, index: int = 0) -> dict[str, Any]:
    return plan.mount_plan()[section][index]


def test_an_agent_inherits_the_plan(write: Write) -> None:
    plan = planned("  it: {description: d}\n", write)
    assert plan.instruction == "You lead."
    assert modules(plan, "tools") == ["tool-bash", "tool-filesystem", "tool-task"]
    assert modules(plan, "providers") == ["provider-a", "provider-b"]
    assert "it" in plan.mount_plan()["agents"]


def test_listed_tools_replace_the_plans_and_keep_its_configuration(write: Write) -> None:
    write("", "files/x.py")
    plan = planned(
        "  it:\n"
        "    instruction: You work.\n"
        "    tools: [tool-new, {module: tool-filesystem, config: {deep: {y: 2}}}]\n",
        write,
    )
    assert plan.instruction == "You work."
    assert modules(plan, "tools") == ["tool-new", "tool-filesystem"]
    files = entry(plan, "tools", 1)
    assert files["source"].endswith("/files")
    assert files["config"] == {"allowed_read_paths": ["a"], "deep": {"x": 1, "y": 2}}


def test_an_empty_list_of_tools_means_none(write: Write) -> None:
    assert modules(planned("  it: {tools: []}\n", write), "tools") == []


def test_listed_providers_replace_the_plans(write: Write) -> None:
    plan = planned(
        "  it: {providers: [{module: provider-b, config: {model: small}}]}\n",
        write,
    )
    assert modules(plan, "providers") == ["provider-b"]
    assert entry(plan, "providers")["config"] == {"model": "small"}


def test_a_default_provider_that_the_agent_lacks_is_ignored(write: Write) -> None:
    agents = "  it: {providers: [provider-b]}\n  same: {providers: [provider-a]}\n"
    path = write(PLAN + agents)
    plan = load(plan=path, environ={}, sets=["orchestrator.config.default_provider=a"])
    config = agent_plan(plan, "it").mount_plan()["session"]["orchestrator"]["config"]
    assert config == {"max_iterations": 9, "default_provider": None}
    config = agent_plan(plan, "same").mount_plan()["session"]["orchestrator"]["config"]
    assert config["default_provider"] == "a"


def test_hooks_session_and_exclusions_merge_over_the_plan(write: Write) -> None:
    plan = planned(
        "  it:\n"
        "    session: {orchestrator: {config: {max_iterations: 2}}}\n"
        "    hooks: [{module: hooks-approval, config: {timeout: 1}}, hooks-status]\n"
        "    exclude: [hooks-logging, tool-bash]\n",
        write,
    )
    mounted = plan.mount_plan()
    assert mounted["session"]["orchestrator"]["config"] == {"max_iterations": 2}
    assert modules(plan, "hooks") == ["hooks-approval", "hooks-status"]
    assert entry(plan, "hooks")["config"] == {"default": "ask", "timeout": 1}
    assert modules(plan, "tools") == ["tool-filesystem", "tool-task"]


def test_an_agent_is_found_with_and_without_its_namespace(write: Write) -> None:
    agents = (
        "  'kit:one': {description: d, instruction: Kit one.}\n"
        "  two: {description: d, instruction: Two.}\n"
        "  'a:three': {description: d}\n  'b:three': {description: d}\n"
        "  'kit:self': {description: d, instruction: Kit self.}\n"
    )
    assert planned(agents, write, "one").instruction == "Kit one."
    assert planned(agents, write, "kit:one").instruction == "Kit one."
    assert planned(agents, write, "kit:two").instruction == "Two."
    assert planned(agents, write, "self").instruction == "You lead."
    with pytest.raises(ConfigError, match="unknown agent 'three'"):
        planned(agents, write, "three")


def test_a_caller_may_remove_modules_but_not_add_any(write: Write) -> None:
    tools = Narrowing.of({"exclude_tools": ["tool-task"]}, "tools")
    hooks = Narrowing.of({"inherit_hooks": ["hooks-approval", "hooks-unknown"]}, "hooks")
    plan = planned("  it: {}\n", write, tools=tools, hooks=hooks)
    assert modules(plan, "tools") == ["tool-bash", "tool-filesystem"]
    assert modules(plan, "hooks") == ["hooks-approval"]
    nonsense = Narrowing.of({"inherit_tools": "tool-bash"}, "tools")
    assert modules(planned("  it: {}\n", write, tools=nonsense), "tools") == []


def test_self_is_the_plan_unless_an_agent_has_this_name(write: Write) -> None:
    assert modules(planned("  it: {}\n", write, "self"), "tools")[0] == "tool-bash"
    assert modules(planned("  self: {tools: [tool-grep]}\n", write, "self"), "tools") == [
        "tool-grep"
    ]


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        ("  writer: {}\n  reader: {}\n", "the plan has: reader, writer"),
        ("  it2: {}\n", "did you mean 'it2'?"),
        ("  {}\n", "the plan has no agents"),
    ],
)
def test_an_unknown_agent_is_reported_with_the_known_ones(
    agents: str, expected: str, write: Write
) -> None:
    with pytest.raises(ConfigError) as raised:
        planned(agents, write)
    assert "unknown agent 'it'" in str(raised.value)
    assert expected in str(raised.value)


def test_the_plan_of_an_agent_can_be_saved_and_read_again(write: Write) -> None:
    agents = "  it: {instruction: 'Pay $$5', tools: [tool-bash], providers: [provider-b]}\n"
    plan = planned(agents, write)
    again = load_plan(write(plan.to_yaml(), "saved.yaml"), environ={})
    assert again.mount_plan() == plan.mount_plan()
    assert again.instruction == "Pay $5"
