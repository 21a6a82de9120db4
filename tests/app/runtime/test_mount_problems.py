"""A run whose modules cannot be mounted names the lines of the plan to change."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.cli import Finished, child_environment, run_amplifier
from tests.support.plans import SMALL, mock_plan, module_folder

NEEDS_A_CITY = """
__amplifier_module_type__ = "tool"


def config_schema():
    return {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Where."}},
        "required": ["city"],
        "additionalProperties": False,
    }


class City:
    name = "city"
    description = "says where"
    input_schema = {"type": "object", "properties": {}}

    async def execute(self, input):
        raise NotImplementedError


async def mount(coordinator, config=None):
    City.where = config["city"]
    await coordinator.mount("tools", City(), name="city")
"""

BROKEN = """
__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    raise RuntimeError("the moon is not full")
"""


WITHOUT = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        missing = name.partition(".")[0] in ("mcp", "opentelemetry")
        return None if missing else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)
from amplifier_app.cli import main
sys.exit(main())
"""


def run(folder: Path, plan: str, *arguments: str) -> Finished:
    (folder / "plan.yaml").write_text(plan, encoding="utf-8")
    (folder / "small.yaml").write_text(SMALL)
    return run_amplifier("run", "hello", "-f", "plan.yaml", *arguments, cwd=folder)


def test_a_missing_optional_package_is_reported_with_the_command_that_installs_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "plan.yaml").write_text(
        "extends: ./small.yaml\n"
        "tools: [{module: tool-mcp, config: {servers: {x: {command: x, required: true}}}}]\n"
        "hooks: [hooks-otel]\n"
    )
    (tmp_path / "small.yaml").write_text(SMALL)
    command = [sys.executable, "-c", WITHOUT, "plan", "check", "-f", "plan.yaml"]
    environment = child_environment(tmp_path / "home")
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 3, done.stderr
    assert (
        "tool 'tool-mcp' cannot be mounted: required servers are not ready: x: the MCP SDK is not installed; "
        "install it with: "
    ) in done.stderr
    assert re.search(
        r"is missing\); install it with: .* -m pip install 'amplifier\[otel\]'\n", done.stderr
    )
    assert "line " not in done.stderr
    assert "check its config" not in done.stderr


