"""Validating good modules in real child processes, and what surrounds them."""

import json
import os
from pathlib import Path

import jsonschema
import pytest

from tests.kit.validation.samples import SAMPLES, TOOL, named, spoiled, validated, write_module
from tests.support.cli import run_amplifier, succeed
from tests.support.module_repositories import SEED_TOOL, write_files
from tests.support.packages import index, wheel
from tests.support.schemas import VALIDATION


@pytest.mark.usefixtures("warm_checks")
def test_the_seeds_tool_is_valid_in_every_respect(seed_tool: Path) -> None:
    report = validated(seed_tool, kind="tool", behavioral=True)
    assert report.passed, report.failed
    checks = named(report)
    assert [check.name for check in checks.values() if not check.passed] == ["config_schema"]
    for name in ("structure", "entry_point", "dependencies", "mount_exists", "protocol_compliance",
                 "tool_execute", "schema", "cleanup", "execute_returns_tool_result"):  # fmt: skip
        assert name in checks
    assert (report.kind, report.entry_point) == ("tool", "my_tool:mount")


@pytest.mark.usefixtures("warm_checks")
@pytest.mark.parametrize("kind", SAMPLES)
def test_a_valid_module_of_each_kind_passes_every_check(kind: str, tmp_path: Path) -> None:
    report = validated(write_module(tmp_path / "thing", SAMPLES[kind]), behavioral=True)
    assert report.kind == kind
    assert [check for check in report.checks if not check.passed] == []
    assert sum(check.message == "follows the contract" for check in report.checks) >= 5
    VALIDATION.validate(report.as_json())


@pytest.mark.usefixtures("warm_checks")
def test_the_config_reaches_mount(tmp_path: Path) -> None:
    code = spoiled(
        "tool",
        ('{"times": {"type": "integer"}}', "{}"),
        ("    tool = ", "    assert config == {'a': {'b': 1}}, config\n    tool = "),
    )
    folder = write_module(tmp_path / "thing", code)
    assert not validated(folder).passed
    assert validated(folder, config={"a": {"b": 1}}, behavioral=True).passed


@pytest.mark.usefixtures("warm_checks")
def test_handlers_are_called_with_data_as_loops_emit_it(tmp_path: Path) -> None:
    reads = """
    import json
    json.dumps(data)
    if event == "tool:post":
        assert data["result"]["output"] == data["tool_result"].output
    if event == "provider:response":
        assert data["response"]["content"] == data["response"].content
    """
    code = spoiled(
        "hook",
        ("    return HookResult", f"{reads}\n    return HookResult"),
        (
            "    return coordinator.hooks.register",
            '    for event in ("tool:post", "provider:response"):\n'
            "        coordinator.hooks.register(event, watch)\n"
            "    return coordinator.hooks.register",
        ),
    )
    report = validated(write_module(tmp_path / "thing", code), behavioral=True)
    assert [check for check in report.checks if not check.passed] == []


@pytest.mark.usefixtures("warm_checks")
def test_a_provider_without_a_key_is_checked_with_a_made_up_one(tmp_path: Path) -> None:
    declines = "    if not (config or {}).get('api_key'):\n        return\n    await coordinator"
    schema = '{"api_key": {"type": "string"}}'
    code = spoiled("provider", ("    await coordinator", declines)).replace(
        '"properties": {}', f'"properties": {schema}'
    )
    folder = write_module(tmp_path / "thing", code)
    report = validated(folder, behavioral=True)
    assert report.passed, report.failed
    assert [check.name for check in report.checks if not check.passed] == ["credentials"]
    assert "made-up api_key" in named(report)["credentials"].message
    report = validated(folder, config={"api_key": "given"}, behavioral=True)
    assert [check for check in report.checks if not check.passed] == []


@pytest.mark.usefixtures("warm_checks")
def test_nothing_of_it_happens_in_our_process(tmp_path: Path) -> None:
    code = f"import os\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n{TOOL}"
    assert validated(write_module(tmp_path / "thing", code)).passed
    assert (tmp_path / "pid").read_text() != str(os.getpid())


