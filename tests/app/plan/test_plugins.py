"""Plugins: what becomes of the files of one in a plan."""

import json
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.plan.documents.plugins import Plugin, data_folder, read_plugin
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.sources.fetch.staging import content_hash
from amplifier_app.sources.loading import load
from tests.app.plan.conftest import Write
from tests.support.module_repositories import write_files
from tests.support.plugins import write_plugin


def plan_with(write: Write, *entries: object, more: str = "") -> dict[str, Any]:
    write(f"extends: mock\nplugins: {json.dumps(entries)}\n{more}")
    return load(plan="plan.yaml", environ={}).data


def module(plan: dict[str, Any], name: str) -> dict[str, Any] | None:
    entries = [*plan["tools"], *plan["hooks"]]
    return next((entry.get("config", {}) for entry in entries if entry["module"] == name), None)


def problems(write: Write, *entries: object) -> list[str]:
    with pytest.raises(PlanError) as caught:
        plan_with(write, *entries)
    return [f"{one.at.line}: {one.message}" for one in caught.value.problems]


def test_its_parts_become_parts_of_the_plan(tmp_path: Path, write: Write) -> None:
    folder = write_plugin(tmp_path / "review")
    plan = plan_with(write, "./review")
    assert module(plan, "tool-skills") == {"plugins": {"review": [str(folder / "skills")]}}
    mcp = module(plan, "tool-mcp")
    assert mcp is not None
    server = mcp["servers"]["review-echo"]
    assert server["args"] == [str(folder / "server/echo.py")]
    assert server["env"] == {"CALLS": ""}
    agent = plan["agents"]["review:reviewer"]
    assert (agent["description"], agent["instruction"]) == ("Reviews code", "You review.")
    assert "explorer" in plan["agents"]


def test_an_agent_gets_no_tool_that_it_does_not_list(tmp_path: Path, write: Write) -> None:
    write_plugin(tmp_path / "review")
    agent = plan_with(write, "./review")["agents"]["review:reviewer"]
    assert {"tool-bash", "tool-web", "tool-task"} <= set(agent["exclude"])
    assert not {"tool-filesystem", "tool-search"} & set(agent["exclude"])
    [rule] = agent["approvals"]
    assert rule["action"] == "deny"
    assert {"write_file", "edit_file", "glob", "bash", "mcp_*"} <= set(rule["tool"])
    assert not {"read_file", "grep"} & set(rule["tool"])


def test_only_the_chosen_parts_are_used(tmp_path: Path, write: Write) -> None:
    write_plugin(tmp_path / "review")
    plan = plan_with(write, {"source": "./review", "only": ["skills"]})
    assert module(plan, "tool-skills") == {"plugins": {"review": [str(tmp_path / "review/skills")]}}
    assert module(plan, "tool-mcp") is None
    assert "review:reviewer" not in plan["agents"]


def test_the_plan_overrides_its_plugins(tmp_path: Path, write: Write) -> None:
    write_plugin(tmp_path / "review")
    more = "agents: {'review:reviewer': {instruction: Be kind.}}\n"
    agent = plan_with(write, "./review", more=more)["agents"]["review:reviewer"]
    assert (agent["description"], agent["instruction"]) == ("Reviews code", "Be kind.")


def test_plugins_of_a_plan_and_of_the_plan_it_extends_are_all_used(
    tmp_path: Path, write: Write
) -> None:
    write_plugin(tmp_path / "one", "one")
    write_plugin(tmp_path / "two", "two")
    write("extends: mock\nplugins: [./one]\n", "base.yaml")
    write("extends: ./base.yaml\nplugins: [./two]\n")
    skills = module(load(plan="plan.yaml", environ={}).data, "tool-skills")
    assert skills is not None
    assert set(skills["plugins"]) == {"one", "two"}


def test_two_of_one_name_are_an_error_unless_one_is_renamed(tmp_path: Path, write: Write) -> None:
    for name in ("a", "b"):
        write_plugin(tmp_path / name)
    [problem] = problems(write, "./a", "./b")
    assert "two plugins are named 'review'" in problem
    assert str(tmp_path / "a") in problem
    assert str(tmp_path / "b") in problem
    plan = plan_with(write, "./a", {"source": "./b", "as": "other"})
    assert {"review:reviewer", "other:reviewer"} <= plan["agents"].keys()
    # The same one twice is no conflict.
    plan_with(write, "./a", "./a")


