"""The plugin in real pytest runs: finding the module, mounting it, cleaning up, and not affecting other tests."""

import json
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import amplifier_core.validation
from amplifier_core import pytest_plugin
from amplifier_core.module_sources import TYPE_TO_MOUNT_POINT
from tests.core.module_folders import ORCHESTRATOR, SAMPLES, TOOL
from tests.kit.pytest_projects import Project

pytest_plugins = ["pytester"]

ID_OF_KIND = {
    "provider": "provider-parrot",
    "tool": "tool-shout",
    "hook": "hooks-watch",
    "orchestrator": "loop-once",
    "context": "context-notebook",
}

SHOW = """
    def test_show(module_path, module_type, is_module_context):
        name = module_path.name if module_path else None
        assert (name, module_type, is_module_context) == {expected!r}
"""


def test_the_option_takes_every_kind() -> None:
    assert {*pytest_plugin.MODULE_TYPES} == {*TYPE_TO_MOUNT_POINT} - {"resolver"}


# Finding the module


def test_the_module_around_a_test_file_is_found(project: Project) -> None:
    for kind, module_id in ID_OF_KIND.items():
        package = project.module(module_id, "")
        show = SHOW.format(expected=(package.name, kind, True))
        project.write(f"amplifier-module-{module_id}/tests/test_{kind}.py", show)
    project.run().assert_outcomes(passed=len(ID_OF_KIND))


def test_the_module_option_takes_precedence(project: Project) -> None:
    project.module("tool-shout", "")
    project.module("loop-once", "")
    project.write(
        "amplifier-module-tool-shout/tests/test_it.py",
        SHOW.format(expected=("amplifier_module_loop_once", "orchestrator", True)),
    )
    project.run("--module-path", "amplifier-module-loop-once").assert_outcomes(passed=1)


def test_the_module_in_the_working_folder_is_found(project: Project) -> None:
    project.write("amplifier_module_hooks_watch/__init__.py", "")
    project.write(
        "tests/test_it.py", SHOW.format(expected=("amplifier_module_hooks_watch", "hook", True))
    )
    project.run().assert_outcomes(passed=1)


def test_the_module_of_a_path_argument_is_found(project: Project) -> None:
    project.module("context-notebook", "")
    project.write(
        "tests/test_it.py",
        SHOW.format(expected=("amplifier_module_context_notebook", "context", True)),
    )
    project.run("tests/test_it.py::test_show", "amplifier-module-context-notebook").assert_outcomes(
        passed=1
    )


def test_the_kind_can_be_set_by_option(project: Project) -> None:
    project.write("mine/__init__.py", "")
    project.write("test_it.py", SHOW.format(expected=("mine", "tool", True)))
    project.run("--module-path", "mine", "--module-type", "tool").assert_outcomes(passed=1)


def test_a_missing_module_path_is_a_usage_error(project: Project) -> None:
    result = project.run("--module-path", "no/such/folder")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--module-path: 'no/such/folder' does not exist*"])


@pytest.mark.parametrize(("text", "why"), [("{", "not JSON"), ("[]", "not a JSON object")])
def test_a_config_that_is_not_a_json_object_is_a_usage_error(
    text: str, why: str, project: Project
) -> None:
    result = project.run("--module-config", text)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--module-config*{why}*"])


# An ordinary project


def test_without_a_module_the_fixtures_skip_with_a_reason(project: Project) -> None:
    project.write(
        "test_it.py",
        SHOW.format(expected=(None, None, False))
        + """
    import pytest

    @pytest.mark.asyncio
    async def test_a(tool_module): ...

    @pytest.mark.asyncio
    async def test_b(hook_cleanup): ...

    @pytest.mark.asyncio
    async def test_c(provider_module): ...

    @pytest.mark.asyncio
    async def test_d(orchestrator_module): ...

    @pytest.mark.asyncio
    async def test_e(context_module): ...
""",
    )
    project.run().assert_outcomes(passed=1, skipped=5)


