"""`amplifier plan check` and `run --dry-run`: everything but the model, every problem at once."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.app.runtime.test_mount_problems import BROKEN
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.fixtures import StartLLM
from tests.support.module_repositories import SEED_TOOL, Repository
from tests.support.plans import NOISY_TOOL, SMALL, mock_plan, module_folder


def check(folder: Path, plan: str, *arguments: str, **env: str) -> Finished:
    (folder / "plan.yaml").write_text(plan, encoding="utf-8")
    (folder / "small.yaml").write_text(SMALL)
    return run_amplifier("plan", "check", "-f", "plan.yaml", *arguments, cwd=folder, env=env)


def facts(finished: Finished) -> dict[str, Any]:
    return json.loads(finished.stdout)


def by_key(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {module["key"]: module for module in found["modules"]}


EVERYTHING = """\
extends: default
providers:
  - module: provider-mock
    config: {model: "${MODEL_NAME}", priorty: 3}
tools:
  - module: tool-bash
    config:
      timeot: 3
      max_output: many
  - module: gone
    source: ./gone
  - module: tool-nope
  - module: moon
    source: ./amplifier-module-moon
  - module: other
    source: git+http://host/repository
"""


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    module_folder(tmp_path, BROKEN.replace('"hook"', '"tool"'), "amplifier_module_moon")
    finished = check(tmp_path, EVERYTHING, "--output", "json")
    assert finished.code == 78
    found = facts(finished)
    assert (found["outcome"], found["exit_code"]) == ("configuration", 78)
    found_at = [(one["kind"], one["line"], one["column"]) for one in found["problems"]]
    assert found_at == [
        ("plan", 4, 21),
        ("config", 4, 38),
        ("config", 8, 7),
        ("config", 9, 7),
        ("module", 11, 5),
        ("module", 12, 5),
        ("module", 13, 5),
        ("plan", 16, 13),
    ]
    said = [f"{one['message']} {one['hint']}" for one in found["problems"]]
    for part, sentence in zip(
        ["MODEL_NAME is not set", "did you mean 'priority'?", "did you mean 'timeout'?",
         "a whole number", "./gone", "unknown module 'tool-nope'", "the moon is not full", "'http'"],
        said, strict=True,
    ):  # fmt: skip
        assert part.removeprefix("./") in sentence
    modules = by_key(found)
    assert modules["loop-streaming"]["status"] == "ok"
    assert modules["tool-filesystem"]["status"] == "ok"
    assert modules["provider-mock"]["status"] == "broken"
    assert modules["gone"]["status"] == "broken"
    assert modules["other"]["status"] == "not checked"
    assert modules["provider-anthropic"]["reason"] == "ANTHROPIC_API_KEY is not set"
    dry = run_amplifier("run", "--dry-run", "-f", "plan.yaml", "--output", "json", cwd=tmp_path)
    assert (dry.code, facts(dry)) == (78, found)


def test_the_table_is_on_stdout_and_the_problems_on_stderr(tmp_path: Path) -> None:
    module_folder(tmp_path, BROKEN, "amplifier_module_moon")
    finished = check(tmp_path, EVERYTHING)
    assert finished.code == 78
    lines = finished.stdout.splitlines()
    assert lines[0].split() == ["MODULE", "TYPE", "FROM", "VERSION", "STATUS"]
    assert any(line.startswith("tool-bash") and "its config is invalid" in line for line in lines)
    assert "amplifier: plan has 8 problems" in finished.stderr
    assert "plan.yaml:8:7: unknown key 'timeot'" in finished.stderr
    assert "  8 |       timeot: 3\n    |       ^" in finished.stderr
    assert "Traceback" not in finished.stderr


MISSPELT = """\
session:
  orchestrater: loop-basic
  context: context-simple
tools:
  - tool-bassh
  - {module: tool-bash, config: {timeot: 3}}
providers:
  - {module: provider-openai, config: {api_key: "${MY_UNSET_KEY}"}}
