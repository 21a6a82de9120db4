"""Files of the plan's namespaces, named as `@NAME:path`."""

from pathlib import Path
from typing import Any

import pytest

from amplifier_app.runtime.capabilities import Mentions, Namespace, register_mentions


@pytest.fixture
def kit(files: Any, tmp_path: Path) -> Any:
    """Starts the tools with the namespace `kit`, whose folder is not in the working directory."""

    async def start(config: dict[str, Any] | None = None) -> Any:
        folder = tmp_path / "kit"
        (folder / "docs").mkdir(parents=True)
        (folder / "docs" / "a.md").write_text("text of a")
        started = await files(config)
        mentions = Mentions({"kit": Namespace("kit", folder, (folder,))}, str(started.folder))
        started.coordinator.register_capability("mention_resolver", mentions)
        return started

    return start


async def test_files_and_folders_of_a_namespace_are_read(kit: Any) -> None:
    started = await kit()
    assert "text of a" in await started.ok("read_file", file_path="@kit:docs/a.md")
    assert await started.ok("list_directory", path="@kit:") == "docs/"


@pytest.mark.parametrize("allowed", [["."], [], ["../kit/other"]])
async def test_the_folders_that_may_be_read_hold_for_namespaces(
    kit: Any, allowed: list[str]
) -> None:
    started = await kit({"allowed_read_paths": allowed})
    await started.error("read_file", "OutsideRoots", file_path="@kit:docs/a.md")
    await started.error("list_directory", "OutsideRoots", path="@kit:docs")


async def test_a_namespace_in_a_folder_that_may_be_read_is_read(kit: Any) -> None:
    started = await kit({"allowed_read_paths": ["../kit/docs"]})
    assert "text of a" in await started.ok("read_file", file_path="@kit:docs/a.md")


async def test_nothing_is_written_by_the_name_of_a_namespace(kit: Any) -> None:
    started = await kit()
    for path in ("@kit:docs/a.md", "@kit:new/file"):
        message = await started.error("write_file", "InvalidPath", file_path=path, content="x")
        assert path in message
    edit = {"file_path": "@kit:docs/a.md", "old_string": "a", "new_string": "b"}
    await started.error("edit_file", "InvalidPath", **edit)
    assert list(started.folder.iterdir()) == []
    # A file with such a name, in the working directory.
    await started.ok("write_file", file_path="./@kit:new", content="x")
    await started.ok("write_file", file_path="@other:new", content="x")


async def test_a_folder_that_was_replaced_with_a_link_is_not_followed(
    kit: Any, tmp_path: Path
) -> None:
    started = await kit()
    folder = started.folder / "own"
    folder.mkdir()
    (folder / "a.md").write_text("text of own")
    await register_mentions(started.coordinator, {"own": [str(folder)]}, offline=True)
    folder.rename(started.folder / "old")
    folder.symlink_to(tmp_path / "kit" / "docs")
    result = await started.call("read_file", file_path="@own:a.md")
    assert not result.success
