"""Bundles in the real program: included from folders and repositories, run, checked, locked."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import Finished, run_amplifier
from tests.support.git_http import CERTIFICATE, GitServer
from tests.support.module_repositories import SEED_TOOL, Repository, write_files

CALL = '{"tool_calls": [{"name": "my-tool", "input": {"who": "world"}}]}'
TOOL = {f"modules/my-tool/{name}": text for name, text in SEED_TOOL.items()}
KIT = {
    "bundle.md": (
        "---\nbundle:\n  name: kit\n  version: 1.0.0\n"
        "includes:\n  - bundle: kit:behaviors/greeting\n"
        "session:\n  orchestrator: {module: loop-basic}\n  context: {module: context-simple}\n"
        "agents: {include: [kit:helper]}\n"
        "---\nThe kit.\n\n@kit:context/base.md\n"
    ),
    "behaviors/greeting.yaml": (
        "bundle: {name: greeting}\n"
        "tools:\n  - module: my-tool\n    source: ../modules/my-tool\n"
        "context: {include: [kit:context/greeting.md]}\n"
    ),
    "context/base.md": "Base rules.\n",
    "context/greeting.md": "Greet people.\n",
    "agents/helper.md": (
        "---\nmeta: {name: helper, description: Helps}\n"
        "providers: [{module: provider-mock, config: {replies: [helped]}}]\n---\nHelp.\n"
    ),
    **TOOL,
}


class Machine:
    def __init__(self, folder: Path, name: str = "home") -> None:
        self.home = folder / name
        self.cwd = folder / "work"
        self.cwd.mkdir(exist_ok=True)
        self.env: dict[str, str | None] = {"UV_NO_INDEX": "1", "UV_CACHE_DIR": f"{self.home}/uv"}

    def __call__(self, *arguments: str, **env: str) -> Finished:
        return run_amplifier(*arguments, home=self.home, cwd=self.cwd, env={**self.env, **env})

    def greeting(self, *arguments: str) -> str:
        """What the tool answers in a run of `bundle.md`."""
        done = self("run", "-f", "bundle.md", "go", "--output", "json", *arguments)
        assert done.code == 0, done.stderr
        session = json.loads(done.stdout)["session_id"]
        transcript = (self.home / "sessions" / session / "transcript.jsonl").read_text()
        return next(line for line in ("Hello", "Changed") if f"{line}, world!" in transcript)

    def shown(self, file: str = "bundle.md") -> dict[str, Any]:
        done = self("plan", "show", "-f", file, "--output", "json")
        assert done.code == 0, done.stderr
        return json.loads(done.stdout)["plan"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def kit(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "remotes" / "kit")
    made.commit(KIT)
    return made


def app(machine: Machine, source: str, more: str = "") -> None:
    """A bundle that adds a provider to another one."""
    write_files(
        machine.cwd,
        {
            "bundle.md": (
                f"---\nbundle: {{name: app}}\nincludes:\n  - bundle: {source}\n"
                f"providers:\n  - module: provider-mock\n    config:\n"
                f"      replies: [{CALL}, done]\n{more}---\nThe app.\n\n@kit:context/base.md\n"
            )
        },
    )


def test_a_bundle_in_a_repository_runs_with_its_modules_agents_and_context(
    machine: Machine, kit: Repository
) -> None:
    app(machine, f"{kit.url}@main")
    assert machine.greeting() == "Hello"
    plan = machine.shown()
    assert plan["instruction"] == (
        "The app.\n\nBase rules.\n\n# Context: kit:context/greeting.md\n\nGreet people."
    )
    assert plan["agents"]["kit:helper"]["instruction"] == "Help."
    commit = kit.commit({})
    assert (
        f"{kit.url}@{commit}#subdirectory=modules/my-tool" == machine.shown()["tools"][0]["source"]
    )
    checked = machine("plan", "check", "-f", "bundle.md")
    assert checked.code == 0, checked.stderr
    assert "app is OK: 4 modules loaded" in checked.stderr


def test_a_locked_bundle_stays_at_its_commit(
    machine: Machine, kit: Repository, tmp_path: Path
) -> None:
    app(machine, f"{kit.url}@main")
    refused = machine("run", "-f", "bundle.md", "--locked", "go")
    assert refused.code == 78
    assert "bundle.lock.json: the lock does not exist" in refused.stderr
    done = machine("plan", "lock", "-f", "bundle.md")
    assert done.code == 0, done.stderr
    assert f"bundle {kit.url}@main: not locked" in done.stdout
    greeter = "modules/my-tool/my_tool/greeter.py"
    commit = kit.commit({greeter: KIT[greeter].replace("'Hello'", "'Changed'")})
    assert machine.greeting("--locked") == "Hello"
    assert Machine(tmp_path, "other").greeting("--locked") == "Hello"
    assert machine("plan", "lock", "-f", "bundle.md", "--check").code == 0
    assert machine.greeting() == "Changed"
    # `module update` moves it.
    checked = machine("module", "update", "-f", "bundle.md", "--check")
    assert checked.code == 9, checked.stderr
    assert "bundle" in checked.stdout
    updated = machine("module", "update", "-f", "bundle.md")
    assert updated.code == 0, updated.stderr
    assert commit in (machine.cwd / "bundle.lock.json").read_text()
    assert machine.greeting("--locked") == "Changed"
    # A bundle that the lock does not know is refused before anything of it is read.
    app(machine, f"{kit.url}@other")
    refused = machine("run", "-f", "bundle.md", "--locked", "go")
    assert refused.code == 78
    assert "this bundle is not in the lock" in refused.stderr
    assert "bundle.md:4:13" in refused.stderr


def test_offline_a_bundle_is_the_last_fetched_one(
    machine: Machine, kit: Repository, tmp_path: Path
) -> None:
    machine.env["GIT_SSL_CAINFO"] = str(CERTIFICATE)
    server = GitServer(tmp_path / "remotes")
    app(machine, f"git+{server.url}/kit")
    try:
        refused = machine("plan", "show", "-f", "bundle.md", AMPLIFIER_OFFLINE="1")
        assert refused.code == 78
        assert "cannot be downloaded offline" in refused.stderr
        assert not server.requests
        assert machine.greeting() == "Hello"
    finally:
        server.close()
    assert machine.greeting("--offline") == "Hello"
    gone = machine("run", "-f", "bundle.md", "go")
    assert gone.code == 78
    assert "bundle.md:4:13: the bundle cannot be fetched" in gone.stderr


def test_a_fetched_bundle_can_use_only_its_own_files(
    machine: Machine, kit: Repository, tmp_path: Path
) -> None:
    (tmp_path / "secret.md").write_text("TOP SECRET")
    secret = tmp_path / "secret.md"
    kit.commit(
        {
            "bundle.md": KIT["bundle.md"]
            + f"\n@{secret}\n@../../../../../secret.md\n@kit:../../secret.md\n"
        }
    )
    app(machine, f"{kit.url}@main")
    machine.cwd.joinpath("bundle.md").write_text(
        f"---\nbundle: {{name: app}}\nincludes: ['{kit.url}@main']\n---\n"
    )
    done = machine("plan", "show", "-f", "bundle.md")
    assert done.code == 0, done.stderr
    assert "TOP SECRET" not in done.stdout
    assert f"'{secret}' is outside the fetched files" in done.stderr
    for text, message in (
        (f"includes: ['{machine.cwd / 'bundle.md'}']\n", "is outside the fetched files"),
        (f"context: {{include: ['{secret}']}}\n", "does not exist"),
        ("tools: [{module: x, source: ../../../../x}]\n", "is outside the fetched files"),
    ):
        kit.commit({"behaviors/greeting.yaml": f"bundle: {{name: greeting}}\n{text}"})
        done = machine("plan", "show", "-f", "bundle.md")
        assert done.code == 78, done.stdout
        assert message in done.stderr
        assert "kit@" in done.stderr


def test_a_named_bundle_comes_from_the_settings(machine: Machine, kit: Repository) -> None:
    app(machine, "kit")
    unknown = machine("plan", "show", "-f", "bundle.md")
    assert unknown.code == 78
    assert "the bundle 'kit' does not exist" in unknown.stderr
    write_files(machine.home, {"settings.yaml": f"sources: {{kit: {kit.url}@main}}\n"})
    assert machine.greeting() == "Hello"
    more = "session: {orchestrator: loop-basic, context: context-simple}\n"
    # A file in it is named by the namespace, or as a subdirectory.
    for part in ("kit:behaviors/greeting", f"{kit.url}@main#subdirectory=behaviors/greeting.yaml"):
        app(machine, part, more)
        assert machine.greeting() == "Hello"
    assert "agents" not in machine.shown()


def test_an_agent_of_a_bundle_is_given_a_task(machine: Machine, kit: Repository) -> None:
    call = '{"tool_calls": [{"name": "task", "input": {"agent": "kit:helper", "instruction": "Help."}}]}'
    write_files(
        machine.cwd,
        {
            "bundle.yaml": (
                f"bundle: {{name: app}}\nincludes: ['{kit.url}@main']\ntools: [tool-task]\n"
                f"providers:\n  - module: provider-mock\n    config: {{replies: [{call}, done]}}\n"
            ),
        },
    )
    done = machine("run", "-f", "bundle.yaml", "go", "--output", "json")
    assert done.code == 0, done.stderr
    session = json.loads(done.stdout)["session_id"]
    texts = [file.read_text() for file in (machine.home / "sessions").glob("*/metadata.json")]
    assert any('"kit:helper"' in text and session in text for text in texts), texts
    assert "helped" in (machine.home / "sessions" / session / "transcript.jsonl").read_text()


def test_every_command_reports_what_is_not_used(machine: Machine, kit: Repository) -> None:
    app(machine, f"{kit.url}@main", "spawn: {tools: [my-tool]}\nagents: {include: [kit:gone]}\n")
    spawn = "bundle.md:9:1: 'spawn' in the plan is ignored"
    gone = "bundle.md:10:20: unknown agent 'kit:gone'; searched kit@"
    for command in (("plan", "show"), ("run", "go")):
        done = machine(*command, "-f", "bundle.md")
        assert done.code == 0, done.stderr
        assert spawn in done.stderr
        assert gone in done.stderr
    checked = json.loads(machine("plan", "check", "-f", "bundle.md", "--output", "json").stdout)
    assert spawn in checked["warnings"]


def test_a_bundle_without_a_provider_is_run_with_an_option(
    machine: Machine, kit: Repository
) -> None:
    bundle = f"{kit.url}@main"
    write_files(machine.cwd, {"thin.yaml": f"bundle: {{name: thin}}\nincludes: ['{bundle}']\n"})
    refused = machine("run", "-f", "thin.yaml", "hi")
    assert refused.code == 78
    assert "--provider NAME" in refused.stderr
    assert "amplifier init" in refused.stderr
    done = machine("run", "-f", "thin.yaml", "-p", "mock", "hi")
    assert done.code == 0, done.stderr
    assert "added provider-mock, as the plan has no provider: --provider mock" in done.stderr
    # Resumed, it has the provider it began with.
    again = machine("run", "--continue", "again")
    assert again.code == 0, again.stderr


def test_an_imported_bundle_is_an_equivalent_plan(machine: Machine, kit: Repository) -> None:
    kit.commit({"context/base.md": "Base ${RULES} cost $5.\n@@not-a-file\n"})
    app(
        machine,
        f"{kit.url}@main",
        "hooks: [{module: hooks-logging, config: {path: '${LOG:-x}'}}]\n",
    )
    done = machine("plan", "import", "bundle.md", "-o", "flat.yaml")
    assert done.code == 0, done.stderr
    flat = (machine.cwd / "flat.yaml").read_text()
    assert "path: ${LOG:-x}  # bundle.md:9" in flat
    assert "includes" not in flat
    assert machine.shown("flat.yaml") == machine.shown()
    first, second = (
        json.loads(machine("plan", "check", "-f", name, "--output", "json").stdout)
        for name in ("bundle.md", "flat.yaml")
    )
    for report in (first, second):
        for module in report["modules"]:
            del module["at"]
    assert first == second
    kept = machine("plan", "import", "bundle.md", "-o", "flat.yaml")
    assert kept.code == 78
    assert "--force" in kept.stderr
    by_url = machine("plan", "import", f"{kit.url}@main")
    assert by_url.code == 0, by_url.stderr
    assert "No provider is listed" in by_url.stdout


def test_modules_of_a_bundle_are_vendored_and_the_imported_plan_runs_with_them_offline(
    machine: Machine, kit: Repository, tmp_path: Path
) -> None:
    app(machine, f"{kit.url}@main")
    copied = machine("module", "vendor", "vendor", "-f", "bundle.md")
    assert copied.code == 0, copied.stderr
    assert "included bundles are not copied (1)" in copied.stderr
    assert machine("plan", "import", "bundle.md", "-o", "flat.yaml").code == 0
    assert machine("module", "vendor", "vendor", "-f", "flat.yaml", "--apply").code == 0
    kit.folder.rename(tmp_path / "gone")
    (machine.home / "cache").rename(tmp_path / "no-cache")
    done = machine("run", "-f", "flat.yaml", "--offline", "go")
    assert done.code == 0, done.stderr


def test_an_included_bundle_of_a_project_is_covered_by_trust(machine: Machine) -> None:
    write_files(
        machine.cwd,
        {
            ".amplifier/profiles/p.md": (
                "---\nbundle: {name: p}\nincludes: [../../shared/part.yaml]\n"
                "session: {orchestrator: loop-basic, context: context-simple}\n"
                "providers: [provider-mock]\n---\n"
            ),
            "shared/part.yaml": "bundle: {name: part}\ncontext: {include: [./rules.md]}\n",
            "shared/rules.md": "Rules.\n",
        },
    )
    assert machine("trust", "--yes").code == 0
    run = ("run", "--profile", "p", "hi")
    assert machine(*run).code == 0
    for name in ("shared/part.yaml", "shared/rules.md"):
        file = machine.cwd / name
        file.write_text(file.read_text() + "\n# changed\n")
        changed = machine(*run)
        assert changed.code == 78
        assert "has changed since it was trusted" in changed.stderr
        assert machine("trust", "--yes").code == 0


def reading(machine: Machine, kit: Repository, *paths: str) -> None:
    """A bundle whose model reads these files with our tool."""
    calls = [{"name": "read_file", "input": {"file_path": path}} for path in paths]
    reply = json.dumps({"tool_calls": calls})
    text = (
        f"---\nbundle: {{name: app}}\nincludes:\n  - bundle: {kit.url}@main\n"
        "tools: [tool-filesystem]\n"
        f"providers:\n  - module: provider-mock\n    config: {{replies: [{reply}, done]}}\n---\nThe app.\n"
    )
    write_files(machine.cwd, {"bundle.md": text})


def tool_results(machine: Machine) -> list[str]:
    [transcript] = machine.home.glob("sessions/*/transcript.jsonl")
    messages = [json.loads(line) for line in transcript.read_text().splitlines()]
    return [str(one["content"]) for one in messages if one.get("role") == "tool"]


def test_the_model_reads_files_of_a_bundle_by_its_name_also_in_a_resumed_session(
    machine: Machine, kit: Repository
) -> None:
    secret = machine.cwd.parent / "secret"
    secret.write_text("secret text")
    outside = "@kit:" + "../" * 20 + str(secret)
    reading(machine, kit, "@kit:context/base.md", outside)
    assert machine("run", "-f", "bundle.md", "go").code == 0
    kit.commit({"context/base.md": "Changed since.\n"})
    resumed = machine("run", "--continue", "go on", "--offline")
    assert resumed.code == 0, resumed.stderr
    results = tool_results(machine)
    assert ["Base rules." in result for result in results] == [True, False, True, False]
    assert "secret text" not in str(results)


def test_an_imported_plan_keeps_the_namespaces_of_the_bundle(
    machine: Machine, kit: Repository
) -> None:
    reading(machine, kit, "@kit:context/base.md")
    commit = kit.commit({})
    done = machine("plan", "import", "bundle.md", "-o", "plan.yaml")
    assert done.code == 0, done.stderr
    assert machine.shown("plan.yaml")["namespaces"]["kit"] == [f"{kit.url}@{commit}"]
    assert machine("run", "-f", "plan.yaml", "go").code == 0
    [result] = tool_results(machine)
    assert "Base rules." in result
    # Without the bundle its files are missing, with a warning.
    plan = yaml.safe_load((machine.cwd / "plan.yaml").read_text())
    plan["namespaces"]["kit"] = [f"{kit.url}@{commit[::-1]}"]
    (machine.cwd / "plan.yaml").write_text(yaml.safe_dump(plan))
    shutil.rmtree(machine.home / "sessions")
    done = machine("run", "-f", "plan.yaml", "go")
    assert done.code == 0, done.stderr
    assert "files of @kit cannot be read" in done.stderr
    [result] = tool_results(machine)
    assert "Base rules." not in result


def test_a_rule_for_a_path_holds_for_files_that_are_named_by_their_bundle(machine: Machine) -> None:
    call = {"name": "read_file", "input": {"file_path": "@app:private/key"}}
    text = (
        "bundle: {name: app}\n"
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        "tools: [tool-filesystem]\nhooks: [hooks-approval]\n"
        "approvals: [{action: deny, tool: read_file, path: 'private/**'}]\n"
        "providers:\n  - module: provider-mock\n"
        f"    config: {{replies: [{json.dumps({'tool_calls': [call]})}, done]}}\n"
    )
    write_files(machine.cwd, {"bundle.yaml": text, "private/key": "the key\n"})
    machine("run", "-f", "bundle.yaml", "go")
    [result] = tool_results(machine)
    assert "denied" in result.lower()
    assert "the key" not in result


def test_sub_agents_read_the_files_of_the_session_s_namespaces(machine: Machine) -> None:
    def provider(call: dict[str, Any]) -> str:
        replies = json.dumps([{"tool_calls": [call]}, "done"])
        return f"[{{module: provider-mock, config: {{replies: {replies}}}}}]"

    read = provider({"name": "read_file", "input": {"file_path": "@docs:a.md"}})
    delegate = provider({"name": "task", "input": {"agent": "reader", "instruction": "read"}})
    text = (
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        "tools: [tool-filesystem, tool-task]\n"
        "namespaces: {docs: [./docs, ./gone]}\n"
        f"agents: [{{name: reader, description: d, instruction: i, providers: {read}}}]\n"
        f"providers: {delegate}\n"
    )
    write_files(machine.cwd, {"plan.yaml": text, "docs/a.md": "text of a\n"})
    done = machine("run", "-f", "plan.yaml", "go")
    assert done.stderr.count("gone is not a folder") == 1
    sub_session = next(machine.home.glob("sessions/*_reader/transcript.jsonl"))
    assert "text of a" in sub_session.read_text()