"""


def test_a_check_and_a_run_report_misspelt_keys_modules_and_variables_together(
    tmp_path: Path,
) -> None:
    checked = check(tmp_path, MISSPELT)
    run = run_amplifier("run", "-f", "plan.yaml", "hi", cwd=tmp_path)
    assert (checked.code, run.code, run.stdout) == (78, 78, "")
    for said in (checked.stderr, run.stderr):
        assert "4 problems" in said
        for at, problem in [
            ("2:3", "unknown key 'orchestrater' in session; did you mean 'orchestrator'?"),
            ("5:5", "unknown module 'tool-bassh'"),
            ("6:34", "unknown key 'timeot' in the config of tool-bash; did you mean 'timeout'?"),
            ("8:49", "MY_UNSET_KEY is not set; export MY_UNSET_KEY"),
        ]:
            [line] = [line for line in said.splitlines() if line.startswith(f"plan.yaml:{at}: ")]
            assert problem in line
        assert "did you mean 'tool-bash'?" in said


def test_a_valid_plan_exits_with_0_and_saves_nothing(tmp_path: Path) -> None:
    finished = check(tmp_path, "extends: mock\n")
    assert finished.code == 0, finished.stderr
    assert "plan is OK: 14 modules loaded" in finished.stderr
    assert "broken" not in finished.stdout
    assert not (finished.home / "sessions").exists()


def test_faults_of_modules_alone_exit_with_3(tmp_path: Path) -> None:
    module_folder(tmp_path, BROKEN, "amplifier_module_moon")
    plan = "extends: ./small.yaml\nhooks: [{module: moon, source: ./amplifier-module-moon}]\n"
    finished = check(tmp_path, plan, "--output", "json")
    assert finished.code == 3
    [problem] = facts(finished)["problems"]
    assert (problem["kind"], problem["file"], problem["line"]) == ("module", "plan.yaml", 2)


def test_a_plan_that_cannot_be_loaded_is_reported_in_the_same_form(tmp_path: Path) -> None:
    finished = check(tmp_path, "tolls: []\nhoks: []\n", "--output", "json")
    assert finished.code == 78
    found = facts(finished)
    assert [one["line"] for one in found["problems"]] == [1, 2]
    assert found["modules"] == []


async def test_no_request_is_sent_to_a_provider(tmp_path: Path, llm_server: StartLLM) -> None:
    server = await llm_server()
    plan = (
        "session: {orchestrator: loop-streaming, context: context-simple}\n"
        "providers:\n"
        f"  - {{module: provider-openai, config: {{base_url: '{server.openai_base_url}'}}}}\n"
        f"  - {{module: provider-anthropic, config: {{base_url: '{server.base_url}', api_key: k}}}}\n"
    )
    finished = check(tmp_path, plan)
    assert finished.code == 0, finished.stderr
    assert finished.stdout.count(" ok") == 4
    assert server.requests == []


def test_providers_without_credentials_are_skipped_but_one_must_remain(tmp_path: Path) -> None:
    plan = (
        "session: {orchestrator: loop-streaming, context: context-simple}\n"
        "providers:\n  - module: provider-anthropic\n"
        "  - {module: provider-openai, when: {env: OPENAI_API_KEY}}\n"
    )
    finished = check(tmp_path, plan, "--output", "json")
    assert finished.code == 78
    found = facts(finished)
    assert by_key(found)["provider-anthropic"]["status"] == "skipped"
    [problem] = found["problems"]
    assert problem["message"] == "no model provider is set up"
    assert problem["line"] == 2
    assert "ANTHROPIC_API_KEY" in problem["hint"]
    assert "set OPENAI_API_KEY" in problem["hint"]
    with_another = plan + "  - provider-mock\n"
    assert check(tmp_path, with_another).code == 0


def test_no_other_provider_answers_for_the_chosen_one(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["from the mock"])
    document = yaml.safe_load(plan.read_text())
    document["providers"].append({"module": "provider-anthropic"})
    plan.write_text(yaml.safe_dump(document))
    done = run_amplifier("run", "-f", plan, "-p", "anthropic", "hi")
    assert (done.code, done.stdout) == (78, "")
    assert "the chosen provider 'provider-anthropic' is not available" in done.stderr
    assert "ANTHROPIC_API_KEY" in done.stderr
    checked = run_amplifier("plan", "check", "-f", plan, "-p", "anthropic", "--output", "json")
    [problem] = json.loads(checked.stdout)["problems"]
    assert (checked.code, problem["message"]) == (
        78,
        "the chosen provider 'provider-anthropic' is not available",
    )
    not_chosen = run_amplifier("run", "-f", plan, "hi")
    assert (not_chosen.code, not_chosen.stdout) == (0, "from the mock\n")


def test_a_git_source_is_fetched_and_shown_with_its_commit(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "remote")
    commit = repository.commit(SEED_TOOL)
    plan = f"extends: ./small.yaml\ntools: [{{module: my-tool, source: '{repository.url}'}}]\n"
    finished = check(tmp_path, plan, "--output", "json")
    assert finished.code == 0, finished.stderr
    module = by_key(facts(finished))["my-tool"]
    assert (module["commit"], module["status"], module["place"]) == (commit, "ok", "plan")


def test_files_missing_offline_are_reported_with_the_other_problems(tmp_path: Path) -> None:
    plan = (
        "extends: local\n"
        "tools: [{module: my-tool, source: 'git+https://example.invalid/me/my-tool@v1'}]\n"
        "hooks: [{module: hooks-logging, config: {paths: x}}]\n"
    )
    finished = check(tmp_path, plan, "--offline", "--output", "json")
    assert finished.code == 78
    problems = facts(finished)["problems"]
    assert [one["kind"] for one in problems] == ["module", "config", "module"]
    assert "v1 of https://example.invalid/me/my-tool is not in the cache" in problems[0]["message"]
    assert problems[1]["line"] == 3
    assert "the weights of" in problems[2]["message"]
    assert problems[2]["file"].endswith("local.yaml")
    statuses = {key: one["status"] for key, one in by_key(facts(finished)).items()}
    assert (statuses["my-tool"], statuses["provider-local"]) == ("broken", "broken")


def test_modules_do_not_print_into_the_report_and_are_cleaned_up(tmp_path: Path) -> None:
    cleaned = NOISY_TOOL + (
        "    def cleanup():\n"
        "        print('noise at cleanup')\n"
        "        open('cleaned', 'w').close()\n"
        "    return cleanup\n"
    )
    module_folder(tmp_path, cleaned)
    plan = "extends: ./small.yaml\ntools: [{module: noisy, source: ./amplifier-module-noisy}]\n"
    finished = check(tmp_path, plan, "--output", "json")
    assert finished.code == 0, finished.stderr
    assert by_key(facts(finished))["noisy"]["status"] == "ok"
    assert (tmp_path / "cleaned").exists()


def test_a_module_that_exits_the_process_is_reported(tmp_path: Path) -> None:
    code = "import sys\n\n\nasync def mount(coordinator, config=None):\n    sys.exit(0)\n"
    module_folder(tmp_path, code, "amplifier_module_quits")
    plan = "extends: ./small.yaml\ntools: [{module: quits, source: ./amplifier-module-quits}]\n"
    finished = check(tmp_path, plan, "--output", "json")
    assert finished.code == 3
    assert by_key(facts(finished))["quits"]["status"] == "broken"
    assert by_key(facts(finished))["loop-basic"]["status"] == "ok"


@pytest.mark.parametrize("schema", ["raise ValueError('no')", "return []", "return {'type': 5}"])
def test_an_unusable_schema_is_a_fault_of_the_module(tmp_path: Path, schema: str) -> None:
    code = NOISY_TOOL + f"\n\ndef config_schema():\n    {schema}\n"
    module_folder(tmp_path, code)
    plan = "extends: ./small.yaml\ntools: [{module: noisy, source: ./amplifier-module-noisy}]\n"
    finished = check(tmp_path, plan, "--output", "json")
    assert finished.code == 3
    assert "config_schema() of amplifier_module_noisy" in facts(finished)["problems"][0]["message"]


def test_a_module_with_an_unset_variable_is_checked_but_not_mounted(
    tmp_path: Path,
) -> None:
    plan = "extends: ./small.yaml\ntools: [{module: tool-bash, config: {timeout: '${T}', max_spill: -1}}]\n"
    finished = check(tmp_path, plan, "--output", "json")
    assert [(one["kind"], one["column"]) for one in facts(finished)["problems"]] == [
        ("plan", 47),
        ("config", 55),
    ]
    assert check(tmp_path, plan.replace("-1", "1000000"), T="5").code == 0


def test_modules_of_agents_are_checked_but_not_mounted(tmp_path: Path) -> None:
    module_folder(tmp_path, NOISY_TOOL)
    plan = (
        "extends: ./small.yaml\n"
        "tools: [{module: noisy, source: ./amplifier-module-noisy}]\n"
        "agents:\n"
        "  reviewer:\n"
        "    tools:\n"
        "      - {module: noisy, config: {a: 1}}\n"
        "      - {module: tool-bash, config: {timeot: 3}}\n"
        "      - {module: gone, source: ./gone}\n"
    )
    finished = check(tmp_path, plan, "--output", "json")
    assert finished.code == 78
    found = facts(finished)
    assert [(one["kind"], one["line"]) for one in found["problems"]] == [
        ("config", 7),
        ("module", 8),
    ]
    of_agent = {one["key"]: one["status"] for one in found["modules"] if one["agent"] == "reviewer"}
    assert of_agent == {"noisy": "ok", "tool-bash": "broken", "gone": "broken"}
    alone = check(tmp_path, plan.partition("agents:")[0])
    assert alone.code == 0
    text = check(tmp_path, plan)
    assert any(line.startswith("reviewer: noisy ") for line in text.stdout.splitlines())


def test_an_agent_may_have_a_module_from_another_source_than_the_plan(tmp_path: Path) -> None:
    source = module_folder(tmp_path, NOISY_TOOL, "amplifier_module_tool_todo")
    agent = {"tools": [{"module": "tool-todo", "source": str(source)}]}
    plan = {"extends": "mock", "tools": [{"module": "tool-todo"}], "agents": {"helper": agent}}
    finished = check(tmp_path, yaml.safe_dump(plan), "--output", "json")
    assert (finished.code, facts(finished)["problems"]) == (0, [])
    modules = facts(finished)["modules"]
    of_agent = {one["key"]: one["status"] for one in modules if one["agent"] == "helper"}
    assert of_agent == {"tool-todo": "ok"}


def test_a_dry_run_sends_no_prompt(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["never"])
    fine = succeed("run", "--dry-run", "-f", plan, "do it", cwd=tmp_path)
    assert "do it" not in fine.stdout
    assert not (fine.home / "sessions").exists()
    events = run_amplifier("run", "--dry-run", "-f", plan, "--output", "stream-json", "x")
    assert events.code == 2


def test_code_of_an_untrusted_project_is_not_run(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    noisy = tmp_path / ".amplifier" / "modules" / "tool-bash"
    module_folder(tmp_path, NOISY_TOOL.replace('print("noise at import")', "open('ran', 'w')"))
    noisy.parent.mkdir(parents=True)
    (tmp_path / "amplifier-module-noisy").rename(noisy)
    refused = run_amplifier("plan", "check", "-P", "mock", cwd=tmp_path)
    assert refused.code == 78
    assert "amplifier trust" in refused.stderr
    assert not (tmp_path / "ran").exists()
    succeed("plan", "check", "-P", "mock", "--no-project", cwd=tmp_path)
    assert not (tmp_path / "ran").exists()
    trusted = run_amplifier("plan", "check", "-P", "mock", "--trust", cwd=tmp_path)
    assert (tmp_path / "ran").exists(), trusted.stderr


PUBLISHED = """\
extends: ./small.yaml
providers: [{module: provider-mock, config: {responses: [hello]}}]
tools:
  - module: tool-bash
    config: {denied_commands: [sudo]}