def test_a_projects_fixtures_of_the_same_names_take_precedence(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import pytest

        @pytest.fixture
        def coordinator():
            return "mine"

        @pytest.fixture
        def module_path():
            return "mine too"

        def test_it(coordinator, module_path, is_module_context):
            assert (coordinator, module_path, is_module_context) == ("mine", "mine too", True)
        """,
    )
    project.run().assert_outcomes(passed=1)


def test_other_projects_are_not_affected(project: Project) -> None:
    """Options of the same names, errors for warnings, and no more modules than without the plugins."""
    project.write(
        "conftest.py",
        """
        def pytest_addoption(parser):
            parser.addoption("--module-path", default="theirs")
            parser.addoption("--module-type", type=int, default=1)
            parser.addoption("--module-config", action="store_true")

        def pytest_sessionfinish(session):
            import sys
            print("\\nLOADED", *sorted(sys.modules))
        """,
    )
    project.write("a.test.yaml", "not: [ours")
    project.write(
        "test_it.py",
        """
        def test_it(pytestconfig):
            assert pytestconfig.getoption("--module-path") == "theirs"
            assert pytestconfig.getoption("--module-type") == 1
        """,
    )
    loaded: list[set[str]] = []
    for plugins in ((), ("-p", "no:amplifier_module", "-p", "no:amplifier_plans")):
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-W", "error", *plugins]
        run = subprocess.run(
            [*command, "-p", "no:cacheprovider"], cwd=project.root, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stdout + run.stderr
        assert "1 passed" in run.stdout
        line = next(line for line in run.stdout.splitlines() if line.startswith("LOADED"))
        loaded.append({*line.split()})
    more = {name for name in loaded[0] - loaded[1] if not name.startswith("amplifier")}
    assert more == set()
    ours = {name for name in loaded[0] if name.startswith("amplifier")}
    assert ours <= {
        "amplifier_kit",
        "amplifier_kit.pytest_plugins",
        "amplifier_kit.pytest_plugins.module_fixtures",
        "amplifier_kit.pytest_plugins.plans",
        "amplifier_core",
        "amplifier_core.pytest_plugin",
    } | {name for name in ours if name.startswith("amplifier_core._")}


@pytest.mark.thorough
def test_the_options_can_be_set_in_the_settings_of_a_project(project: Project) -> None:
    package = project.module("tool-shout", "")
    project.write("test_it.py", SHOW.format(expected=(package.name, "hook", True)))
    project.write("pytest.ini", "[pytest]\naddopts = --module-type=hook\n")
    path = ("--module-path", "amplifier-module-tool-shout")
    project.run(*path).assert_outcomes(passed=1)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", *path]
    run = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=False)
    assert "1 passed" in run.stdout, run.stdout + run.stderr
    project.run("--help").stdout.fnmatch_lines(["*--module-type=*"])


def test_the_marker_is_registered(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import pytest

        @pytest.mark.module_validation
        def test_it(): ...
        """,
    )
    project.run("--strict-markers", "-m", "module_validation").assert_outcomes(passed=1)
    project.run("--markers").stdout.fnmatch_lines(["*module_validation:*"])


# Mounting and cleaning up


USE = """
    import pytest

    @pytest.mark.asyncio
    async def test_it({fixture}, coordinator):
        assert {condition}
"""


def test_the_module_is_mounted_on_the_coordinator_of_the_test(project: Project) -> None:
    uses = {
        "provider": "coordinator.get('providers', 'parrot') is provider_module",
        "tool": "coordinator.get('tools', 'shout') is tool_module",
        "orchestrator": "coordinator.get('orchestrator') is orchestrator_module",
        "context": "coordinator.get('context') is context_module",
        "hook": "callable(hook_cleanup) and coordinator.hooks.list_handlers('tool:pre')['tool:pre']",
    }
    for kind, condition in uses.items():
        module_id = ID_OF_KIND[kind]
        project.module(module_id, SAMPLES[kind])
        fixture = "hook_cleanup" if kind == "hook" else f"{kind}_module"
        use = USE.format(fixture=fixture, condition=condition)
        project.write(f"amplifier-module-{module_id}/tests/test_{kind}.py", use)
    project.run().assert_outcomes(passed=len(uses))


