"""Mount plans: valid structures, and the check that reports each fault."""

from typing import Any

import pytest

from amplifier_core.validation import MountPlanValidator

MINIMAL: dict[str, Any] = {
    "session": {"orchestrator": {"module": "loop-basic"}, "context": {"module": "context-simple"}}
}


def names_of_faults(plan: Any) -> list[str]:
    return [check.name for check in MountPlanValidator().validate(plan).errors]


def with_session(**fields: Any) -> dict[str, Any]:
    return {"session": {**MINIMAL["session"], **fields}}


def test_a_minimal_plan_passes() -> None:
    result = MountPlanValidator().validate(MINIMAL)
    assert result.passed
    assert result.warnings == []
    assert result.format_errors() == ""
    assert result.summary().startswith("PASSED: ")


def test_a_full_plan_passes() -> None:
    spec = {"module": "m", "source": "git+https://host/m@main", "config": {"key": "value"}}
    bare = {"module": "m", "source": None, "config": None}
    plan = {
        **with_session(orchestrator=spec),
        "providers": [spec, bare],
        "tools": [],
        "hooks": [bare],
        "agents": "not inspected",
    }
    assert MountPlanValidator().validate(plan).passed


def test_orchestrator_and_context_may_be_named_by_id() -> None:
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "orchestrator": {"config": {"max_iterations": 3}},
        "context": {"config": {}},
    }
    result = MountPlanValidator().validate(plan)
    assert result.passed
    assert result.warnings == []


def test_empty_sections_are_treated_as_missing() -> None:
    assert MountPlanValidator().validate({**MINIMAL, "tools": None, "context": None}).passed


@pytest.mark.parametrize("plan", [None, [], "plan", 7])
def test_a_plan_that_is_not_a_mapping_fails(plan: Any) -> None:
    assert names_of_faults(plan) == ["root_type"]


@pytest.mark.parametrize(
    ("plan", "faults"),
    [
        ({}, ["session_present"]),
        ({"session": None}, ["session_type"]),
        ({"session": "basic"}, ["session_type"]),
        ({"session": {}}, ["session_context_present", "session_orchestrator_present"]),
        (with_session(orchestrator=None), ["session_orchestrator_present"]),
        (with_session(orchestrator=["loop"]), ["session.orchestrator_type"]),
        (with_session(orchestrator=""), ["session.orchestrator_module_empty"]),
        (with_session(context={}), ["session.context_module_required"]),
        (with_session(context={"module": 7}), ["session.context_module_type"]),
        (with_session(context={"module": " "}), ["session.context_module_empty"]),
        ({**MINIMAL, "orchestrator": "loop"}, ["orchestrator_type"]),
        ({**MINIMAL, "providers": {"module": "m"}}, ["providers_type"]),
        ({**MINIMAL, "tools": "tool"}, ["tools_type"]),
        ({**MINIMAL, "hooks": 7}, ["hooks_type"]),
        ({**MINIMAL, "tools": ["tool-bash"]}, ["tools[0]_type"]),
        ({**MINIMAL, "tools": [{"module": "m"}, None]}, ["tools[1]_type"]),
        ({**MINIMAL, "hooks": [{"config": {}}]}, ["hooks[0]_module_required"]),
        (
            {**MINIMAL, "providers": [{"module": "m", "config": [], "source": {"git": "x"}}]},
            ["providers[0]_config_type", "providers[0]_source_type"],
        ),
    ],
)
def test_a_fault_is_reported_by_name(plan: Any, faults: list[str]) -> None:
    assert names_of_faults(plan) == faults


def test_unknown_sections_are_a_warning_that_names_them() -> None:
    result = MountPlanValidator().validate({**MINIMAL, "tool": [], "modules": []})
    assert result.passed
    assert [check.name for check in result.warnings] == ["unknown_sections"]
    assert "modules, tool" in result.warnings[0].message


def test_errors_are_formatted_one_per_line() -> None:
    result = MountPlanValidator().validate({**MINIMAL, "tools": 7, "hooks": None, "providers": 8})
    assert result.format_errors() == (
        "providers_type: is of type int, not a list\ntools_type: is of type int, not a list"
    )


def test_the_names_of_sections_and_fields_are_public() -> None:
    assert {"session"} == MountPlanValidator.REQUIRED_SECTIONS
    assert {"providers", "tools", "hooks", "agents"} == MountPlanValidator.OPTIONAL_SECTIONS
    assert {"orchestrator", "context"} == MountPlanValidator.REQUIRED_SESSION_FIELDS
    assert {"module"} == MountPlanValidator.REQUIRED_MODULE_SPEC_FIELDS
