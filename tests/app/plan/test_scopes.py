"""Settings of a user and of a project on top of profiles, and who comes before whom."""

from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_app.plan.documents.scopes import Override
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.sources.loading import load, load_plan
from tests.app.plan.conftest import Write

BASE = """\
name: base
description: what there is
session: {orchestrator: loop-basic, context: context-simple}
tools:
  - module: tool-bash
    config: {timeout: 1, shell: sh}
  - module: tool-filesystem
"""
USER = "home/settings.yaml"
PROJECT = "repo/.amplifier/settings.yaml"
LOCAL = "repo/.amplifier/settings.local.yaml"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "repo" / ".amplifier"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def base(write: Write) -> Path:
    return write(BASE, "home/profiles/base.yaml")


def bash(config: str) -> str:
    return f"tools: [{{module: tool-bash, config: {{{config}}}}}]\n"


def bash_config(plan: ResolvedPlan) -> dict[str, Any]:
    tools = plan.mount_plan()["tools"]
    return next(tool["config"] for tool in tools if tool["module"] == "tool-bash")


def test_narrower_scopes_override_wider_ones(write: Write, base: Path, project: Path) -> None:
    user = write(bash("timeout: 2, user: 1"), USER)
    shared = write(bash("timeout: 3, user: 2, project: 1"), PROJECT)
    local = write(bash("timeout: 4, project: 2, local: 1"), LOCAL)
    plan = load(profile="base", project=project, sets=["tools.tool-bash.config.local=2"])
    config = bash_config(plan)
    assert config == {"timeout": 4, "shell": "sh", "user": 2, "project": 2, "local": 2}
    assert {key: plan.origin(f"tools.tool-bash.config.{key}").file for key in config} == {
        "timeout": str(local),
        "shell": str(base),
        "user": str(shared),
        "project": str(local),
        "local": "--set tools.tool-bash.config.local",
    }
    assert plan.merged.overlays == (str(user), str(shared), str(local))
    assert plan.files == (base, user, shared, local)
    assert plan.project == project


def test_settings_keep_the_profiles_name_and_description(write: Write, base: Path) -> None:
    write("tools: [tool-web]\n", USER)
    plan = load(profile="base")
    assert (plan.name, plan.data["description"]) == ("base", "what there is")
    assert [tool["module"] for tool in plan.data["tools"]] == [
        "tool-bash", "tool-filesystem", "tool-web",
    ]  # fmt: skip


ANTHROPIC = "providers: [{{module: provider-anthropic, config: {{{}}}}}]\n"


BARE = "session: {orchestrator: loop-basic, context: context-simple}\n"


@pytest.mark.parametrize("redirecting", [PROJECT, LOCAL, "repo/.amplifier/profiles/bare.yaml"])
def test_a_project_cannot_have_the_key_of_the_user_sent_to_an_address_of_its_own(
    write: Write, project: Path, redirecting: str
) -> None:
    def load_with(own: str, of_project: str) -> dict[str, Any]:
        write(BARE, "home/profiles/bare.yaml")
        write(ANTHROPIC.format(own), USER)
        head = BARE if redirecting.endswith("bare.yaml") else ""
        write(head + ANTHROPIC.format(of_project), redirecting)
        return load(profile="bare", project=project).data["providers"][0]["config"]

    address = "base_url: 'https://me:pw@elsewhere.example'"
    with pytest.raises(PlanError) as raised:
        load_with("api_key: sk-user", address)
    [problem] = raised.value.problems
    assert problem.at is not None
    assert problem.at.file == str(project.parent.parent / redirecting)
    where = f"the api_key of provider-anthropic that is set at {project.parent.parent / USER}:1"
    assert f"base_url (https://elsewhere.example) would be sent {where}" in problem.message
    key = "providers.provider-anthropic.config.api_key=sk-now"
    loaded = load(profile="bare", project=project, sets=(key,))
    assert loaded.data["providers"][0]["config"]["api_key"] == "sk-now"
    # With both from the same side there is nothing to redirect.
    assert load_with("max_tokens: 5", f"api_key: sk-project, {address}")["api_key"] == "sk-project"
    assert load_with(f"api_key: sk-user, {address}", "max_tokens: 5")["api_key"] == "sk-user"


def test_a_project_cannot_have_the_header_of_the_user_sent_to_a_server_of_its_own(
    write: Write, project: Path
) -> None:
    server = "tools: [{module: tool-mcp, config: {servers: {tracker: {%s}}}}]\n"
    write(BARE, "home/profiles/bare.yaml")
    write(
        server % "url: 'https://tracker.example', headers: {Authorization: Bearer user, X-Team: a}",
        USER,
    )
    write(server % "timeout: 5", PROJECT)
    assert load(profile="bare", project=project).data["tools"]
    write(server % "url: 'https://elsewhere.example'", PROJECT)
    with pytest.raises(PlanError) as raised:
        load(profile="bare", project=project).data  # noqa: B018
    [problem] = raised.value.problems
    assert "url (https://elsewhere.example) would be sent the Authorization" in problem.message