def test_hook_cleanup_is_none_without_a_cleanup(project: Project) -> None:
    project.module("hooks-quiet", "async def mount(coordinator, config=None): ...\n")
    project.write(
        "amplifier-module-hooks-quiet/test_it.py",
        USE.format(fixture="hook_cleanup", condition="hook_cleanup is None"),
    )
    project.run().assert_outcomes(passed=1)


def test_tool_module_is_the_first_of_several_tools(project: Project) -> None:
    code = TOOL + '        await coordinator.mount("tools", Shout(), name="second")\n'
    project.module("tool-two", code)
    project.write(
        "amplifier-module-tool-two/test_it.py",
        USE.format(
            fixture="tool_module", condition="tool_module is coordinator.get('tools')['shout']"
        ),
    )
    project.run().assert_outcomes(passed=1)


def test_a_mount_that_mounts_nothing_fails_the_test_and_is_cleaned_up(project: Project) -> None:
    code = """
        from pathlib import Path

        async def mount(coordinator, config=None):
            return lambda: Path("cleaned").touch()
    """
    project.module("tool-none", code)
    project.write(
        "amplifier-module-tool-none/test_it.py", USE.format(fixture="tool_module", condition="1")
    )
    result = project.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*mounted no tool and returned function*"])
    assert (project.root / "cleaned").exists()


def test_the_cleanup_runs_after_the_test(project: Project) -> None:
    for number, define in enumerate(("def", "async def")):
        code = TOOL + (
            "        from pathlib import Path\n"
            f'        coordinator.register_cleanup(Path("registered{number}").touch)\n'
            f"        {define} close():\n"
            f'            Path("closed{number}").touch()\n'
            "        return close\n"
        )
        use = USE.format(fixture="tool_module", condition=f"not Path('closed{number}').exists()")
        project.module(f"tool-shout-{number}", code)
        project.write(
            f"amplifier-module-tool-shout-{number}/test_cleanup_{number}.py",
            f"from pathlib import Path\n{textwrap.dedent(use)}",
        )
    project.run().assert_outcomes(passed=2)
    made = {path.name for path in project.root.iterdir()}
    assert made >= {"closed0", "registered0", "closed1", "registered1"}


RELATIVE = """
    from __future__ import annotations

    from dataclasses import dataclass

    from .words import WORD

    @dataclass
    class Settings:
        limit: int = 1

    calls = []

    class Tool:
        name = "relative"
        description = "Uses relative imports."
        settings = Settings()

        async def execute(self, input):
            from .late import answer
            calls.append(input)
            return answer(f"{WORD} {len(calls)}")

    async def mount(coordinator, config=None):
        await coordinator.mount("tools", Tool())
"""

LATE = """
    from amplifier_core.models import ToolResult

    def answer(text):
        return ToolResult(output=text)
"""

TWICE = """
    import sys

    import pytest

    @pytest.mark.asyncio
    @pytest.mark.parametrize("turn", [1, 2])
    async def test_fresh(tool_module, turn):
        assert "amplifier_module_tool_relative" not in sys.modules
        assert (await tool_module.execute({})).output == "hello 1"
"""


def test_a_module_with_relative_imports_is_fresh_for_each_test(project: Project) -> None:
    project.module("tool-relative", RELATIVE, words="WORD = 'hello'", late=LATE)
    project.write("amplifier-module-tool-relative/tests/test_it.py", TWICE)
    project.run().assert_outcomes(passed=2)
    assert not [name for name in sys.modules if name.startswith("amplifier_module_tool_relative")]


def test_the_config_option_is_passed_to_mount(project: Project) -> None:
    code = TOOL + '        assert config == {"key": "k"}\n'
    project.module("tool-shout", code)
    project.write(
        "amplifier-module-tool-shout/test_it.py", USE.format(fixture="tool_module", condition="1")
    )
    project.run("--module-config", json.dumps({"key": "k"})).assert_outcomes(passed=1)
    project.run().assert_outcomes(errors=1)


