"""What a profile leaves out stays out, whatever settings say of it; a condition can be taken away."""

from typing import Any

import pytest

from amplifier_app.sources.loading import load
from tests.app.plan.conftest import Write

SETTINGS = """\
providers:
  - module: provider-openai
    config: {model: mine, priority: 1}
  - module: provider-of-mine
    config: {priority: 1}
"""


def providers(profile: str, **environ: str) -> dict[str, Any]:
    plan = load(profile=profile, environ=environ)
    return {one["module"]: one["config"] for one in plan.mount_plan()["providers"]}


@pytest.fixture(autouse=True)
def _settings(write: Write) -> None:
    write(SETTINGS, "home/settings.yaml")


def test_settings_configure_what_a_profile_has_and_add_what_it_does_not_mention() -> None:
    found = providers("default", OPENAI_API_KEY="x")
    assert found == {
        "provider-openai": {"model": "mine", "priority": 1},
        "provider-of-mine": {"priority": 1},
    }


@pytest.mark.parametrize("profile", ["local", "mock"])
def test_settings_do_not_add_what_a_profile_excludes(profile: str) -> None:
    found = providers(profile, OPENAI_API_KEY="x", ANTHROPIC_API_KEY="x")
    assert set(found) == {f"provider-{profile}", "provider-of-mine"}
    # And those that settings add are not asked.
    plan = load(profile=profile, environ={})
    assert plan.default_provider == f"provider-{profile}"


def test_settings_configure_an_entry_that_the_profile_excludes_and_adds_again(write: Write) -> None:
    write(
        "extends: default\nexclude: [provider-openai]\nproviders: [provider-openai]\n",
        "home/profiles/mine.yaml",
    )
    assert providers("mine")["provider-openai"] == {"model": "mine", "priority": 1}


def test_a_profile_can_add_what_an_extended_profile_excludes(write: Write) -> None:
    write("extends: local\nproviders: [provider-openai]\n", "home/profiles/mine.yaml")
    assert providers("mine")["provider-openai"] == {"model": "mine", "priority": 1}


def test_an_empty_when_removes_the_condition(write: Write) -> None:
    write("providers: [{module: provider-openai, when: null}]\n", "home/settings.yaml")
    assert list(providers("default")) == ["provider-openai"]
    assert list(providers("default", ANTHROPIC_API_KEY="x")) == [
        "provider-anthropic",
        "provider-openai",
    ]