def test_files_of_the_current_folder_are_not_imported(
    seed_tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = "raise SystemExit('imported from the current folder')\n"
    write_files(tmp_path / "cwd", {"json.py": trap, "my_tool.py": trap, "conftest.py": trap,
                                   "pytest.ini": "[pytest]\naddopts = --nonsense\n"})  # fmt: skip
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--more-nonsense")
    report = validated(seed_tool, kind="tool", behavioral=True)
    assert report.passed, (report.failed, report.output)


@pytest.mark.usefixtures("warm_checks")
def test_a_mount_of_another_name_in_another_file_is_tried_out_as_well(tmp_path: Path) -> None:
    project = SEED_TOOL["pyproject.toml"].replace("my_tool:mount", "my_tool.plugin:put_in_place")
    init = SEED_TOOL["my_tool/__init__.py"]
    files = {
        **SEED_TOOL,
        "pyproject.toml": project,
        "my_tool/__init__.py": "",
        "my_tool/plugin.py": init.replace("async def mount", "async def put_in_place"),
    }
    report = validated(write_files(tmp_path / "my-tool", files), kind="tool", behavioral=True)
    assert report.passed, report.failed
    assert named(report)["mount_exists"].message == "my_tool.plugin.put_in_place is callable"
    assert named(report)["execute_returns_tool_result"].passed


@pytest.mark.usefixtures("warm_checks")
def test_a_module_that_closes_stdout_is_tried_out_to_the_end(tmp_path: Path) -> None:
    code = f"import sys\nsys.stdout.close()\n{TOOL}"
    report = validated(write_module(tmp_path / "thing", code), behavioral=True)
    assert report.passed, report.failed
    assert named(report)["execute_returns_tool_result"].passed


@pytest.mark.usefixtures("warm_checks")
def test_what_a_module_says_is_shown_where_something_failed(tmp_path: Path) -> None:
    code = f"print('I am about to fail')\nraise OSError\n{TOOL}"
    report = validated(write_module(tmp_path / "thing", code))
    assert report.output.splitlines()[-1] == "I am about to fail"


@pytest.mark.usefixtures("warm_checks")
def test_limits_the_service_does_not_report_are_not_a_fault(tmp_path: Path) -> None:
    code = spoiled("provider", ("        return [ModelInfo(", "        raise OSError('offline')\n"
                                "        return [ModelInfo("))  # fmt: skip
    report = validated(write_module(tmp_path / "thing", code), behavioral=True)
    check = named(report)["list_models_returns_list"]
    assert (check.passed, check.severity) == (False, "info")
    assert "not checked: the service did not list its models: OSError: offline" in check.message
    assert report.passed


@pytest.mark.usefixtures("warm_checks")
def test_a_report_is_json_of_the_shipped_schema(tmp_path: Path) -> None:
    good = validated(write_module(tmp_path / "good", TOOL)).as_json()
    bad = validated(tmp_path / "nothing").as_json()
    for data in (good, bad):
        VALIDATION.validate(json.loads(json.dumps(data)))
    assert good["passed"] is True
    assert good["checks"][0] == {
        "name": "structure",
        "passed": True,
        "message": "the package is amplifier_module_thing",
        "severity": "error",
        "advice": None,
    }
    with pytest.raises(jsonschema.ValidationError):
        VALIDATION.validate({**good, "checks": [{"name": "x"}]})


def test_requirements_that_a_plan_adds_are_installed(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "shared-lib", "1.0")
    env = {"UV_DEFAULT_INDEX": index(tmp_path / "index", tmp_path / "wheels")}
    folder = write_module(tmp_path / "thing", TOOL.replace("from", "import shared_lib\nfrom", 1))
    arguments = ("module", "validate", folder, "--type", "tool")
    refused = run_amplifier(*arguments)
    assert (refused.code, "No module named 'shared_lib'" in refused.stdout) == (3, True)
    succeed(*arguments, "--requires", "shared-lib<2", env=env)
    invalid = run_amplifier(*arguments, "--requires", "shared-lib @ https://x/y.whl")
    assert (invalid.code, "--requires: unsupported source" in invalid.stderr) == (2, True)
