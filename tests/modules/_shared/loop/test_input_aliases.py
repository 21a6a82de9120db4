"""A parameter with two names: hooks see both, the tool gets its own, and the two never disagree."""

from pathlib import Path
from typing import Any

import pytest

from amplifier_core.models import HookResult
from amplifier_modules.tool_filesystem import mount as mount_files
from tests.modules._shared.loop.rig import FunctionTool, Rig, call, calls, shout

SCHEMA = {
    "type": "object",
    "properties": {"file_path": {"type": "string"}, "text": {"type": "string"}},
    "required": ["file_path"],
    "additionalProperties": False,
}


def open_tool() -> FunctionTool:
    """A tool of any origin that declares an alias."""
    tool: Any = FunctionTool("open", shout, SCHEMA)
    tool.input_aliases = {"path": "file_path"}
    return tool


def guard(key: str, forbidden: str) -> Any:
    """A hook that only knows one name of the parameter."""

    def check(data: dict[str, Any]) -> HookResult:
        if data["tool_input"].get(key, "").startswith(forbidden):
            return HookResult(action="deny", reason=f"{key} is outside")
        return HookResult()

    return check


def rewrite(**changes: Any) -> Any:
    """A hook that changes names of the parameter; None removes one."""

    def change(data: dict[str, Any]) -> HookResult:
        values = {**data["tool_input"], **changes}
        kept = {key: value for key, value in values.items() if value is not None}
        return HookResult(action="modify", data={**data, "tool_input": kept})

    return change


def asked_with(rig: Rig, **values: Any) -> FunctionTool:
    rig.replies(calls(call("open", "c1", **values)), "done")
    return rig.add_tool(open_tool())


@pytest.mark.parametrize("given", ["path", "file_path"])
@pytest.mark.parametrize("guarded", ["path", "file_path"])
async def test_a_guard_for_either_name_keeps_the_file_tools_out(
    rig: Rig, tmp_path: Path, given: str, guarded: str
) -> None:
    secret, work = tmp_path / "etc", tmp_path / "work"
    for folder in (secret, work):
        folder.mkdir()
        (folder / "hostname").write_text(f"in {folder.name}")
    rig.coordinator.register_capability("session.working_dir", str(work))
    await mount_files(rig.coordinator, {"allowed_read_paths": [str(secret), "."]})
    rig.tools = rig.coordinator.get("tools")
    outside, inside = {given: str(secret / "hostname")}, {given: "hostname"}
    rig.replies(calls(call("read_file", "c1", **outside), call("read_file", "c2", **inside)), "ok")
    rig.on("tool:pre", guard(guarded, str(secret)))

    await rig.run()

    assert rig.context.results() == {"c1": f"Error: denied: {guarded} is outside", "c2": "in work"}


@pytest.mark.parametrize(
    "changes",
    [
        {"file_path": "b.txt"},
        {"path": "b.txt"},
        {"file_path": "b.txt", "path": "b.txt"},
        {"file_path": "b.txt", "path": None},
        {"file_path": None, "path": "b.txt"},
    ],
    ids=str,
)
async def test_the_name_a_hook_changed_counts(rig: Rig, changes: dict[str, Any]) -> None:
    tool = asked_with(rig, file_path="a.txt")
    rig.on("tool:pre", rewrite(**changes))

    await rig.run()

    assert tool.inputs == [{"file_path": "b.txt"}]
    assert rig.last("tool:post")["tool_input"] == {"file_path": "b.txt", "path": "b.txt"}


async def test_a_hook_may_remove_one_of_the_names(rig: Rig) -> None:
    tool = asked_with(rig, path="a.txt")
    rig.on("tool:pre", rewrite(path=None))

    await rig.run()

    assert tool.inputs == [{"file_path": "a.txt"}]


async def test_different_values_of_a_hook_are_refused(rig: Rig) -> None:
    tool = asked_with(rig, path="a.txt")
    rig.on("tool:pre", rewrite(file_path="b.txt", path="c.txt"))

    await rig.run()

    assert tool.inputs == []
    assert "'file_path' and 'path' are the same parameter" in rig.context.results()["c1"]


async def test_different_values_of_the_model_are_refused_before_any_hook(rig: Rig) -> None:
    tool = asked_with(rig, file_path="a.txt", path="/etc/passwd")

    await rig.run()

    assert tool.inputs == []
    assert rig.context.results()["c1"] == (
        "Error: invalid arguments for tool 'open': 'file_path' and 'path' are the same parameter, "
        "but their values differ; give only 'file_path'"
    )
    assert rig.of("tool:pre") == []