def test_a_mounted_loop_runs_on_the_mock_dependencies(project: Project) -> None:
    project.module("loop-once", ORCHESTRATOR)
    project.write(
        "amplifier-module-loop-once/test_it.py",
        """
        import pytest

        @pytest.mark.asyncio
        async def test_it(orchestrator_module, mock_deps):
            context, providers, tools, hooks = mock_deps
            assert list(providers) == ["default"]
            assert list(tools) == ["test_tool"]
            answer = await orchestrator_module.execute("Hi", context, providers, tools, hooks)
            assert answer == "Mock response"
            assert context.messages == [{"role": "user", "content": "Hi"}]
        """,
    )
    project.run().assert_outcomes(passed=1)


# The suites


COUNTS = {"provider": 5, "tool": 7, "hook": 7, "orchestrator": 6, "context": 10}

SUITE = """
    from amplifier_core.validation.behavioral import {title}BehaviorTests
    from amplifier_core.validation.structural import {title}StructuralTests

    class TestBehavior({title}BehaviorTests):
        pass

    class TestStructure({title}StructuralTests):
        pass
"""


def write_suite(project: Project, kind: str, code: str, number: int = 0) -> None:
    """A module with a number, and the suites of its kind."""
    module_id = f"{ID_OF_KIND[kind]}-{number}"
    project.module(module_id, code)
    project.write(
        f"amplifier-module-{module_id}/tests/test_suites_{number}.py",
        SUITE.format(title=kind.title()),
    )


def changed(kind: str, old: str, new: str) -> str:
    code = SAMPLES[kind].replace(old, new)
    assert code != SAMPLES[kind]
    return code


def failed_tests(result: pytest.RunResult) -> dict[int, list[str]]:
    """The tests that failed, by the number of `write_suite`."""
    found: dict[int, list[str]] = defaultdict(list)
    reports: Any = vars(result)["reprec"]
    for report in reports.getreports("pytest_runtest_logreport"):
        if report.failed:
            file, _, test = report.nodeid.partition("::")
            found[int(file.removesuffix(".py").rpartition("_")[2])].append(test)
    return found


def test_a_good_module_of_each_kind_passes_its_suites(project: Project) -> None:
    for number, kind in enumerate(COUNTS):
        write_suite(project, kind, SAMPLES[kind], number)
    project.run().assert_outcomes(passed=sum(COUNTS.values()) + len(COUNTS))


def test_without_a_module_the_suites_skip(project: Project) -> None:
    for kind in COUNTS:
        project.write(f"test_{kind}.py", SUITE.format(title=kind.title()))
    project.run().assert_outcomes(skipped=sum(COUNTS.values()) + len(COUNTS))


FAULTS = [
    ("provider", 'id="parrot"', 'id=""', ["get_info_returns_valid_provider_info"]),
    ("provider", 'name = "parrot"', 'name = ""', ["provider_has_name", "structural"]),
    ("tool", 'description = "Gives', 'description = "" # "', ["tool_has_description"]),
    ("tool", 'return ToolResult(success=False, error={"message": "text is missing"})', "return 7",
        ["execute_returns_tool_result", "tool_result_has_required_fields", "invalid_input"]),
    ("hook", 'return coordinator.hooks.register("tool:pre", watch)', "return 7 / 0",
        ["mount_succeeds", "structural"]),
    ("hook", 'return coordinator.hooks.register("tool:pre", watch)',
        'def close():\n            raise OSError\n        return close', ["cleanup_does_not_raise"]),
    ("orchestrator", "return response.content[0].text", "return 7",
        ["execute_returns_string", "execute_with_empty_prompt"]),
    ("orchestrator", 'await context.add_message({"role": "user", "content": prompt})', "pass",
        ["orchestrator_updates_context"]),
    ("context", "self.messages.append(message)", "pass",
        ["message_round_trip", "multiple_messages", "get_messages_for_request"]),
    ("context", "async def clear(self):\n            self.messages = []",
        "async def clear(self): ...", ["clear_removes_messages"]),
    ("context", "self.messages.append(message)",
        "if 'role' not in message: raise OSError\n            self.messages.append(message)",
        ["add_invalid_message_does_not_crash"]),
    ("context", "async def clear(self):\n            self.messages = []",
        "async def clear(self):\n            self.messages = []\n\n"
        "        def _should_compact(self):\n            return None\n\n"
        "        async def _compact_internal(self):\n            raise RuntimeError",
        ["internal_should_compact_returns_bool", "internal_compact_does_not_crash"]),
]  # fmt: skip
"""Kind, a text of the sample, what takes its place, and the tests that fail."""