def test_changed_content_is_refused_with_a_fix(tmp_path: Path, write: Write) -> None:
    write_plugin(tmp_path / "review")
    entry = {"source": "./review", "digest": "sha256:0"}
    with pytest.raises(PlanError) as caught:
        plan_with(write, entry)
    [problem] = caught.value.problems
    assert "has changed since it was added" in problem.message
    assert problem.hint is not None
    assert "amplifier plugin update" in problem.hint


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"only": ["skills"]}, "has no source"),
        ({"source": "./review", "only": ["skill"]}, "'skill' is not one of skills, commands"),
        ({"source": "./review", "with": 1}, "unknown key 'with'"),
        ({"source": "./review", "as": "A B"}, "'A B' is not a plugin's name"),
        ("./empty", "./empty is not a plugin"),
        ("./none", "./none is not a plugin"),
        ("./market", "./market is not a plugin"),
        ("./broken", "is not valid JSON"),
        ("not/a/source", "invalid source"),
    ],
)
def test_what_is_no_plugin_is_a_problem_of_the_plan(
    tmp_path: Path, write: Write, entry: object, message: str
) -> None:
    write_plugin(tmp_path / "review")
    (tmp_path / "empty").mkdir()
    write_files(
        tmp_path,
        {
            "market/.claude-plugin/marketplace.json": '{"plugins": [{"source": "./plugins/a"}]}',
            "broken/plugin.json": "{",
        },
    )
    [problem] = problems(write, entry)
    assert message in problem


def test_agent_plugins_have_skills_and_servers(tmp_path: Path) -> None:
    servers = {
        "local": {"type": "stdio", "command": "a", "args": ["${PLUGIN_ROOT}/b", "${PLUGIN_DATA}"]},
        "remote": {"type": "streamable-http", "url": "https://example.invalid/mcp"},
        "plain": {"type": "streamable-http", "url": "http://example.invalid/mcp"},
        "here": {"type": "streamable-http", "url": "http://127.0.0.1:9/mcp"},
        "old": {"type": "sse", "url": "https://example.invalid/sse"},
        "odd": {"type": "stdio"},
    }
    folder = write_files(
        tmp_path / "kit",
        {
            "plugin.json": '{"name": "kit"}',
            "mcp.json": json.dumps({"mcpServers": servers}),
            "skills/one/SKILL.md": "---\nname: one\ndescription: One.\n---\n",
        },
    )
    plugin = read_plugin(folder, "kit")
    assert plugin.skills == (folder / "skills",)
    assert set(plugin.servers) == {"kit-local", "kit-remote", "kit-here"}
    data = data_folder("kit")
    assert plugin.servers["kit-local"]["args"] == [f"{folder}/b", str(data)]
    assert plugin.servers["kit-local"]["sandbox"] == {"write": [".", str(data)]}
    assert sorted(reason.partition(":")[0] for reason in plugin.left_out) == [
        "the MCP server odd",
        "the MCP server old",
        "the MCP server plain",
    ]


def test_no_part_leads_out_of_the_plugin(tmp_path: Path) -> None:
    secret = write_files(tmp_path / "outside", {"secret.md": "---\ndescription: x\n---\nsecret\n"})
    folder = write_plugin(tmp_path / "review", agents=["../outside/secret.md", "/etc/hostname"])
    (folder / "commands/linked.md").symlink_to(secret / "secret.md")
    (folder / "hooks").mkdir()
    (folder / "hooks/hooks.json").symlink_to(secret / "secret.md")
    plugin = read_plugin(folder, "review")
    assert set(plugin.commands) == {"review-file"}
    assert set(plugin.agents) == {"reviewer"}
    assert plugin.hooks == {}
    assert "../outside/secret.md: it is outside the plugin" in plugin.left_out


@pytest.mark.parametrize(
    ("folder", "is_used"),
    [
        ("${PLUGIN_ROOT}/server", True),
        ("${PLUGIN_DATA}", True),
        ("${CLAUDE_PROJECT_DIR}", True),
        ("server", True),
        ("${PLUGIN_ROOT}/..", False),
        ("${PLUGIN_ROOT}/link", False),
        ("${HOME}", False),
        ("../other", False),
        ("/etc", False),
    ],
)
def test_a_server_runs_in_no_folder_outside_of_its_plugin(
    tmp_path: Path, folder: str, is_used: bool
) -> None:
    servers = {"s": {"command": "a", "cwd": folder}}
    files = {"plugin.json": '{"name": "kit"}', "mcp.json": json.dumps({"mcpServers": servers})}
    kit = write_files(tmp_path / "kit", files)
    (kit / "link").symlink_to("/etc")
    plugin = read_plugin(kit, "kit")
    assert ("kit-s" in plugin.servers) is is_used
    reasons = [] if is_used else [f"the MCP server s: its 'cwd' is outside the plugin: {folder}"]
    assert list(plugin.left_out) == reasons


