"""The log of requests divides the tools of all sessions of a process alike."""

from typing import Any

from amplifier_app.runtime.request_log import RequestLog
from amplifier_app.runtime.request_sections import Section, split_tool
from amplifier_core.message_models import ToolSpec
from amplifier_core.testing import MockCoordinator
from amplifier_support.session_capabilities import SentRequest

SKILLS = {"review": "- review: Reads changes", "missing": "- missing: Not in the description"}
TOOLS: dict[str, tuple[ToolSpec, Any]] = {
    "plain": (ToolSpec(name="plain", description="é", parameters={"type": "object"}), None),
    "skills": (
        ToolSpec(name="skills", description="Skills:\n- review: Reads changes\nEnd", parameters={}),
        {"description_parts": SKILLS},
    ),
    "no skills": (
        ToolSpec(name="skills", description="Skills:\n- review: Reads changes\nEnd", parameters={}),
        {"description_parts": "no mapping"},
    ),
    "odd": (ToolSpec.model_construct(name="odd", description=None, parameters={"x": int}), None),
    "odder": (ToolSpec.model_construct(name=1, description="\ud800", parameters=(b"",)), None),
}


def split(spec: ToolSpec, tool: Any) -> list[Section]:
    coordinator = MockCoordinator()
    coordinator.mount_points["tools"][spec.name] = tool
    log = RequestLog(coordinator, None)  # type: ignore[arg-type]
    return log._split(SentRequest("mock", "m", [spec], [], []))[0]


def test_sections_of_tools_are_the_same_in_every_session() -> None:
    for spec, tool in (*TOOLS.values(), *TOOLS.values()):
        pieces = split_tool(spec, (tool or {}).get("description_parts"))
        assert split(spec, tool) == [Section.of(piece, 0) for piece in pieces]


def test_a_session_cannot_change_the_sections_of_others() -> None:
    spec, tool = TOOLS["skills"]
    first = split(spec, tool)
    first.clear()
    assert len(split(spec, tool)) == 3
