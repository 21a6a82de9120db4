"""The profiles that ship."""

import pytest

from amplifier_app.base.paths import bundled_profiles_dir
from amplifier_app.plan.documents.profile_paths import profile_files
from amplifier_app.plan.tree import yaml_reader
from amplifier_app.plan.tree.nodes import Node, plain_data
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.sources.loading import load
from amplifier_core.validation import MountPlanValidator
from tests.meta import profile_trees


def names(environ: dict[str, str], profile: str | None = None) -> list[str]:
    plan = load(profile=profile, environ=environ)
    return [entry["module"] for entry in plan.mount_plan()["providers"]]


@pytest.mark.parametrize("profile", ["default", "minimal"])
def test_the_demo_model_is_used_only_on_request_and_without_another_provider(profile: str) -> None:
    assert names({}, profile) == []
    assert names({"AMPLIFIER_DEMO": "1"}, profile) == ["provider-local"]
    both = {"AMPLIFIER_DEMO": "1", "OPENAI_API_KEY": "k"}
    assert names(both, profile) == ["provider-openai"]


def test_default_uses_the_first_provider_with_credentials() -> None:
    assert names({"OPENAI_BASE_URL": "http://127.0.0.1:1"}) == ["provider-openai"]
    both = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}
    assert names(both)[0] == "provider-anthropic"


def test_default_has_the_tools_of_an_engineer_and_asks_before_changes() -> None:
    plan = load(environ={}).mount_plan()
    assert plan["session"]["orchestrator"]["module"] == "loop-streaming"
    assert plan["session"]["context"]["module"] == "context-simple"
    tools = [tool["module"] for tool in plan["tools"]]
    assert tools == [
        *(
            "tool-filesystem",
            "tool-bash",
            "tool-search",
            "tool-todo",
            "tool-skills",
            "tool-task",
            "tool-web",
        )
    ]
    hooks = [hook["module"] for hook in plan["hooks"]]
    assert hooks == [
        *("hooks-approval", "hooks-context-files", "hooks-status", "hooks-logging", "hooks-backup")
    ]


def test_minimal_has_no_tools() -> None:
    assert load(profile="minimal", environ={}).mount_plan()["tools"] == []


@pytest.mark.parametrize(("profile", "provider"), [("local", "local"), ("mock", "mock")])
def test_a_profile_with_one_provider_ignores_credentials(profile: str, provider: str) -> None:
    assert names({"ANTHROPIC_API_KEY": "k"}, profile) == [f"provider-{provider}"]


def test_every_bundled_profile_resolves_has_a_description_and_an_instruction() -> None:
    bundled = [profile for profile in profile_files() if profile.scope == "bundled"]
    assert {profile.name for profile in bundled} >= {"default", "minimal", "local", "mock"}
    for profile in bundled:
        plan = load(profile=profile.name, environ={})
        assert plan.data["description"], profile
        assert plan.instruction, profile
        assert MountPlanValidator().validate(plan.mount_plan()).passed, profile


def test_the_stored_trees_are_those_of_the_profiles() -> None:
    message = "store them again with: python -m tests.meta.profile_trees"
    assert profile_trees.FILE.read_text(encoding="utf-8") == profile_trees.trees(), message


@pytest.mark.parametrize("profile", ["default", "local", "minimal", "mock"])
def test_a_stored_profile_is_read_like_its_yaml(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bundled_profiles_dir() / f"{profile}.yaml"
    read: list[tuple[Node, int]] = []
    for stored in (profile_trees.STORED, "missing.json"):
        monkeypatch.setattr(yaml_reader, "STORED", stored)
        read.append(profile_trees.parse(path.read_text(encoding="utf-8"), str(path)))
    assert read[0] == read[1]


def test_a_profile_that_was_changed_is_not_the_stored_one() -> None:
    path = bundled_profiles_dir() / "mock.yaml"
    root = yaml_reader.read_yaml(b"name: changed\n", str(path), Problems())
    assert root is not None
    assert plain_data(root) == {"name": "changed"}