def test_an_unset_variable_is_named_in_its_line(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(
        "extends: ./small.yaml\nproviders:\n- module: provider-openai\n  config:\n    api_key: ${MY_SECRET_API_KEY}\n"
    )
    (tmp_path / "small.yaml").write_text(SMALL)
    done = run_amplifier("plan", "check", "-f", "plan.yaml", cwd=tmp_path)
    assert "5 |     api_key: ${MY_SECRET_API_KEY}\n" in done.stderr


def test_invalid_config_keys_are_reported_with_their_lines(tmp_path: Path) -> None:
    module_folder(tmp_path, NEEDS_A_CITY, "amplifier_module_city")
    ended = run(
        tmp_path,
        "extends: ./small.yaml\n"
        "tools:\n"
        "  - module: tool-bash\n"
        "    config:\n"
        "      timeot: 3\n"
        "  - module: tool-filesystem\n"
        "    config: {max_bytes: 1}\n"
        "  - {module: city, source: ./amplifier-module-city}\n",
    )
    assert (ended.code, ended.stdout) == (78, "")
    assert "plan.yaml:5:7: unknown key 'timeot'" in ended.stderr
    assert "did you mean 'timeout'?" in ended.stderr
    assert "plan.yaml:7:14: 'max_bytes' of tool-filesystem must be at least 1000" in ended.stderr
    assert "  7 |     config: {max_bytes: 1}" in ended.stderr
    assert "plan.yaml:8:5: the config of city is missing 'city'" in ended.stderr


def test_invalid_keys_of_required_modules_are_reported_too(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        "extends: ./small.yaml\nsession:\n  orchestrator:\n    config: {max_iterations: many}\n",
        "--output",
        "json",
    )
    assert ended.code == 78
    result = json.loads(ended.stdout)
    assert result["outcome"] == "configuration"
    assert "plan.yaml:4:14: 'max_iterations' of loop-basic" in result["error"]["message"]


def test_an_invalid_value_of_the_environment_is_named(tmp_path: Path) -> None:
    environment = {"ANTHROPIC_API_KEY": "sk-x", "ANTHROPIC_BASE_URL": "127.0.0.1:9"}
    message = (
        "provider 'provider-anthropic' is not configured correctly: anthropic: "
        "ANTHROPIC_BASE_URL must start with http:// or https://, got '127.0.0.1:9'"
    )
    ended = run_amplifier("run", "-P", "default", "hello", env=environment)
    assert (ended.code, ended.stderr) == (78, f"amplifier: {message}\n")
    checked = run_amplifier("plan", "check", env=environment)
    assert (checked.code, message in checked.stderr) == (78, True)
    entry = "providers: [{module: provider-anthropic, config: {api_key: k, base_url: here}}]\n"
    ended = run(tmp_path, f"extends: ./small.yaml\n{entry}")
    assert ended.code == 78
    assert "plan.yaml:2:14: provider 'provider-anthropic' is not configured" in ended.stderr
    assert "base_url must start with http:// or https://, got 'here'\n" in ended.stderr


def test_both_kinds_of_faults_are_reported_together(tmp_path: Path) -> None:
    module_folder(tmp_path, BROKEN, "amplifier_module_moon")
    ended = run(
        tmp_path,
        "extends: ./small.yaml\n"
        "tools: [{module: tool-bash, config: {timeot: 1}}]\n"
        "hooks: [{module: moon, source: ./amplifier-module-moon}]\n",
    )
    assert ended.code == 3
    assert "plan.yaml:2:38: unknown key 'timeot'" in ended.stderr
    assert "plan.yaml:3:10: hook 'moon' cannot be mounted" in ended.stderr
    assert "the moon is not full" in ended.stderr


def test_keys_set_on_the_command_line_are_named_as_such(tmp_path: Path) -> None:
    plan = "extends: ./small.yaml\ntools: [tool-bash]\n"
    ended = run(tmp_path, plan, "--set", "tools.tool-bash.config.timeout=soon")
    assert ended.code == 2
    assert "--set tools.tool-bash.config.timeout: 'timeout' of tool-bash" in ended.stderr


def test_several_providers_without_a_key_are_one_line(tmp_path: Path) -> None:
    plan = "session: {orchestrator: loop-basic, context: context-simple}\nproviders: "
    for modules, expected in (
        ("[provider-openai, provider-mock]", "provider-openai skipped: no API key.*"),
        (
            "[provider-openai, provider-anthropic, provider-mock]",
            "provider-openai, provider-anthropic; 'amplifier plan check' shows why",
        ),
    ):
        (tmp_path / "plan.yaml").write_text(plan + modules)
        done = run_amplifier("run", "--plan", "plan.yaml", "hi", cwd=tmp_path)
        assert (done.code, done.stdout) == (0, "You said: hi\n")
        assert re.fullmatch(f"amplifier: not mounted: {expected}\n", done.stderr)


EMPTIES = """
class Empties:
    name = "empties"
    description = "empties the plan"
    input_schema = {"type": "object", "properties": {}}

    def __init__(self, coordinator):
        self.coordinator = coordinator

    async def execute(self, input):
        self.coordinator.config.clear()
        return "emptied"


async def mount(coordinator, config):
    await coordinator.mount("tools", Empties(coordinator), name="empties")
    if config.get("now"):
        coordinator.config.clear()
"""


def test_a_module_that_empties_the_plan_of_the_session_is_named(tmp_path: Path) -> None:
    folder = module_folder(tmp_path, EMPTIES, "amplifier_module_empties")
    tools: list[dict[str, Any]] = [{"module": "empties", "source": str(folder)}]
    tools.append({"module": "tool-todo"})
    replies: list[Any] = [{"tool_calls": [{"name": "empties", "input": {}}]}, "done"]
    plan = mock_plan(tmp_path, replies, tools=tools)
    done = run_amplifier("run", "-f", plan, "hi", cwd=tmp_path)
    assert (done.code, done.stdout) == (0, "done\n"), done.stderr
    done = run_amplifier(
        "run", "-f", plan, "--set", "tools.empties.config.now=true", "hi", cwd=tmp_path
    )
    assert done.code == 3
    assert "tool 'empties' cannot be mounted: it removed 'session'" in done.stderr
    assert "tool-todo" not in done.stderr
