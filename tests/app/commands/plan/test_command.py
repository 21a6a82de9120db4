"""`amplifier plan show|explain|diff` as real processes."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import Finished, run_amplifier

BASE = """\
name: base
session: {orchestrator: loop-basic, context: context-simple}
providers:
  - module: provider-mock
  - module: provider-openai
    when: {env: OPENAI_API_KEY}
tools:
  - module: tool-bash
    config: {timeout: 60, max_output: 5000}
  - module: tool-filesystem
instruction: |
  Be brief.
  Be right.
"""

CHILD = """\
extends: ./base.yaml
exclude: [tool-filesystem]
providers:
  - module: provider-mock
    config: {model: "${MODEL}"}
tools:
  - module: tool-bash
    config: {timeout: "${SECONDS_ALLOWED:-30}"}
  - module: other-tool
    source: ./other
    config: {api_key: sk-0123456789, url: "https://me:secret@host/", region: "${REGION}"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE, encoding="utf-8")
    (tmp_path / "child.yaml").write_text(CHILD, encoding="utf-8")
    return tmp_path


def plan(folder: Path, *arguments: str, **env: str) -> Finished:
    return run_amplifier("plan", *arguments, cwd=folder, env=env)


def answer(finished: Finished) -> Any:
    assert finished.code == 0, finished.stderr
    return json.loads(finished.stdout)


# -- show --------------------------------------------------------------------------------


def test_show_prints_the_merged_plan_as_yaml_that_loads_again(folder: Path) -> None:
    shown = plan(folder, "show", "-f", "child.yaml", MODEL="m-1", REGION="eu")
    assert shown.code == 0, shown.stderr
    data = yaml.safe_load(shown.stdout)
    assert [tool["module"] for tool in data["tools"]] == ["tool-bash", "other-tool"]
    assert data["tools"][0]["config"] == {"timeout": "30", "max_output": 5000}
    assert data["providers"] == [{"module": "provider-mock", "config": {"model": "m-1"}}]
    assert "instruction: |\n  Be brief.\n  Be right.\n" in shown.stdout
    assert "provider-openai skipped: set OPENAI_API_KEY" in shown.stderr
    (folder / "again.yaml").write_text(shown.stdout, encoding="utf-8")
    again = plan(folder, "show", "-f", "again.yaml")
    assert yaml.safe_load(again.stdout) == data


def test_show_masks_secrets_in_both_formats(folder: Path) -> None:
    text = plan(folder, "show", "-f", "child.yaml", "--origins")
    object_ = plan(folder, "show", "-f", "child.yaml", "--output", "json")
    for finished in (text, object_):
        assert finished.code == 0, finished.stderr
        for secret in ("sk-0123456789", "me:secret"):
            assert secret not in finished.stdout + finished.stderr
        assert "[REDACTED]" in finished.stdout


def test_show_lists_unset_variables_and_leaves_them_as_they_are(folder: Path) -> None:
    shown = plan(folder, "show", "-f", "child.yaml")
    assert shown.code == 0
    assert yaml.safe_load(shown.stdout)["providers"][0]["config"]["model"] == "${MODEL}"
    assert "MODEL is not set (child.yaml:5:21)" in shown.stderr
    assert "REGION is not set (child.yaml:11:" in shown.stderr
    facts = answer(plan(folder, "show", "-f", "child.yaml", "--output", "json"))
    assert [one["name"] for one in facts["unset"]] == ["MODEL", "REGION"]
    assert facts["plan"]["providers"][0]["config"]["model"] == "${MODEL}"


def test_show_lists_the_file_and_line_of_each_value(folder: Path) -> None:
    shown = plan(folder, "show", "-f", "child.yaml", "--origins", "-p", "openai", "-m", "gpt")
    lines = [line.strip() for line in shown.stdout.splitlines()]
    assert "max_output: 5000  # base.yaml:9" in lines
    assert "timeout: '30'  # child.yaml:8" in lines
    assert "instruction: |  # base.yaml:11" in lines
    assert "model: gpt  # --model" in lines
    assert "priority: 0  # --provider" in lines
    # Comments are all that is added.
    bare = plan(folder, "show", "-f", "child.yaml", "-p", "openai", "-m", "gpt")
    assert yaml.safe_load(shown.stdout) == yaml.safe_load(bare.stdout)


