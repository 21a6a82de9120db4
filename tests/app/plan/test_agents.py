"""Agents of a plan: in every form, from every place, as one mapping by name."""

from pathlib import Path
from typing import Any

import pytest

from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.sources.loading import load, load_plan
from tests.app.plan.conftest import Write

PLAN = """\
session: {orchestrator: loop-basic, context: context-simple}
providers: [{module: provider-a}, {module: provider-b}]
tools: [tool-bash, tool-filesystem]
"""
REVIEWER = """\
---
name: reviewer
description: Reads with care
tools:
  - module: tool-grep
    source: ./grep
exclude: [tool-bash]
---

You review.
"""


def agents(plan: ResolvedPlan) -> dict[str, Any]:
    return plan.mount_plan()["agents"]


def loaded(text: str, write: Write, **options: Any) -> ResolvedPlan:
    return load(plan=write(PLAN + text), environ={}, **options)


# -- forms -------------------------------------------------------------------------------


def test_a_list_takes_files_names_and_agents_themselves(
    write: Write, home: Path, tmp_path: Path
) -> None:
    write(REVIEWER, "agents/reviewer.md")
    write("---\ndescription: Tests\n---\n", "agents/tester.md")
    write("description: Plans ahead\ninstruction: Plan.\n", "home/agents/planner.yaml")
    plan = loaded(
        "agents:\n"
        "  - agents/*.md\n"
        "  - planner\n"
        "  - name: writer\n"
        "    description: Writes\n"
        "    session: {orchestrator: {config: {max_iterations: 3}}}\n"
        "    providers: [{module: provider-a, config: {model: small}}]\n"
        "    exclude: tool-bash\n",
        write,
    )
    assert agents(plan) == {
        "reviewer": {
            "description": "Reads with care",
            "tools": [{"module": "tool-grep", "source": str(tmp_path / "agents" / "grep")}],
            "exclude": ["tool-bash"],
            "instruction": "You review.",
        },
        "tester": {"description": "Tests"},
        "planner": {"description": "Plans ahead", "instruction": "Plan."},
        "writer": {
            "description": "Writes",
            "session": {"orchestrator": {"config": {"max_iterations": 3}}},
            "providers": [{"module": "provider-a", "config": {"model": "small"}}],
            "exclude": ["tool-bash"],
        },
    }
    assert plan.files == (
        tmp_path / "plan.yaml",
        tmp_path / "agents" / "reviewer.md",
        tmp_path / "agents" / "tester.md",
        home / "agents" / "planner.yaml",
    )


def test_a_mapping_names_agents_and_files(write: Write) -> None:
    write(REVIEWER, "reviewer.md")
    plan = loaded(
        "agents:\n  critic: ./reviewer.md\n  writer: {description: Writes}\n  empty:\n", write
    )
    assert agents(plan)["critic"]["description"] == "Reads with care"
    assert agents(plan)["writer"] == {"description": "Writes"}
    assert agents(plan)["empty"] == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("agents: {dirs: [./mine]}\n", ["reviewer", "tester"]),
        ("agents: {dirs: ./mine, include: [tester]}\n", ["tester"]),
        ("agents: {dirs: ./mine, include: [tester, known]}\n", ["tester", "known"]),
        ("agents: {include: [known]}\n", ["known"]),
        ("agents: {include: [./mine/tester.md]}\n", ["tester"]),
        ("agents: {dirs: ./mine, active: [tester]}\n", ["tester"]),
        ("agents: {include: [known], inline: {own: {description: x}}}\n", ["known", "own"]),
        ("agents: {inline: {own: {description: x}}}\n", ["own"]),
        ("agents: all\n", ["known"]),
        ("agents: none\n", []),
        ("agents: []\n", []),
        ("agents: {}\n", []),
    ],
)
def test_the_published_forms(text: str, names: list[str], write: Write) -> None:
    write(REVIEWER, "mine/reviewer.md")
    write("---\ndescription: Tests\n---\n", "mine/tester.md")
    write("---\ndescription: Known by name\n---\n", "home/agents/known.md")
    assert list(agents(loaded(text, write))) == names


def test_published_agents_have_their_name_in_a_table(write: Write) -> None:
    write(
        "---\nmeta:\n  name: bug-hunter\n  description: Finds bugs\n  model_role: coding\nui: {}\n"
        "provider_preferences: [{provider: mock, model: m-*}]\n---\nFind.\n",
        "x.md",
    )
    plan = loaded("agents: [./x.md]\n", write)
    assert agents(plan) == {
        "bug-hunter": {
            "description": "Finds bugs",
            "instruction": "Find.",
            "model_role": ["coding"],
            "provider_preferences": [{"provider": "mock", "model": "m-*"}],
        }
    }
    assert plan.notes == [f"{Path.cwd()}/x.md:6:1: 'ui' in the agent is ignored"]


def test_an_agent_of_a_bundle_may_be_a_file_with_changes(write: Write) -> None:
    write(
        "---\nmeta: {name: r, description: Reads}\ntools: [tool-web]\n---\nRead.\n", "agents/r.md"
    )
    text = (
        "bundle: {name: kit}\nsession: {orchestrator: loop-basic, context: context-simple}\n"
        "agents:\n  reader: {include: 'kit:agents/r', tools: [tool-bash]}\n"
        "  gone: {include: 'kit:agents/gone', tools: [tool-bash]}\n"
    )
    write(text, "kit.yaml")
    plan = load(plan="kit.yaml", environ={"ANTHROPIC_API_KEY": "k"})
    assert agents(plan) == {
        "reader": {
            "description": "Reads",
            "tools": [{"module": "tool-bash"}],
            "instruction": "Read.",
        }
    }
    assert any("unknown agent 'kit:agents/gone'" in note for note in plan.notes + plan.warnings)