hooks:
  - module: hooks-logging
    config: {mode: session-only, level: INFO}
"""


def test_keys_of_published_modules_are_accepted_with_a_warning(tmp_path: Path) -> None:
    finished = check(tmp_path, PUBLISHED)
    assert finished.code == 0, finished.stderr
    warned = [line for line in finished.stderr.splitlines() if "no effect" in line]
    assert len(warned) == 1
    assert "plan.yaml:8:14: 'mode' of hooks-logging has no effect: each session" in warned[0]

    ran = run_amplifier("run", "-f", "plan.yaml", "hi", cwd=tmp_path)
    assert (ran.code, ran.stdout) == (0, "hello\n")
    assert "hooks-logging: 'mode' has no effect: each session" in ran.stderr


def test_an_unsupported_restricting_key_is_refused_at_its_line(tmp_path: Path) -> None:
    finished = check(tmp_path, PUBLISHED.replace("denied_commands", "allowed_commands"))
    assert finished.code == 78
    assert "plan.yaml:5:14: 'allowed_commands' of tool-bash is not supported" in finished.stderr
    assert "rules of hooks-approval" in finished.stderr


def test_a_namespace_without_its_folder_is_reported(tmp_path: Path) -> None:
    plan = "extends: ./small.yaml\nnamespaces: {docs: ./docs, gone: ./gone}\n"
    (tmp_path / "docs").mkdir()
    finished = check(tmp_path, plan, "--output", "json")
    assert finished.code == 0
    sentence = f"files of @gone cannot be read: {tmp_path / 'gone'} is not a folder"
    assert facts(finished)["warnings"] == [sentence]


def test_a_context_without_a_module_is_no_module_with_an_empty_name(tmp_path: Path) -> None:
    plan = tmp_path / "behavior.yaml"
    plan.write_text("hooks: [hooks-logging]\ncontext:\n  include: [mine:a.md]\n")
    finished = run_amplifier("plan", "check", "-f", plan)
    assert finished.code == 78
    assert "behavior.yaml:3:3: unknown key 'include' in context" in finished.stderr
    assert "unknown module ''" not in finished.stderr