def test_origins_in_bundled_profiles_are_short(folder: Path) -> None:
    shown = plan(folder, "show", "-P", "mock", "--origins")
    assert re.search(r"- module: provider-mock  # mock\.yaml:\d+ \(bundled\)\n", shown.stdout)
    assert re.search(r"- module: tool-bash  # default\.yaml:\d+ \(bundled\)\n", shown.stdout)


def test_origins_in_saved_sessions_are_short(folder: Path) -> None:
    saved = Path(os.environ["AMPLIFIER_HOME"]) / "sessions" / "20260101-000000-abcdef" / "plan.yaml"
    saved.parent.mkdir(parents=True)
    saved.write_text("extends: mock\ninstruction: hi\n")
    shown = plan(folder, "show", "-f", str(saved), "--origins")
    assert "instruction: hi  # plan.yaml:2 (session)" in shown.stdout


def test_show_gives_origins_as_a_parallel_structure(folder: Path) -> None:
    facts = answer(plan(folder, "show", "-f", "child.yaml", "--origins", "--output", "json"))
    assert facts["files"] == ["child.yaml", "base.yaml"]
    assert facts["left_out"][0]["key"] == "provider-openai"
    assert facts["left_out"][0]["at"] == "base.yaml:5:5"
    origins = facts["origins"]
    assert origins["session"]["orchestrator"]["module"] == "base.yaml:2"
    assert origins["tools"][0]["config"] == {"timeout": "child.yaml:8", "max_output": "base.yaml:9"}
    assert shape(origins) == shape(facts["plan"])


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else "."


def test_show_takes_sets_and_profiles(folder: Path) -> None:
    shown = plan(folder, "show", "-P", "mock", "--set", "tools.tool-bash.config.timeout=7")
    assert yaml.safe_load(shown.stdout)["tools"][1]["config"] == {"timeout": 7}


def test_show_lists_module_sources_set_in_settings(folder: Path) -> None:
    (folder / "home").mkdir()
    (folder / "home/settings.yaml").write_text("sources: {tool-bash: ./mine}\n", encoding="utf-8")
    arguments = ("plan", "show", "-f", "base.yaml")
    shown = run_amplifier(*arguments, cwd=folder, home=folder / "home")
    assert f"tool-bash comes from {folder}/home/mine" in shown.stderr
    assert "settings.yaml:1:22" in shown.stderr
    facts = answer(run_amplifier(*arguments, "--output", "json", cwd=folder, home=folder / "home"))
    assert facts["sources"]["tool-bash"]["source"] == f"{folder}/home/mine"


# -- explain -----------------------------------------------------------------------------


def test_explain_shows_what_a_value_replaced_file_by_file(folder: Path) -> None:
    address = "tools.tool-bash.config.timeout"
    [facts] = answer(
        plan(
            folder, "explain", address, "-f", "child.yaml", "--set", f"{address}=5", "--output=json"
        )
    )
    assert facts["value"] == 5
    assert facts["at"] == f"--set {address}"
    assert [(one["value"], one["at"]) for one in facts["replaced"]] == [
        ("${SECONDS_ALLOWED:-30}", "child.yaml:8:23"),
        (60, "base.yaml:9:23"),
    ]
    assert facts["default"] == 120
    text = plan(folder, "explain", address, "-f", "child.yaml").stdout
    assert f"{address}: '30'" in text
    assert "${SECONDS_ALLOWED:-30}" in text
    assert "60 (base.yaml:9)" in " ".join(text.split())
    assert "Time limit in seconds" in text