def test_without_a_project_no_project_settings_apply(
    write: Write, base: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (PROJECT, LOCAL, "repo/.amplifier/profiles/base.yaml"):
        write("tools: [5]\n", name)
    monkeypatch.chdir(project.parent)
    plan = load(profile="base")
    assert (plan.project, plan.merged.overlays) == (None, ())


def test_only_sources_and_set_apply_to_a_plan_file(
    write: Write, project: Path, tmp_path: Path
) -> None:
    write(bash("timeout: 2") + "profile: gone\nsources: {tool-bash: ./fork}\n", USER)
    write(BASE)
    plan = load(plan="plan.yaml", project=project, sets=["tools.tool-bash.config.shell=zsh"])
    assert bash_config(plan) == {"timeout": 1, "shell": "zsh"}
    assert plan.merged.overlays == ()
    assert plan.sources["tool-bash"].source == str(tmp_path / "home" / "fork")
    assert plan.files == (tmp_path / "plan.yaml", tmp_path / USER)


# -- which profile -----------------------------------------------------------------------


def test_the_narrowest_scope_selects_the_profile(write: Write, project: Path) -> None:
    for name in ("one", "two", "three"):
        write(BASE.replace("base", name), f"home/profiles/{name}.yaml")
    assert load(environ={}, project=project).name == "default"
    write("profile: one\n", USER)
    assert load(project=project).name == "one"
    write("profile: two\n", PROJECT)
    assert load(project=project).name == "two"
    write("profile: three\n", LOCAL)
    assert load(project=project).name == "three"
    assert load().name == "one"
    assert load(profile="two", project=project).name == "two"


def test_a_profile_of_the_project_comes_before_the_users(write: Write, project: Path) -> None:
    write(BASE.replace("what there is", "the user's"), "home/profiles/base.yaml")
    write(BASE.replace("what there is", "the project's"), "repo/.amplifier/profiles/base.yaml")
    assert load(profile="base", project=project).data["description"] == "the project's"
    assert load(profile="base").data["description"] == "the user's"


def test_a_profile_can_extend_the_profile_it_shadows(write: Write, project: Path) -> None:
    write("extends: default\n" + bash("a: 1"), "home/profiles/default.yaml")
    write("extends: default\n" + bash("b: 1"), "repo/.amplifier/profiles/default.yaml")
    plan = load(environ={}, project=project)
    assert bash_config(plan) == {"a": 1, "b": 1}
    assert len(plan.merged.chain) == 3


def test_a_plan_file_can_extend_a_profile_of_the_project(write: Write, project: Path) -> None:
    write(BASE, "repo/.amplifier/profiles/team.yaml")
    write("extends: team\n")
    assert bash_config(load_plan("plan.yaml", project=project))["timeout"] == 1
    with pytest.raises(PlanError, match="'team', which does not exist"):
        load_plan("plan.yaml")


@pytest.mark.parametrize(
    ("extends", "hint"),
    [
        ("base.yaml", "for the file next to this one, write './base.yaml'"),
        ("base", "for the file next to this one, write './base.yaml'"),
        ("nope.yaml", "for a file next to this one, write './FILE'"),
        ("./nope.yaml", "a relative path starts at the folder of this file"),
        ("defualt", "did you mean 'default'?"),
    ],
)
def test_an_extends_of_nothing_says_what_to_write(write: Write, extends: str, hint: str) -> None:
    write(BASE, "base.yaml")
    write(f"extends: {extends}\n")
    with pytest.raises(PlanError) as caught:
        load_plan("plan.yaml")
    assert f"'extends' names '{extends}', which does not exist; {hint}" in str(caught.value)


# -- exclude -----------------------------------------------------------------------------


def test_settings_can_exclude_entries(write: Write, base: Path, project: Path) -> None:
    write("exclude: tool-bash\n", USER)
    write("tools: [{module: tool-bash, config: {fresh: 1}}]\n", PROJECT)
    plan = load(profile="base", project=project)
    assert bash_config(plan) == {"fresh": 1}
    assert plan.notes == []


def test_an_exclude_without_effect_in_settings_is_a_warning(write: Write, base: Path) -> None:
    path = write("exclude: [tool-bahs]\n", USER)
    plan = load(profile="base")
    assert plan.notes == [
        f"{path}:1:11 excludes 'tool-bahs', which the plan does not have; did you mean 'tool-bash'?"
    ]


# -- sources -----------------------------------------------------------------------------


def test_sources_are_absolute_and_have_a_location(
    write: Write, base: Path, project: Path, tmp_path: Path
) -> None:
    user = write("sources:\n  a: ./mine\n  b: git+https://h/r@v1\n  c: ${C:-../c}\n", USER)
    local = write("sources: {a: ../fork, b: null}\n", LOCAL)
    plan = load(profile="base", project=project, environ={})
    assert {module: override.source for module, override in plan.sources.items()} == {
        "a": str(tmp_path / "repo" / "fork"),
        "c": str(tmp_path / "c"),
    }
    assert str(plan.sources["a"].at) == f"{local}:1:14"
    assert str(plan.origin("sources.a")) == f"{local}:1:14"
    assert str(plan.origin("sources.c")) == f"{user}:4:6"
    assert load(profile="base").sources["b"] == Override(
        "git+https://h/r@v1", load(profile="base").origin("sources.b")
    )
    assert "sources" not in plan.data
    with pytest.raises(ConfigError, match="no 'd' in sources"):
        plan.origin("sources.d")


# -- files that are wrong ----------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n", "null\n", "x-mine: {a: 1}\n"])
def test_settings_may_be_empty(text: str, write: Write, base: Path) -> None:
    write(text, USER)
    assert bash_config(load(profile="base")) == {"timeout": 1, "shell": "sh"}


def test_a_broken_link_to_settings_is_an_error(home: Path, base: Path) -> None:
    (home / "settings.yaml").symlink_to("gone.yaml")
    with pytest.raises(
        ConfigError, match=r"settings\.yaml: cannot read the settings file: no such"
    ):
        load(profile="base")