def test_agents_whose_front_matter_is_not_yaml_are_read_line_by_line(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path / "review")
    text = "---\nname: a\ndescription: Use it: often. Say: 'go'\ntools: Read\n---\nBody: here\n"
    write_files(folder, {"agents/a.md": text})
    agent = read_plugin(folder, "review").agents["a"]
    assert read(agent, "description") == "Use it: often. Say: 'go'"
    assert read(agent, "instruction") == "Body: here"
    assert "exclude" in agent.items


def read(agent: Any, key: str) -> object:
    return agent.items[key].value


def test_variables_of_servers_are_named_and_may_be_unset(tmp_path: Path, write: Write) -> None:
    folder = write_plugin(tmp_path / "re$view")
    plugin: Plugin = read_plugin(folder, "review")
    assert plugin.variables == ["REVIEW_CALLS"]
    mcp = module(plan_with(write, "./re$view"), "tool-mcp")
    assert mcp is not None
    assert mcp["servers"]["review-echo"]["args"] == [str(folder / "server/echo.py")]


HOSTILE_AGENT = "---\nname: a\ndescription: Knows ${SECRET_KEY} and ${x\n---\nSay ${SECRET_KEY}.\n"


def test_texts_of_agents_are_no_variables(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    write_files(write_plugin(tmp_path / "review"), {"agents/a.md": HOSTILE_AGENT})
    write("extends: mock\nplugins: [./review]\n")
    agent = load(plan="plan.yaml").data["agents"]["review:a"]
    assert agent["description"] == "Knows ${SECRET_KEY} and ${x"
    assert agent["instruction"] == "Say ${SECRET_KEY}."


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"command": "a", "args": "b c"}, "'args', 'env' and 'cwd' must be texts"),
        ({"command": "a", "args": [1]}, "'args', 'env' and 'cwd' must be texts"),
        ({"command": "a", "env": {"X": None}}, "'args', 'env' and 'cwd' must be texts"),
        ({"command": ""}, "it has neither a command nor a URL"),
        ({"command": "a", "cwd": 7}, "'args', 'env' and 'cwd' must be texts"),
        ([], "it has neither a command nor a URL"),
    ],
)
def test_a_bad_server_is_left_out_and_the_rest_is_used(
    tmp_path: Path, write: Write, entry: object, reason: str
) -> None:
    folder = write_plugin(tmp_path / "review")
    servers = {"bad": entry, "good": {"command": "b", "args": ["echo ${#x} $HOME ${A:-d} ${"]}}
    write_files(folder, {".mcp.json": json.dumps({"mcpServers": servers})})
    plugin = read_plugin(folder, "review")
    bad = [text for text in plugin.left_out if "bad" in text]
    assert bad == [f"the MCP server bad: {reason}"]
    mcp = module(plan_with(write, "./review"), "tool-mcp")
    assert mcp is not None
    assert mcp["servers"]["review-good"]["args"] == ["echo ${#x} $HOME d ${"]


def test_names_that_the_plan_cannot_have_are_replaced_or_left_out(
    tmp_path: Path, write: Write
) -> None:
    folder = write_plugin(tmp_path / "review")
    servers = {"a server with a long name of its own": {"command": "b"}}
    write_files(
        folder,
        {
            ".mcp.json": json.dumps({"mcpServers": servers}),
            "agents/odd.md": "---\nname: two words\ndescription: x\n---\n",
        },
    )
    plan = plan_with(write, "./review")
    mcp = module(plan, "tool-mcp")
    assert mcp is not None
    assert list(mcp["servers"]) == ["review-a-server-with-a-long-name"]
    assert "review:two words" not in plan["agents"]


@pytest.mark.parametrize(
    "hooks",
    [
        {"hooks": {"PreToolUse": [{"hooks": None}, 5, {"hooks": [7, {"type": "command"}]}]}},
        {"hooks": {"PreToolUse": "x", "Stop": {}}},
        {"hooks": []},
        [],
    ],
)
def test_odd_hooks_are_no_fault_of_the_plan(tmp_path: Path, write: Write, hooks: object) -> None:
    folder = write_plugin(tmp_path / "review")
    write_files(folder, {"hooks/hooks.json": json.dumps(hooks)})
    plan_with(write, "./review")


def test_what_was_built_is_part_of_the_digest(tmp_path: Path, write: Write) -> None:
    folder = write_plugin(tmp_path / "review")
    write_files(folder, {"dist/server.js": "one"})
    entry = {"source": "./review", "digest": content_hash(folder, whole=True)}
    plan_with(write, entry)
    write_files(folder, {"dist/server.js": "two"})
    assert "has changed since it was added" in problems(write, entry)[0]
