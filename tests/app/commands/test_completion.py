"""Values that the completion offers, and what it never does."""

import json
import os
import select
import socket
from importlib import import_module
from pathlib import Path

from amplifier_app.base.installed import bundled_modules
from amplifier_app.commands.completion import complete
from tests.support.cli import run_amplifier, start_amplifier, succeed
from tests.support.module_repositories import write_files


def completed(line: str, cwd: Path | None = None) -> list[str]:
    """What Tab offers at the end of a line."""
    words = line.split(" ")
    env = {
        "_AMPLIFIER_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = run_amplifier(env=env, cwd=cwd)
    assert (done.code, done.stderr) == (0, "")
    return done.stdout.split()


WORDS: dict[str, list[str]] = {
    "amplifier prof": ["profile"],
    "amplifier --prof": ["--profile"],
    "amplifier session sea": ["search"],
    "amplifier run --appr": ["--approve", "--approve-with"],
    "amplifier run --approve po": ["policy"],
    "amplifier run --approve = po": ["policy"],
    "amplifier run --approve=po": ["--approve=policy"],
    "amplifier -P mini": ["minimal"],
    "amplifier profile show mini": ["minimal"],
    "amplifier plan diff default mini": ["minimal"],
    "amplifier batch run mini": ["minimal"],
    "amplifier docs promi": ["promises"],
    "amplifier docs contracts/prov": ["contracts/provider"],
    "amplifier run -q --provider anth": ["anthropic"],
    "amplifier provider test anth": ["anthropic"],
    "amplifier run -p anthropic -m gpt-5.4": [],
    "amplifier run --model gpt-5.4-m": ["gpt-5.4-mini"],
    "amplifier module show tool-ba": ["tool-bash"],
    "amplifier module new orch": ["orchestrator"],
    "amplifier tool info bash_": ["bash_output", "bash_kill"],
    "amplifier tool invoke gr": ["grep"],
    "amplifier run --set session.orchestrator.m": ["session.orchestrator.module="],
    "amplifier run --set tools.tool-bash.config.max_sp": ["tools.tool-bash.config.max_spill="],
    "amplifier plan explain session.orchestrator.m": ["session.orchestrator.module"],
    "amplifier run --plan x": [],
    "amplifier run prompt an": [],
    "amplifier nonsense x": [],
}


def test_words_are_completed() -> None:
    for line, offered in WORDS.items():
        _, *words, incomplete = line.split(" ")
        found = completed(line) if "=" in line else complete(words, incomplete)
        assert (line, found) == (line, offered)


def test_saved_sessions_are_offered() -> None:
    succeed("run", "--profile", "mock", "hi")
    (session,) = completed("amplifier session show ")
    assert completed(f"amplifier run --resume {session[:8]}") == [session]
    assert completed(f"amplifier resume {session[:8]}") == [session]


def test_a_project_is_read_only_if_it_is_trusted(tmp_path: Path) -> None:
    files = {".amplifier/profiles/ours.yaml": "extends: default\n", "amplifier.py": "1 / 0"}
    project = write_files(tmp_path / "project", files)
    assert completed("amplifier run --profile ou", project) == []
    succeed("trust", "--yes", cwd=project)
    assert completed("amplifier run --profile ou", project) == ["ours"]


def test_an_invalid_plan_offers_nothing() -> None:
    home = Path(os.environ["AMPLIFIER_HOME"])
    for text in ("tools: 7\n", "a: [\n"):
        write_files(home, {"settings.yaml": "profile: mine\n", "profiles/mine.yaml": text})
        assert completed("amplifier run --set session.orch") == []


def test_a_bundle_is_not_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = f"git+https://127.0.0.1:{server.getsockname()[1]}/some@main"
        plan = f"bundle: {{name: mine, version: 1.0.0}}\nincludes:\n  - bundle: {source}\n"
        home = Path(os.environ["AMPLIFIER_HOME"])
        write_files(home, {"settings.yaml": "profile: mine\n", "profiles/mine.yaml": plan})
        assert completed("amplifier run --set session.cont") == []
        assert not select.select([server], [], [], 0)[0]
        with start_amplifier("plan", "show") as run:
            assert select.select([server], [], [], 30)[0], "a run does fetch it"
            run.kill()


def test_config_keys_are_read_again_when_the_module_or_the_cache_changes() -> None:
    command = "amplifier run --set tools.tool-todo.config."
    found = completed(command)
    assert found
    [kept] = Path(os.environ["AMPLIFIER_HOME"]).glob("**/completion/tool-todo.json")
    fields = json.loads(kept.read_text())
    kept.write_text(json.dumps({**fields, "keys": ["from-the-cache"]}))
    assert completed(command) == ["tools.tool-todo.config.from-the-cache="]
    for damaged in ("{", "[]", json.dumps({**fields, "version": ["0"], "keys": ["old"]})):
        kept.write_text(damaged)
        assert completed(command) == found
    assert json.loads(kept.read_text()) == fields


def test_tools_are_offered_under_the_names_they_are_mounted_as(tmp_path: Path) -> None:
    declared = {
        name: list(tools)
        for name, module in bundled_modules().items()
        if (tools := getattr(import_module(module.entry_point.partition(":")[0]), "tool_names", ()))
    }
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": ["provider-mock"],
        "tools": [
            {"module": name, "config": {"paths": ["skills"]} if name == "tool-skills" else {}}
            for name in sorted(declared)
        ],
        "agents": {"helper": {"description": "Helps."}},
    }
    (tmp_path / "skills" / "one").mkdir(parents=True)
    (tmp_path / "skills" / "one" / "SKILL.md").write_text("---\ndescription: One.\n---\n")
    (tmp_path / "plan.yaml").write_text(json.dumps(plan))
    done = run_amplifier("tool", "list", "-f", "plan.yaml", "--output", "json", cwd=tmp_path)
    mounted = [tool["name"] for tool in json.loads(done.stdout)]
    assert sorted(mounted) == sorted(tool for tools in declared.values() for tool in tools)
