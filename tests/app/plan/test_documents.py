"""Profiles by name, plans by path, and chains of `extends`."""

from pathlib import Path

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.sources.loading import load, load_plan, load_profile
from tests.app.plan.conftest import Write

BASE = """
session: {orchestrator: loop-basic, context: context-simple}
tools:
  - module: tool-bash
    config: {timeout: 10, shell: sh}
  - module: tool-filesystem
"""


def test_a_plan_extends_a_neighbouring_file_from_any_folder(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(BASE, "plans/base.yaml")
    write("extends: ./base.yaml\nname: child\n", "plans/child.yaml")
    monkeypatch.chdir("/")
    plan = load_plan(tmp_path / "plans" / "child.yaml")
    assert plan.name == "child"
    assert [tool["module"] for tool in plan.data["tools"]] == ["tool-bash", "tool-filesystem"]
    assert plan.origin("tools.tool-bash.config.timeout").file == str(tmp_path / "plans/base.yaml")


def test_a_chain_of_three_merges_from_the_last_on(write: Write) -> None:
    write(BASE, "a.yaml")
    write("extends: ./a.yaml\ntools: [{module: tool-bash, config: {timeout: 20}}]\n", "b.yaml")
    write("extends: ./b.yaml\ntools: [{module: tool-bash, config: {shell: zsh}}]\n", "c.yaml")
    plan = load_plan("c.yaml")
    assert plan.data["tools"][0]["config"] == {"timeout": 20, "shell": "zsh"}
    assert str(plan.origin("tools.tool-bash.config.timeout")) == "b.yaml:2:47"
    assert str(plan.origin("tools.tool-bash.config.shell")) == "c.yaml:2:45"
    assert plan.merged.chain == ("c.yaml", "b.yaml", "a.yaml")


def test_circular_extends_is_reported_with_all_files(write: Write) -> None:
    write("extends: ./b.yaml\n", "a.yaml")
    write("extends: ./c.yaml\n", "b.yaml")
    write("extends: ./b.yaml\n", "c.yaml")
    with pytest.raises(PlanError, match=r"c\.yaml:1:10: circular 'extends'") as raised:
        load_plan("a.yaml")
    assert "b.yaml → c.yaml → b.yaml" in str(raised.value)


def test_problems_of_the_whole_chain_are_reported_at_once(write: Write) -> None:
    write("tolls: []\n", "base.yaml")
    write("extends: ./base.yaml\nhoks: []\n")
    with pytest.raises(PlanError) as raised:
        load_plan("plan.yaml")
    assert [str(p.at) for p in raised.value.problems] == ["plan.yaml:2:1", "base.yaml:1:1"]


def test_a_user_profile_comes_before_the_bundled_one_and_may_extend_it(
    write: Write, home: Path
) -> None:
    write(
        "extends: default\ntools: [{module: tool-bash, config: {timeout: 5}}]\n",
        "home/profiles/default.yaml",
    )
    plan = load_profile("default")
    assert plan.data["tools"][1]["config"] == {"timeout": 5}
    assert plan.origin("tools.tool-bash.config").file == str(home / "profiles" / "default.yaml")
    assert plan.origin("tools.tool-filesystem").file != str(home / "profiles" / "default.yaml")


def test_an_unknown_profile_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown profile 'defualt'") as raised:
        load_profile("defualt")
    assert raised.value.hint == "did you mean 'default'?"


@pytest.mark.parametrize("name", ["../secrets", "a/b", "./plan.yaml", "", "-x", "plan.yaml"])
def test_a_profile_name_is_never_a_path(name: str, write: Write) -> None:
    write(BASE)
    with pytest.raises(ConfigError, match="unknown profile"):
        load_profile(name)


def test_a_file_given_as_a_profile_is_reported_with_the_plan_option() -> None:
    with pytest.raises(ConfigError) as raised:
        load_profile("./plan.yaml")
    assert raised.value.hint == "to use a file, pass '--plan ./plan.yaml'"


def test_a_missing_plan_is_reported_with_its_path() -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot read the plan: no such file"):
        load_plan("gone.yaml")


def test_a_folder_is_not_a_plan(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        load_plan(tmp_path)


def test_plan_and_profile_together_are_refused(write: Write) -> None:
    with pytest.raises(ConfigError, match="a plan and a profile are mutually exclusive"):
        load(plan=write(BASE), profile="default")


def test_files_in_the_current_folder_are_not_read_implicitly(write: Write) -> None:
    write("session: 3\n", "profiles/default.yaml")
    write("session: 3\n", ".amplifier/profiles/default.yaml")
    write("session: 3\n", "amplifier.yaml")
    assert load(environ={}).name == "default"
