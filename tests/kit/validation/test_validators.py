"""The validators on real modules: valid modules, failing checks, and cleanup."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.testing import MockCoordinator
from amplifier_core.validation import ValidationCheck, ValidationResult
from amplifier_kit.validation.validators import VALIDATORS
from tests.core.module_folders import CONTEXT, ORCHESTRATOR, SAMPLES, TOOL, ModuleFolders


async def validate(kind: str, path: Path | str, **options: Any) -> ValidationResult:
    return await VALIDATORS[kind]().validate(path, **options)


def only(result: ValidationResult, name: str) -> ValidationCheck:
    found = [check for check in result.checks if check.name == name]
    assert len(found) == 1, [(check.name, check.message) for check in result.checks]
    return found[0]


def failed(result: ValidationResult) -> list[str]:
    return [check.name for check in result.checks if not check.passed]


# Valid modules


COMMON = ["module_importable", "mount_exists", "mount_signature", "protocol_compliance"]


DEFINITIONS = {
    "provider_name": "name: str",
    "provider_get_info": "def get_info(self) -> ProviderInfo",
    "provider_list_models": "async def list_models(self) -> list[ModelInfo]",
    "provider_complete": "async def complete(self, request, **kwargs) -> ChatResponse",
    "provider_parse_tool_calls": "def parse_tool_calls(self, response) -> list[ToolCall]",
    "tool_name": "name: str",
    "tool_description": "description: str",
    "tool_input_schema": "input_schema: dict",
    "tool_execute": "async def execute(self, input: dict) -> ToolResult",
    "hook_call": "async def __call__(self, event, data) -> HookResult",
    "orchestrator_execute": "async def execute(self, prompt, context, providers, tools, hooks, "
    "**kwargs) -> str",
    "context_add_message": "async def add_message(self, message: dict) -> None",
    "context_get_messages_for_request": "async def get_messages_for_request(self, token_budget=None, "
    "provider=None)",
    "context_get_messages": "async def get_messages(self) -> list[dict]",
    "context_set_messages": "async def set_messages(self, messages: list[dict]) -> None",
    "context_clear": "async def clear(self) -> None",
}
"""The expected definition of the member of each check."""


@pytest.mark.parametrize("kind", SAMPLES)
async def test_a_valid_module_of_each_kind_passes_its_checks(
    kind: str, module_folders: ModuleFolders
) -> None:
    result = await validate(kind, module_folders.package(SAMPLES[kind]))
    assert result.passed, result.errors
    assert failed(result) == []
    assert result.module_type == kind
    own = [check for check in DEFINITIONS if check.startswith(kind) and kind != "hook"]
    assert [check.name for check in result.checks] == COMMON + own


async def test_a_module_may_be_given_as_file_or_dotted_name(
    module_folders: ModuleFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = module_folders.package(TOOL, name="sample_forms")
    single = module_folders.root / "sample_single_file.py"
    single.write_text(textwrap.dedent(TOOL))
    monkeypatch.syspath_prepend(str(folder.parent))
    for path in (folder, str(folder), "sample_forms", single, str(single)):
        assert (await validate("tool", path)).passed


async def test_a_dotted_name_is_not_read_as_a_folder_in_the_current_directory(
    module_folders: ModuleFolders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = module_folders.package(TOOL, name="sample_named_alike")
    monkeypatch.syspath_prepend(str(folder.parent))
    working_directory = tmp_path / "work"
    (working_directory / "sample_named_alike").mkdir(parents=True)
    monkeypatch.chdir(working_directory)
    assert (await validate("tool", "sample_named_alike")).passed


@pytest.mark.parametrize(("kind", "code"), [("orchestrator", ORCHESTRATOR), ("context", CONTEXT)])
async def test_mounting_at_the_session_mount_point_is_supported(
    kind: str, code: str, module_folders: ModuleFolders
) -> None:
    code = code.replace(f'mount("{kind}", ', 'mount("session", ').replace(
        "())\n", f'(), name="{kind}")\n'
    )
    assert '"session"' in code
    result = await validate(kind, module_folders.package(code))
    assert result.passed, result.errors


async def test_a_returned_instance_counts_as_mounted(module_folders: ModuleFolders) -> None:
    code = TOOL.replace('await coordinator.mount("tools", Shout())', "return Shout()")
    result = await validate("tool", module_folders.package(code))
    assert result.passed
    assert only(result, "tool_execute").passed


async def test_every_mounted_tool_is_checked(module_folders: ModuleFolders) -> None:
    code = TOOL + (
        "    class Mute:\n"
        "        name = 'mute'\n"
        "        description = ''\n"
        "        def execute(self, input): ...\n"
    )
    code = code.replace(
        'await coordinator.mount("tools", Shout())',
        'await coordinator.mount("tools", Shout())\n'
        '        await coordinator.mount("tools", Mute())',
    )
    result = await validate("tool", module_folders.package(code))
    assert [check.passed for check in result.checks if check.name == "tool_execute"] == [
        True,
        False,
    ]
    assert failed(result) == ["tool_description", "tool_input_schema", "tool_execute"]
    assert [check.name for check in result.errors] == ["tool_execute"]


async def test_mount_receives_a_copy_of_the_config(module_folders: ModuleFolders) -> None:
    code = """
        async def mount(coordinator, config=None):
            assert config.pop("key") == "k", config
            config["list"].append(2)
            config["inner"]["more"] = 1
            return lambda: None
    """
    config: dict[str, Any] = {"key": "k", "list": [1], "inner": {}}
    result = await validate("tool", module_folders.package(code), config=config)
    assert result.passed, result.errors
    assert config == {"key": "k", "list": [1], "inner": {}}


async def test_mount_receives_an_empty_config_by_default(module_folders: ModuleFolders) -> None:
    code = "async def mount(coordinator, config):\n    assert config == {}\n    return print\n"
    assert (await validate("tool", module_folders.package(code))).passed


async def test_the_coordinator_of_a_validation_has_no_session(
    module_folders: ModuleFolders,
) -> None:
    code = """
        async def mount(coordinator, config=None):
            assert coordinator.parent_id is None
            assert coordinator.config["session"]
            assert coordinator.get_capability("session.working_dir") is None
            coordinator.display_system.show_message("hello", "info")
            answer = await coordinator.approval_system.request_approval("?", ["Allow"], 1.0, "allow")
            assert answer == "Deny"
            return lambda: None
    """
    result = await validate("tool", module_folders.package(code))
    assert result.passed, result.errors


async def test_a_module_may_load_another_one_with_the_loader_of_the_coordinator(
    module_folders: ModuleFolders,
) -> None:
    code = """
        async def mount(coordinator, config=None):
            mount_inner = await coordinator.loader.load("context-simple", {})
            coordinator.register_cleanup(await mount_inner(coordinator))
            assert coordinator.get("context") is not None
    """
    result = await validate("context", module_folders.package(code))
    assert result.passed, result.errors
    double = MockCoordinator()
    await (await double.loader.load("context-simple", {}))(double)
    assert double.get("context") is not None


# Entry points


async def test_another_mount_function_can_be_named(module_folders: ModuleFolders) -> None:
    code = TOOL.replace("async def mount(", "async def setup(")
    folder = module_folders.package(code)
    assert failed(await validate("tool", folder)) == ["mount_exists"]
    assert (await validate("tool", folder, entry_point="setup")).passed


async def test_an_entry_point_may_name_a_module_of_the_package(
    module_folders: ModuleFolders,
) -> None:
    folder = module_folders.package("", name="sample_entry", inside=TOOL)
    result = await validate("tool", folder, entry_point="sample_entry.inside:mount")
    assert result.passed, result.errors
    result = await validate("tool", folder, entry_point="sample_entry.missing:mount")
    assert failed(result) == ["module_importable"]


# Import errors


async def test_a_folder_without_init_fails_with_the_location_of_the_package(
    module_folders: ModuleFolders,
) -> None:
    module_folders.package(TOOL, name="project/my_tool")
    result = await validate("tool", module_folders.root / "project")
    assert failed(result) == ["module_importable"]
    assert "no __init__.py" in result.errors[0].message
    assert "my_tool" in result.errors[0].message
    empty = module_folders.root / "empty"
    empty.mkdir()
    assert "add one" in (await validate("tool", empty)).errors[0].message


@pytest.mark.parametrize(
    "path", ["no_such_module_anywhere", "no/such/folder", "missing.py", Path("missing")]
)
async def test_a_missing_path_is_not_importable(path: Path | str) -> None:
    result = await validate("tool", path)
    assert failed(result) == ["module_importable"]
    assert len(result.checks) == 1


# Faults of mount


async def test_a_module_without_mount_is_not_checked_further(module_folders: ModuleFolders) -> None:
    for code in ("", "mount = 7"):
        result = await validate("tool", module_folders.package(code))
        assert [check.name for check in result.checks] == ["module_importable", "mount_exists"]
        assert not result.passed


async def test_a_mount_with_any_arguments_passes(module_folders: ModuleFolders) -> None:
    code = "async def mount(*args, **kwargs):\n    return lambda: None\n"
    assert (await validate("tool", module_folders.package(code))).passed


@pytest.mark.parametrize("error", ["ValueError('bad url')", "SystemExit('bad url')"])
@pytest.mark.parametrize("kind", VALIDATORS)
async def test_a_mount_that_raises_is_an_error_of_every_kind(
    kind: str, error: str, module_folders: ModuleFolders
) -> None:
    code = f"async def mount(coordinator, config=None):\n    raise {error}\n"
    result = await validate(kind, module_folders.package(code))
    assert failed(result) == ["protocol_compliance"]
    assert "bad url" in result.errors[0].message


# Faults of mounted objects


@pytest.mark.parametrize(
    ("kind", "old", "new", "check", "severity"),
    [
        ("tool", 'name = "shout"', 'name = ""', "tool_name", "error"),
        ("tool", '"tools", Shout()', '"tools", type("Odd", (Shout,), {"name": 7})(), "odd"', "tool_name", "error"),
        ("tool", 'description = "Gives its', 'description = " " # "', "tool_description", "warning"),
        ("tool", "input_schema = {", "input_schema = 7 # {", "tool_input_schema", "warning"),
        ("tool", "input_schema = {", "unused = {", "tool_input_schema", "warning"),
        ("tool", "async def execute(self, input)", "def execute(self, input)", "tool_execute", "error"),
        ("tool", "execute(self, input)", "execute(self)", "tool_execute", "error"),
        ("provider", 'name = "parrot"', 'name = ""', "provider_name", "error"),
        (
            "provider",
            'return ProviderInfo(id="parrot", display_name="Parrot")',
            'return {"id": "parrot"}',
            "provider_get_info",
            "error",
        ),
        (
            "provider",
            'return ProviderInfo(id="parrot", display_name="Parrot")',
            'raise RuntimeError("ask me later")',
            "provider_get_info",
            "warning",
        ),
        ("provider", "def get_info", "async def get_info", "provider_get_info", "error"),
        (
            "provider",
            "def get_info(self):",
            "get_info = 7\n\n        def unused(self):",
            "provider_get_info",
            "error",
        ),
        ("provider", "async def list_models", "def list_models", "provider_list_models", "error"),
        ("provider", "async def complete", "def complete", "provider_complete", "error"),
        (
            "provider",
            "def parse_tool_calls(self, response):",
            "parse_tool_calls = 7\n\n        def unused(self, response):",
            "provider_parse_tool_calls",
            "error",
        ),
        ("orchestrator", "class Once:", "class Once:\n        def execute(self, a, b, c, d, e): ...\n\n    class Unused:", "orchestrator_execute", "error"),
        ("orchestrator", "tools, hooks, **kwargs", "tools", "orchestrator_execute", "error"),
        ("context", "add_message(self, message)", "add_message(self)", "context_add_message", "error"),
        ("context", "async def get_messages(", "def get_messages(", "context_get_messages", "error"),
        (
            "context",
            "async def get_messages_for_request",
            "def get_messages_for_request",
            "context_get_messages_for_request",
            "error",
        ),
        ("context", "set_messages(self, messages)", "set_messages(self)", "context_set_messages", "error"),
        ("context", "async def clear", "def clear", "context_clear", "error"),
    ],
)  # fmt: skip
async def test_a_member_that_breaks_the_protocol_is_named(
    kind: str, old: str, new: str, check: str, severity: str, module_folders: ModuleFolders
) -> None:
    code = SAMPLES[kind].replace(old, new).replace('if "text" not in input', "if False")
    assert code != SAMPLES[kind]
    result = await validate(kind, module_folders.package(code))
    assert failed(result) == [check]
    assert only(result, check).severity == severity
    assert f"expected `{DEFINITIONS[check]}`" in only(result, check).message


@pytest.mark.parametrize(
    ("kind", "old", "check"),
    [
        ("tool", "execute(", "tool_execute"),
        ("provider", "complete(", "provider_complete"),
        ("orchestrator", "execute(", "orchestrator_execute"),
        ("context", "clear(", "context_clear"),
    ],
)
async def test_a_missing_member_breaks_compliance_too(
    kind: str, old: str, check: str, module_folders: ModuleFolders
) -> None:
    code = SAMPLES[kind].replace(f"async def {old}", f"async def other_{old}")
    result = await validate(kind, module_folders.package(code))
    assert failed(result) == ["protocol_compliance", check]
    assert "is missing" in only(result, check).message


async def test_a_returned_object_whose_name_raises_is_still_checked(
    module_folders: ModuleFolders,
) -> None:
    code = TOOL.replace('await coordinator.mount("tools", Shout())', "return Shout()").replace(
        'name = "shout"', "@property\n        def name(self):\n            raise OSError('disk')"
    )
    result = await validate("tool", module_folders.package(code))
    assert failed(result) == ["tool_name"]


async def test_a_schema_may_come_from_a_method(module_folders: ModuleFolders) -> None:
    code = TOOL.replace("input_schema = {", "def get_schema(self):\n            return {")
    result = await validate("tool", module_folders.package(code))
    assert failed(result) == []


# Hooks


HANDLER = """
    class Handler:
        {define} __call__({parameters}):
            return None

    async def mount(coordinator, config=None):
        return Handler()
