"""Plans, profiles and what they extend as Markdown with front matter."""

from pathlib import Path

import pytest

from amplifier_app.sources.loading import load, load_plan, load_profile
from tests.app.plan.conftest import Write

SESSION = "session: {orchestrator: loop-basic, context: context-simple}\n"

# As collections of profiles publish them.
PUBLISHED = """\
---
profile:
  name: dev
  version: 1.2.0
  description: Development with the full toolset
  extends: base

session:
  orchestrator:
    module: loop-streaming
    source: git+https://example.com/acme/loop-streaming@main
    config:
      extended_thinking: true
  max_tokens: 200000

providers:
  - module: provider-anthropic
    source: git+https://example.com/acme/provider-anthropic@main
    config:
      default_model: claude-sonnet-4-5

task:
  max_recursion_depth: 1

ui:
  show_thinking_stream: true

tools:
  - module: tool-filesystem

agents:
  dirs:
    - ./agents
  include:
    - collection:bug-hunter
---

# Core Instructions

@collection:context/shared/base.md

Use `${HOME}` as it is.
"""


def test_a_published_profile_is_a_profile(write: Write, home: Path) -> None:
    write(SESSION + "tools: [tool-bash]\n", "home/profiles/base.yaml")
    write(
        "---\nmeta:\n  name: bug-hunter\n  description: Finds bugs\n---\n\nHunt.\n",
        "home/agents/bug-hunter.md",
    )
    path = write(PUBLISHED, "home/profiles/dev.md")
    plan = load(profile="dev", environ={})
    assert plan.name == "dev"
    assert plan.data["description"] == "Development with the full toolset"
    mount_plan = plan.mount_plan()
    assert mount_plan["session"]["orchestrator"]["config"] == {"extended_thinking": True}
    assert mount_plan["session"]["context"]["module"] == "context-simple"
    assert [tool["module"] for tool in mount_plan["tools"]] == ["tool-bash", "tool-filesystem"]
    assert mount_plan["agents"] == {
        "bug-hunter": {"description": "Finds bugs", "instruction": "Hunt."}
    }
    assert plan.instruction == (
        "# Core Instructions\n\n@collection:context/shared/base.md\n\nUse `${HOME}` as it is."
    )
    assert str(plan.origin("instruction")) == f"{path}:38:1"
    assert str(plan.origin("description")) == f"{path}:5:16"
    assert str(plan.origin("tools.tool-filesystem")) == f"{path}:29:5"
    assert plan.notes == [
        f"{path}:33:7: the agents folder './agents' does not exist",
        f"{path}:40:1: '@collection:context/shared/base.md' names a file in an unknown bundle "
        "or collection; the line is kept as is",
        f"{path}:14:3: 'max_tokens' in session is ignored",
        f"{path}:22:1: 'task' in the plan is ignored",
        f"{path}:25:1: 'ui' in the plan is ignored",
    ]


def test_a_published_bundle_is_a_plan(write: Write) -> None:
    write(
        "---\nbundle:\n  name: recipes\n  version: 0.1.0\n  description: Steps\n"
        "context:\n  include:\n    - recipes:context/awareness.md\n"
        f"{SESSION}"
        "agents:\n  include:\n    - recipes:agents/author\n---\nFollow recipes.\n",
        "recipes/bundle.md",
    )
    write("---\nmeta: {name: author, description: Writes}\n---\n", "recipes/agents/author.md")
    write("Recipes are steps.\n", "recipes/context/awareness.md")
    plan = load(plan="recipes/bundle.md", environ={})
    assert plan.name == "recipes"
    assert plan.mount_plan()["session"]["context"]["module"] == "context-simple"
    assert plan.mount_plan()["agents"] == {"recipes:author": {"description": "Writes"}}
    assert plan.instruction == (
        "Follow recipes.\n\n# Context: recipes:context/awareness.md\n\nRecipes are steps."
    )
    assert plan.notes == []