def test_each_fault_fails_the_corresponding_tests(project: Project) -> None:
    for number, (kind, old, new, _) in enumerate(FAULTS):
        write_suite(project, kind, changed(kind, old, new), number)
    failed = failed_tests(project.run())
    for number, (kind, _, new, failing) in enumerate(FAULTS):
        for name in failing:
            assert any(name in one for one in failed[number]), (kind, new, name, failed[number])
        assert len(failed[number]) >= len(failing)


ALLOWED = [
    (
        "tool",
        "return ToolResult(success=False",
        "if not input:\n                    raise ValueError('text is missing')\n"
        "                return ToolResult(success=False",
    ),
    (
        "orchestrator",
        'await context.add_message({"role": "user", "content": prompt})',
        "if not prompt: raise ValueError('empty')\n"
        '            await context.add_message({"role": "user", "content": prompt})',
    ),
    (
        "context",
        "self.messages.append(message)",
        "if 'role' not in message: raise ValueError('no role')\n"
        "            self.messages.append(message)",
    ),
    (
        "context",
        "async def clear(self):",
        "async def _should_compact(self):\n            return False\n\n"
        "        def _compact_internal(self, budget): ...\n\n"
        "        async def clear(self):",
    ),
    (
        "hook",
        'return coordinator.hooks.register("tool:pre", watch)',
        'remove = coordinator.hooks.register("prompt:submit", watch)\n\n'
        "        async def close():\n            remove()\n        return close",
    ),
    ("hook", 'return coordinator.hooks.register("tool:pre", watch)', "return None"),
    ("hook", "return HookResult(action=\"continue\")", "return data['tool_name']"),
]  # fmt: skip
"""Kind, a text of the sample, and what may take its place."""


def test_behaviour_allowed_by_the_contracts_passes(project: Project) -> None:
    for number, (kind, old, new) in enumerate(ALLOWED):
        write_suite(project, kind, changed(kind, old, new), number)
    result = project.run()
    assert failed_tests(result) == {}
    result.assert_outcomes(passed=sum(COUNTS[kind] + 1 for kind, _, _ in ALLOWED))


def test_a_service_that_cannot_be_reached_skips_the_list_of_models(project: Project) -> None:
    code = SAMPLES["provider"].replace(
        "return [ModelInfo", "raise OSError('no network'), [ModelInfo"
    )
    write_suite(
        project, "provider", code.replace(", [ModelInfo", "\n            return [ModelInfo")
    )
    result = project.run("-rs")
    result.assert_outcomes(passed=COUNTS["provider"], skipped=1)
    result.stdout.fnmatch_lines(["*did not list its models: OSError: no network*"])


def test_the_suite_files_can_be_run_directly_on_a_module(project: Project) -> None:
    suites = Path(amplifier_core.validation.__file__).parent
    package = project.module("tool-shout", TOOL)
    result = project.run(
        "-o", "python_classes=*Tests", "--module-path", str(package),
        str(suites / "structural.py"), str(suites / "behavioral.py"),
    )  # fmt: skip
    others = sum(COUNTS.values()) - COUNTS["tool"] + len(COUNTS) - 1
    result.assert_outcomes(passed=COUNTS["tool"] + 1, skipped=others)
