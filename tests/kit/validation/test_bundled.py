"""Every bundled module keeps the contract of its kind, its behaviour included."""

import sys
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.installed import bundled_modules
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_kit.validation.command import find_subject, validate_module
from tests.support.cli import succeed
from tests.support.thorough import one_in

MCP_SERVER = Path(__file__).parents[2] / "extras" / "tool_mcp" / "raw_server.py"
CONFIG: dict[str, dict[str, Any]] = {
    "provider-anthropic": {"api_key": "sk-ant-none", "base_url": "http://127.0.0.1:9"},
    "provider-openai": {
        "api_key": "sk-none",
        "base_url": "http://127.0.0.1:9",
        # Unknown for a server other than OpenAI's.
        "context_window": 100_000,
        "max_output_tokens": 4_000,
    },
    "hooks-logging": {"path": "events.jsonl"},
    "hooks-shell": {"hooks": [{"event": "tool:pre", "command": "cat"}]},
    "tool-mcp": {
        "servers": {"one": {"command": sys.executable, "args": [str(MCP_SERVER)], "required": True}}
    },
}
"""What a module needs to do its work; the others need nothing."""

WITHOUT_HANDLERS = {"hooks-loop-support"}
"""Hooks that wrap the orchestrator and listen to no event."""


@pytest.mark.usefixtures("warm_checks")
@pytest.mark.parametrize("module_id", one_in(4, sorted(bundled_modules())))
def test_a_bundled_module_is_valid_and_behaves(
    module_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = CONFIG.get(module_id, {})
    if module_id == "provider-replay":
        recording = tmp_path / "run.jsonl"
        succeed("run", "--profile", "mock", "--record", recording, "Hi.")
        config = {"replay": str(recording)}
    if module_id == "tool-skills":
        (tmp_path / "skills" / "one").mkdir(parents=True)
        (tmp_path / "skills" / "one" / "SKILL.md").write_text("---\ndescription: One.\n---\n")
        config = {"paths": [str(tmp_path / "skills")]}
    subject = find_subject(module_id, AppModuleSourceResolver)
    report = validate_module(subject, config=config, behavioral=True)
    wrong = [c for c in report.checks if not c.passed and c.severity != "info"]
    if module_id in WITHOUT_HANDLERS:
        wrong = [check for check in wrong if check.name != "handlers"]
    assert (report.passed, wrong) == (True, []), report.output
    assert sum(c.message == "follows the contract" for c in report.checks) >= 4


@pytest.mark.usefixtures("warm_checks")
@pytest.mark.parametrize("module_id", ["provider-replay", "tool-mcp"])
def test_a_module_that_needs_settings_is_valid_without_them(module_id: str) -> None:
    report = validate_module(find_subject(module_id, AppModuleSourceResolver), behavioral=True)
    assert report.passed, report.failed
    texts = " ".join(check.message for check in report.checks if not check.passed)
    assert ("mounts nothing" in texts or "mounts no tool" in texts) is True
    assert "not checked" in texts