"""


@pytest.mark.parametrize(
    ("define", "parameters", "passes"),
    [
        ("async def", "self, event, data", True),
        ("def", "self, event, data", False),
        ("async def", "self, event", False),
    ],
)
async def test_a_handler_object_returned_by_mount_is_checked(
    define: str, parameters: str, passes: bool, module_folders: ModuleFolders
) -> None:
    code = HANDLER.format(define=define, parameters=parameters)
    result = await validate("hook", module_folders.package(code))
    check = only(result, "hook_call")
    assert check.passed is result.passed is passes
    assert passes or f"expected `{DEFINITIONS['hook_call']}`" in check.message


async def test_a_handler_function_returned_by_mount_is_checked(
    module_folders: ModuleFolders,
) -> None:
    code = """
        async def watch(event, data): ...

        async def mount(coordinator, config=None):
            return watch
    """
    result = await validate("hook", module_folders.package(code))
    assert only(result, "hook_call").passed


async def test_registered_sync_handlers_pass(module_folders: ModuleFolders) -> None:
    code = SAMPLES["hook"].replace("async def watch", "def watch")
    result = await validate("hook", module_folders.package(code))
    assert failed(result) == []
    assert "handlers for 1 events" in only(result, "protocol_compliance").message


async def test_a_hook_module_that_registers_nothing_passes(module_folders: ModuleFolders) -> None:
    code = "async def mount(coordinator, config=None): ...\n"
    assert (await validate("hook", module_folders.package(code))).passed


# on_session_ready


async def test_an_async_on_session_ready_is_not_mentioned_and_not_called(
    module_folders: ModuleFolders,
) -> None:
    code = TOOL + "    async def on_session_ready(coordinator):\n        raise RuntimeError\n"
    result = await validate("tool", module_folders.package(code))
    assert [check.name for check in result.checks][:4] == COMMON
    assert result.passed


async def test_a_class_instead_of_an_instance_is_an_error(module_folders: ModuleFolders) -> None:
    for code in (
        TOOL.replace('mount("tools", Shout())', 'mount("tools", Shout)'),
        TOOL.replace('await coordinator.mount("tools", Shout())', "return Shout"),
    ):
        result = await validate("tool", module_folders.package(code))
        assert failed(result) == ["protocol_compliance"]
        message = result.errors[0].message
        assert "is the class Shout, not an instance of it; write Shout(…)" in message


# Cleanup


@pytest.mark.parametrize("define", ["def", "async def"])
@pytest.mark.parametrize("kind", ["tool", "hook"])
async def test_the_cleanup_runs_once_after_the_checks(
    kind: str, define: str, module_folders: ModuleFolders
) -> None:
    code = f"""
        closed = []

        async def mount(coordinator, config=None):
            coordinator.register_cleanup(lambda: closed.append("registered"))
            {define} close():
                closed.append("returned")
            return close
    """
    folder = module_folders.package(code)
    assert (await validate(kind, folder)).passed
    assert sys.modules[folder.name].closed == ["returned", "registered"]


async def test_what_a_failing_mount_registered_is_cleaned_up(module_folders: ModuleFolders) -> None:
    code = """
        closed = []

        async def mount(coordinator, config=None):
            coordinator.register_cleanup(lambda: closed.append("registered"))
            raise RuntimeError("half way")
    """
    folder = module_folders.package(code)
    assert not (await validate("tool", folder)).passed
    assert sys.modules[folder.name].closed == ["registered"]


async def test_a_callable_instance_is_not_treated_as_a_cleanup(
    module_folders: ModuleFolders,
) -> None:
    code = TOOL.replace(
        'await coordinator.mount("tools", Shout())',
        'tool = Shout()\n        await coordinator.mount("tools", tool)\n        return tool',
    ).replace(
        'name = "shout"', 'name = "shout"\n        def __call__(self):\n            raise OSError'
    )
    result = await validate("tool", module_folders.package(code))
    assert failed(result) == []


async def test_a_builtin_without_signature_counts_as_cleanup(module_folders: ModuleFolders) -> None:
    code = "async def mount(coordinator, config=None):\n    return dir\n"
    assert (await validate("tool", module_folders.package(code))).passed