def test_explain_shows_scopes_of_settings(folder: Path) -> None:
    (folder / "home").mkdir()
    (folder / "home/settings.yaml").write_text(
        "tools:\n  - module: tool-bash\n    config: {timeout: 44}\n", encoding="utf-8"
    )
    (folder / "home/profiles").mkdir()
    (folder / "home/profiles/mine.yaml").write_text(BASE, encoding="utf-8")
    address = "tools.tool-bash.config.timeout"
    finished = run_amplifier(
        "plan", "explain", address, "-P", "mine", "--output", "json",
        cwd=folder, home=folder / "home",
    )  # fmt: skip
    [facts] = answer(finished)
    assert facts["value"] == 44
    assert facts["at"] == f"{folder}/home/settings.yaml:3:23"
    assert [one["at"] for one in facts["replaced"]] == [f"{folder}/home/profiles/mine.yaml:9:23"]


def test_explain_shows_default_and_meaning_of_an_unset_key(folder: Path) -> None:
    address = "context.config.max_tokens"
    [facts] = answer(plan(folder, "explain", address, "-f", "child.yaml", "--output", "json"))
    assert facts["path"] == "session.context.config.max_tokens"
    assert facts["set"] is False
    assert facts["default"] == 100_000
    assert "Token budget of a request" in facts["description"]
    text = plan(folder, "explain", address, "-f", "child.yaml").stdout
    assert "max_tokens is not set" in text
    assert "100000" in text


def test_explain_a_config_lists_what_could_be_set(folder: Path) -> None:
    found = answer(
        plan(folder, "explain", "tools.tool-bash.config", "-f", "child.yaml", "--output", "json")
    )
    assert {one["path"].rpartition(".")[2]: one["set"] for one in found} == {
        "timeout": True,
        "max_output": True,
        "max_timeout": False,
        "max_spill": False,
        "allowed_paths": False,
        "env_passthrough": False,
        "keep_folder": False,
        "max_background": False,
        "denied_commands": False,
        "require_approval": False,
        "sandbox": False,
    }


def test_explain_marks_a_key_that_the_module_refuses(folder: Path) -> None:
    set_it = ("--set", "tools.tool-bash.config.timeot=5")
    words = ("explain", "tools.tool-bash.config", "-f", "child.yaml", *set_it)
    mistake = "the module has no key 'timeot'; did you mean 'timeout'?"
    assert plan(folder, *words).stdout.count(mistake) == 1
    found = answer(plan(folder, *words, "--output", "json"))
    assert {one["path"]: one["mistake"] for one in found if "mistake" in one} == {
        "tools.tool-bash.config.timeot": mistake
    }


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("toolz", "did you mean 'tools'?"),
        ("tools.tool-bsh.config", "did you mean 'tool-bash'?"),
        ("tools.tool-bash.config.timeot", "did you mean 'timeout'?"),
        ("context.config.max_tokns", "did you mean 'max_tokens'?"),
        ("tools.other-tool.config.regin", "did you mean 'region'?"),
        ("a..b", "is not a path like"),
    ],
)
def test_explain_suggests_what_was_meant(folder: Path, address: str, said: str) -> None:
    finished = plan(folder, "explain", address, "-f", "child.yaml")
    assert finished.code == 2
    assert finished.stdout == ""
    assert said in finished.stderr


def test_explain_shows_why_something_is_missing(folder: Path) -> None:
    gone = plan(folder, "explain", "tools.tool-filesystem", "-f", "child.yaml").stdout
    assert "removed by child.yaml" in gone
    dropped = plan(folder, "explain", "providers.provider-openai", "-f", "child.yaml").stdout
    assert "provider-openai skipped: set OPENAI_API_KEY" in dropped


def test_explain_masks_secrets_also_in_what_was_replaced(folder: Path) -> None:
    top = "extends: ./child.yaml\ntools: [{module: other-tool, config: {api_key: sk-top-9}}]\n"
    (folder / "top.yaml").write_text(top, encoding="utf-8")
    for arguments in (("tools.other-tool",), ("tools.other-tool", "--output", "json")):
        finished = plan(folder, "explain", *arguments, "-f", "top.yaml")
        assert finished.code == 0, finished.stderr
        for secret in ("sk-0123456789", "sk-top-9", "me:secret"):
            assert secret not in finished.stdout


