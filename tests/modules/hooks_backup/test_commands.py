"""Files that shell commands name are put back as well; what they change unnamed is not seen."""

from typing import Any

import pytest

from amplifier_modules.hooks_backup.hook import MAX_FILES, named_paths
from tests.modules.hooks_backup.conftest import edited, ran, wrote


@pytest.mark.parametrize(
    ("command", "after"),
    [
        ("sed -i s/0/1/ a.txt", {"a.txt": "1\n"}),
        ("rm a.txt", {}),
        ("rm *.txt", {}),
        ("mv a.txt b.txt", {"b.txt": "0\n"}),
        ("cp a.txt b.txt && echo 2 > a.txt", {"a.txt": "2\n", "b.txt": "0\n"}),
        ("echo 1 >a.txt", {"a.txt": "1\n"}),
        ("cat > a.txt <<'EOF'\nit's\nEOF", {"a.txt": "it's\n"}),
        ("sort --output=a.txt a.txt; printf x >> a.txt", {"a.txt": "0\nx"}),
        ("mkdir sub; cd sub; echo 1 > ../a.txt; echo 2 > b.txt", {"a.txt": "1\n", "sub/b.txt": "2\n"}),
        ("echo 1 > 'with space.txt'", {"a.txt": "0\n", "with space.txt": "1\n"}),
        ("echo 1 > a.txt; exit 3", {"a.txt": "1\n"}),
    ],
)  # fmt: skip
async def test_files_named_in_a_command_are_restored(
    start: Any, command: str, after: dict[str, str]
) -> None:
    s = await start()
    s.write("a.txt", "0\n")
    await s.turn("first", ran(command))
    assert s.files() == after
    undone = await s.undo()
    assert undone["refused"] == {}
    assert s.files() == {"a.txt": "0\n"}


async def test_the_folder_a_command_begins_in_counts(start: Any) -> None:
    s = await start()
    s.write("sub/a.txt", "0\n")
    s.write("other/a.txt", "0\n")
    await s.turn(
        "first", ran("cd sub"), ran("rm a.txt"), ran("rm a.txt", working_directory="../other")
    )
    assert s.files() == {}
    await s.undo()
    assert s.files() == {"sub/a.txt": "0\n", "other/a.txt": "0\n"}


async def test_a_command_that_formats_a_file_of_the_turn_is_part_of_it(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    await s.turn(
        "first",
        edited("a.txt", "0", "1"),
        ran("for f in $(ls); do echo formatted >> $f; done"),
        edited("a.txt", "1", "2"),
    )
    assert s.files() == {"a.txt": "2formatted\n"}
    assert (await s.undo())["restored"] == ["a.txt"]
    assert s.files() == {"a.txt": "0"}


async def test_changes_before_a_command_are_not_attributed_to_it(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    ids = await s.begin("first")
    await s.call(*edited("a.txt", "0", "1"), **ids)
    s.write("a.txt", "1 and mine")
    await s.call(*ran("true"), **ids)
    undone = await s.undo()
    assert set(undone["refused"]) == {"a.txt"}
    assert s.files() == {"a.txt": "1 and mine"}


async def test_commands_can_be_left_out(start: Any) -> None:
    s = await start(commands={})
    s.write("a.txt", "0\n")
    await s.turn("first", ran("rm a.txt"))
    assert await s.nothing_to_undo()


async def test_tools_of_other_modules_are_named_in_the_config(start: Any) -> None:
    s = await start(tools={"patch_all": ["target"]})
    s.write("a.txt", "0")
    s.write("b.txt", "0")
    ids = await s.begin("first")
    targets = {"edits": [{"target": "a.txt"}, {"target": ["b.txt", "c.txt"]}], "other": "d.txt"}
    data = await s.pre("patch_all", targets, **ids)
    for name in ("a.txt", "b.txt", "c.txt"):
        s.write(name, "1")
    await s.coordinator.hooks.emit("tool:post", {**data, "result": {"success": True}})
    await s.call(*wrote("a.txt", "2"), **ids)
    undone = await s.undo()
    assert undone["restored"] == ["b.txt"]
    assert undone["removed"] == ["c.txt"]
    assert set(undone["refused"]) == {"a.txt"}


async def test_input_changed_by_other_hooks_is_used(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    s.write("b.txt", "0")

    async def redirect(event: str, data: dict[str, Any]) -> dict[str, Any]:
        given = {**data["tool_input"], "file_path": "b.txt"}
        return {"action": "modify", "data": {**data, "tool_input": given}}

    s.coordinator.hooks.register("tool:pre", redirect, priority=50)
    ids = await s.begin("first")
    data = await s.pre(*wrote("a.txt", "1"), **ids)
    await s.run({**data, "tool_input": {"file_path": "b.txt", "content": "1"}})
    assert (await s.undo())["restored"] == ["b.txt"]


def test_words_are_understood_as_far_as_they_are_plain() -> None:
    assert named_paths("cat a.txt", "/w") == ["/w/cat", "/w/a.txt"]
    assert named_paths("cat <'a b'|tee /x/y", "/w") == ["/w/cat", "/w/a b", "/w/tee", "/x/y"]
    assert named_paths("(cat a;b)&&c >>d 2>&1", "/w")[1:5] == ["/w/a", "/w/b", "/w/c", "/w/d"]
    assert "/w/out.txt" in named_paths("f --log=out.txt", "/w")
    assert "/w/sub/x" in named_paths("cd sub && rm x", "/w")
    assert named_paths("rm -rf -- -x", "/w") == ["/w/rm"]
    assert named_paths("a 'unfinished b", "/w") == ["/w/a"]
    assert named_paths("a b\0c " + "y" * 2000, "/w") == ["/w/a"]
    assert len(named_paths(" ".join(f"f{n}" for n in range(1000)), "/w")) == MAX_FILES
