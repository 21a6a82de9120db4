"""Merging a plan over the plan it extends."""

from pathlib import Path
from typing import Any

import pytest

from amplifier_app.sources.loading import load_plan
from tests.app.plan.conftest import Write

BASE = """
name: base
description: what all share
instruction: base text
session:
  orchestrator: {module: loop-basic, config: {max_iterations: 5, nested: {a: 1, b: [1, 2]}}}
  context: context-simple
  injection_size_limit: 100
providers:
  - module: provider-anthropic
    config: {model: a}
    when: {env: KEY}
  - module: provider-anthropic
    instance_id: fast
    config: {model: b}
tools:
  - module: tool-bash
    source: ./one
    config: {timeout: 10}
  - module: tool-filesystem
hooks:
  - hooks-logging
"""


@pytest.fixture
def merged(write: Write) -> Any:
    write(BASE, "base.yaml")

    def load(text: str) -> dict[str, Any]:
        write(f"extends: ./base.yaml\n{text}")
        return load_plan("plan.yaml", environ={"KEY": "x"}).data

    return load


def test_config_merges_deeply_and_lists_are_replaced(merged: Any) -> None:
    data = merged("session: {orchestrator: {config: {nested: {b: [3], c: 4}}}}\n")
    assert data["session"]["orchestrator"] == {
        "module": "loop-basic",
        "config": {"max_iterations": 5, "nested": {"a": 1, "b": [3], "c": 4}},
    }
    assert data["session"]["injection_size_limit"] == 100


def test_naming_the_same_orchestrator_keeps_its_config(merged: Any) -> None:
    data = merged("session: {orchestrator: loop-basic}\n")
    assert data["session"]["orchestrator"]["config"]["max_iterations"] == 5


def test_another_orchestrator_inherits_no_config(merged: Any) -> None:
    data = merged("session: {orchestrator: loop-streaming}\n")
    assert data["session"]["orchestrator"] == {"module": "loop-streaming"}


def test_config_at_the_top_reaches_an_inherited_orchestrator(merged: Any) -> None:
    data = merged("orchestrator: {config: {max_iterations: 9}}\n")
    assert data["session"]["orchestrator"]["config"]["max_iterations"] == 9


def test_entries_merge_by_module_and_keep_their_order(merged: Any, tmp_path: Path) -> None:
    data = merged(
        "tools: [{module: tool-web}, {module: tool-bash, source: ./two, config: {x: 1}}]\n"
    )
    assert data["tools"] == [
        {"module": "tool-bash", "source": str(tmp_path / "two"), "config": {"timeout": 10, "x": 1}},
        {"module": "tool-filesystem"},
        {"module": "tool-web"},
    ]


def test_entries_of_one_module_are_distinguished_by_instance_id(merged: Any) -> None:
    data = merged(
        "providers: [{module: provider-anthropic, instance_id: fast, config: {model: c}}]\n"
    )
    assert [entry["config"]["model"] for entry in data["providers"]] == ["a", "c"]


def test_an_instance_of_another_module_inherits_nothing(merged: Any) -> None:
    data = merged("providers: [{module: provider-openai, instance_id: fast}]\n")
    assert data["providers"][1] == {"module": "provider-openai", "instance_id": "fast"}


def test_a_condition_is_replaced_as_a_whole(write: Write) -> None:
    write(BASE, "base.yaml")
    write(
        "extends: ./base.yaml\nproviders: [{module: provider-anthropic, when: {no_other: true}}]\n"
    )
    plan = load_plan("plan.yaml", environ={})
    assert [entry.reason for entry in plan.dropped] == ["fast is available"]


def test_exclude_removes_inherited_entries(merged: Any) -> None:
    data = merged("exclude: [tool-bash, fast, hooks-logging]\ntools: [tool-web]\n")
    assert [entry["module"] for entry in data["tools"]] == ["tool-filesystem", "tool-web"]
    assert [entry["module"] for entry in data["providers"]] == ["provider-anthropic"]
    assert data["hooks"] == []


def test_exclude_makes_room_for_an_entry_from_scratch(merged: Any) -> None:
    data = merged("exclude: tool-bash\ntools: [{module: tool-bash, config: {a: 1}}]\n")
    assert data["tools"][1] == {"module": "tool-bash", "config": {"a": 1}}


def test_instruction_is_inherited_and_description_is_not(merged: Any) -> None:
    data = merged("name: child\n")
    assert data["instruction"] == "base text"
    assert "description" not in data
    assert data["name"] == "child"


def test_a_null_in_config_is_a_value(merged: Any) -> None:
    data = merged("tools: [{module: tool-bash, config: {timeout: null}}]\n")
    assert data["tools"][0]["config"] == {"timeout": None}


def test_an_anchor_used_twice_is_merged_in_one_place_only(write: Write) -> None:
    write(
        "x-common: &common {limit: 1}\n"
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        "tools:\n"
        "  - {module: a, config: *common}\n"
        "  - {module: b, config: {<<: *common, more: 2}}\n",
        "base.yaml",
    )
    write("extends: ./base.yaml\ntools: [{module: a, config: {limit: 9}}]\n")
    data = load_plan("plan.yaml").data
    assert [tool["config"] for tool in data["tools"]] == [{"limit": 9}, {"limit": 1, "more": 2}]
    assert "x-common" not in data


def test_budgets_merge_by_limit_and_fallbacks_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "session: {orchestrator: a, context: b, budget: {max_steps: 5, max_cost: 1}}\n"
        "providers: [provider-mock, {module: provider-openai, instance_id: fast}]\n"
        "fallbacks: [fast, provider-mock]\n"
    )
    child = tmp_path / "child.yaml"
    child.write_text(
        "extends: ./base.yaml\nsession: {budget: {max_cost: null}}\nfallbacks: provider-openai\n"
    )
    session = load_plan(child).mount_plan()["session"]
    assert session["budget"] == {"max_steps": 5, "max_cost": None}
    assert session["fallbacks"] == ["fast"], "by the name it is mounted under"
    base = load_plan(tmp_path / "base.yaml").mount_plan()["session"]
    assert base["fallbacks"] == ["fast", "mock"]