def test_neighbouring_collections_are_found(write: Write, tmp_path: Path) -> None:
    write(f"---\n{SESSION}---\nBase.\n@foundation:context/deep/a.md\n", "all/foundation/base.md")
    write("Deep.\n@foundation:context/b.md", "all/foundation/context/deep/a.md")
    write("Deeper.", "all/foundation/context/b.md")
    write("---\ndescription: 1st\n---\n@expert:more.md\n", "all/expert/agents/one.md")
    write("More.", "all/expert/more.md")
    write(
        "---\nprofile: {name: dev, extends: foundation:base}\n"
        "agents: {include: [expert:one]}\n---\n@foundation:context/b.md\n@gone:x.md\n",
        "all/expert/profiles/dev.md",
    )
    plan = load(plan="all/expert/profiles/dev.md", environ={})
    assert plan.instruction == "Deeper.\n@gone:x.md"
    assert plan.mount_plan()["agents"] == {"one": {"description": "1st", "instruction": "More."}}
    assert plan.merged.chain[1] == str(tmp_path / "all/foundation/base.md")
    base = load(plan="all/foundation/base.md", environ={})
    assert base.instruction == "Base.\nDeep.\nDeeper."


def test_inline_agents_in_the_published_form(write: Write) -> None:
    write(
        f"---\n{SESSION}agents:\n  inline:\n    helper:\n      name: helper\n"
        "      description: Helps\n      system: {instruction: You help.}\n"
        "      ui: {}\n---\n",
        "x.md",
    )
    plan = load(plan="x.md", environ={})
    assert plan.mount_plan()["agents"] == {
        "helper": {"description": "Helps", "instruction": "You help."}
    }
    assert plan.notes == ["x.md:9:7: 'ui' in agent 'helper' is ignored"]


def test_a_bundle_is_a_collection_named_after_itself(write: Write) -> None:
    write(f"---\nbundle: {{name: mine}}\n{SESSION}---\n@mine:rules.md\n", "checkout/bundle.md")
    write("Rules.", "checkout/rules.md")
    assert load(plan="checkout/bundle.md").instruction == "Rules."


def test_all_agents_of_a_collection(write: Write) -> None:
    write(f"---\n{SESSION}agents: all\n---\n", "collection/profiles/dev.md")
    write("---\ndescription: 1st\n---\n", "collection/agents/one.md")
    write("---\ndescription: 2nd\n---\n", "home/agents/two.md")
    plan = load(plan="collection/profiles/dev.md", environ={})
    assert list(plan.mount_plan()["agents"]) == ["one", "two"]


def test_markdown_and_yaml_extend_each_other(write: Write) -> None:
    write(f"---\nname: a\n{SESSION}---\nBase text.\n", "a.md")
    write("extends: ./a.md\ntools: [tool-bash]\n", "b.yaml")
    write("---\nextends: ./b.yaml\n---\n", "c.md")
    plan = load_plan("c.md")
    assert plan.merged.chain == ("c.md", "b.yaml", "a.md")
    assert plan.instruction == "Base text."
    assert plan.name == "c"


def test_yaml_comes_before_markdown_of_the_same_name(write: Write) -> None:
    write(SESSION + "description: yaml\n", "home/profiles/x.yaml")
    write(f"---\n{SESSION}description: md\n---\n", "home/profiles/x.md")
    assert load_profile("x").data["description"] == "yaml"


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_body_keeps_its_lines(ends: str, write: Write, tmp_path: Path) -> None:
    text = f"---\n{SESSION}---  \n\n\nOne\n\n---\n\nTwo \n\n"
    (tmp_path / "x.md").write_bytes(text.replace("\n", ends).encode("utf-8-sig"))
    plan = load_plan("x.md")
    assert plan.instruction == "One\n\n---\n\nTwo"
    assert str(plan.origin("instruction")) == "x.md:6:1"