def test_an_agent_of_the_project_comes_before_the_users(write: Write, tmp_path: Path) -> None:
    write("---\ndescription: the user's\n---\n", "home/agents/helper.md")
    write("---\ndescription: the project's\n---\n", "repo/.amplifier/agents/helper.md")
    plan = write(PLAN + "agents: [helper]\n")
    project = tmp_path / "repo" / ".amplifier"
    assert agents(load_plan(plan, project=project))["helper"]["description"] == "the project's"
    assert agents(load_plan(plan))["helper"]["description"] == "the user's"


def test_a_plan_without_agents_has_none(write: Write) -> None:
    assert "agents" not in loaded("", write).mount_plan()


# -- merging -----------------------------------------------------------------------------


def test_agents_merge_by_name_over_extends_and_settings(write: Write, tmp_path: Path) -> None:
    write(REVIEWER, "home/profiles/agents/reviewer.md")
    write(
        PLAN + "agents: [./agents/reviewer.md, {name: writer, description: Writes}]\n",
        "home/profiles/base.yaml",
    )
    write(
        "extends: base\nagents:\n  reviewer:\n    exclude: [tool-filesystem]\n"
        "    tools: [{module: tool-grep, config: {a: 1}}, tool-todo]\n",
        "home/profiles/child.yaml",
    )
    settings = write("agents: {reviewer: {description: Reads twice}}\n", "home/settings.yaml")
    plan = load(profile="child", environ={})
    folder = tmp_path / "home" / "profiles" / "agents"
    assert agents(plan) == {
        "reviewer": {
            "description": "Reads twice",
            "tools": [
                {"module": "tool-grep", "source": str(folder / "grep"), "config": {"a": 1}},
                {"module": "tool-todo"},
            ],
            "exclude": ["tool-filesystem"],
            "instruction": "You review.",
        },
        "writer": {"description": "Writes"},
    }
    assert str(plan.origin("agents.reviewer.description")) == f"{settings}:1:34"
    assert str(plan.origin("agents.reviewer.instruction")) == f"{folder}/reviewer.md:10:1"
    assert (
        str(plan.origin("agents.reviewer.tools.tool-grep.source")) == f"{folder}/reviewer.md:6:13"
    )
    assert plan.origin("agents.reviewer.tools.tool-grep.config.a").line == 5


def test_exclude_removes_an_inherited_agent(write: Write) -> None:
    write(PLAN + "agents: {one: {description: 1st}, two: {description: 2nd}}\n", "base.yaml")
    write("extends: ./base.yaml\nexclude: [one, tool-bash]\n")
    assert list(agents(load_plan("plan.yaml"))) == ["two"]
    write("extends: ./base.yaml\nexclude: [onee]\n")
    with pytest.raises(PlanError, match="did you mean 'one'"):
        load_plan("plan.yaml")


# -- resolution --------------------------------------------------------------------------


def test_variables_and_conditions_apply_to_agents(write: Write) -> None:
    text = (
        "agents:\n"
        "  one:\n"
        "    description: Uses ${MODEL:-a model}\n"
        "    providers:\n"
        "      - {module: provider-a, when: {env: A_KEY}}\n"
        "      - {module: provider-b, when: {no_other: true}}\n"
    )
    plan = loaded(text, write)
    assert agents(plan)["one"] == {
        "description": "Uses a model",
        "providers": [{"module": "provider-b"}],
    }
    assert plan.notes == ["agent one: provider-a skipped: set A_KEY"]
    assert plan.dropped == []


def test_an_exclude_without_effect_in_an_agent_is_a_warning(write: Write) -> None:
    plan = loaded("agents: {one: {exclude: [tool-bahs]}}\n", write)
    assert plan.notes == [
        f"{Path.cwd()}/plan.yaml:4:26: agent one excludes 'tool-bahs', which the plan does not have; "
        "did you mean 'tool-bash'?"
    ]


def test_set_reaches_into_agents(write: Write) -> None:
    text = "agents: {one: {tools: [{module: tool-x, config: {a: 1}}]}}\n"
    plan = loaded(text, write, sets=["agents.one.tools.tool-x.config.a=2"])
    assert agents(plan)["one"]["tools"][0]["config"] == {"a": 2}


def test_agents_survive_being_written_and_read(write: Write, tmp_path: Path) -> None:
    write(REVIEWER.replace("You review.", "Cost: $5 ${x}\n@@here\n@@"), "reviewer.md")
    plan = loaded("agents: [./reviewer.md, {name: auth, description: Logs in}]\n", write)
    assert agents(plan)["reviewer"]["instruction"] == "Cost: $5 ${x}\n@here\n@@"
    again = load(plan=write(plan.to_yaml(), "elsewhere/again.yaml"), environ={})
    assert agents(again) == agents(plan)
    assert agents(load(plan=write(plan.to_yaml(masked=False), "b/c.yaml"))) == agents(plan)


def test_a_secret_in_an_agent_is_masked(write: Write) -> None:
    plan = loaded("agents: {one: {tools: [{module: t, config: {api_key: sk-1}}]}}\n", write)
    assert "sk-1" not in plan.to_yaml()