def test_explain_knows_the_modules_of_agents(folder: Path) -> None:
    agents = "agents: {a: {tools: [{module: tool-bash, config: {timeout: 5}}]}}\n"
    (folder / "agents.yaml").write_text(f"extends: ./base.yaml\n{agents}", encoding="utf-8")
    address = "agents.a.tools.tool-bash.config"
    found = answer(plan(folder, "explain", address, "-f", "agents.yaml", "--output", "json"))
    assert found[0]["path"] == f"{address}.timeout"
    assert (found[0]["value"], found[0]["default"]) == (5, 120)
    assert f"{address}.max_timeout" in [one["path"] for one in found]
    wrong = plan(folder, "explain", f"{address}.timeot", "-f", "agents.yaml")
    assert "did you mean 'timeout'?" in wrong.stderr


# -- diff --------------------------------------------------------------------------------


def test_diff_shows_added_removed_and_changed_with_places(folder: Path) -> None:
    finished = plan(folder, "diff", "base.yaml", "child.yaml")
    assert finished.code == 0
    lines = finished.stdout.splitlines()
    assert '~ name: "base"' not in finished.stdout
    assert '- tools.tool-filesystem.module: "tool-filesystem"  (base.yaml:10)' in lines
    assert '+ providers.provider-mock.config.model: "${MODEL}"  (child.yaml:5)' in lines
    assert (
        '~ tools.tool-bash.config.timeout: 60 → "${SECONDS_ALLOWED:-30}"'
        "  (base.yaml:9 → child.yaml:8)" in lines
    )
    facts = answer(plan(folder, "diff", "base.yaml", "child.yaml", "--output", "json"))
    assert {one["path"]: one["change"] for one in facts}["tools.other-tool.source"] == "added"


def test_diff_masks_secrets_but_sees_that_they_differ(folder: Path) -> None:
    (folder / "b.yaml").write_text(CHILD.replace("sk-0123456789", "sk-9876"), encoding="utf-8")
    finished = plan(folder, "diff", "child.yaml", "b.yaml")
    assert finished.stdout == (
        '~ tools.other-tool.config.api_key: "[REDACTED]" → "[REDACTED]"'
        "  (child.yaml:11 → b.yaml:11)\n"
    )


def test_diff_of_profiles_sees_the_order_of_providers(folder: Path) -> None:
    profile = "extends: default\nname: default\n"
    (folder / "a.yaml").write_text(profile, encoding="utf-8")
    swapped = (
        "exclude: [provider-local, provider-anthropic]\n"
        "providers:\n"
        "  - {module: provider-local, when: {no_other: true}}\n"
        "  - {module: provider-anthropic, when: {env: ANTHROPIC_API_KEY}}\n"
    )
    (folder / "b.yaml").write_text(profile + swapped, encoding="utf-8")
    [change] = answer(plan(folder, "diff", "a.yaml", "b.yaml", "--output", "json"))[-1:]
    assert change["path"] == "providers"
    assert change["new"]["value"] == ["provider-openai", "provider-local", "provider-anthropic"]


def test_diff_names_files_briefly(folder: Path) -> None:
    (folder / "below").mkdir()
    for name in ("old.yaml", "new.yaml"):
        text = f"extends: default\nname: {name.removesuffix('.yaml')}\n"
        (folder / "below" / name).write_text(text, encoding="utf-8")
    places = "(below/old.yaml:2 → below/new.yaml:2)"
    old, new = (str(folder / "below" / name) for name in ("old.yaml", "new.yaml"))
    assert places in plan(folder, "diff", old, new).stdout
    assert (
        "(default.yaml:5 (bundled) → mock.yaml:" in plan(folder, "diff", "default", "mock").stdout
    )


def test_diff_exits_with_9_only_when_asked_to(folder: Path) -> None:
    assert plan(folder, "diff", "default", "mock").code == 0
    assert plan(folder, "diff", "default", "mock", "--exit-code").code == 9
    same = plan(folder, "diff", "default", "default", "--exit-code")
    assert (same.code, same.stdout) == (0, "")
