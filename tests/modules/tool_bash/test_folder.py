"""Where commands start: where the last one ended, if that is allowed."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest


def began(result: Any) -> str:
    return result.output.splitlines()[0]


async def test_the_next_command_begins_where_the_last_one_ended(start: Any) -> None:
    session = await start()
    (session.folder / "a" / "b").mkdir(parents=True)
    moved = await session.run("cd a && cd b; echo there")
    assert moved.output == (
        f"there\n[the next command starts in {session.folder}/a/b]\n[exit code 0]"
    )
    assert began(await session.run("pwd")) == f"{session.folder}/a/b"
    assert began(await session.run("pwd", working_directory="..")) == f"{session.folder}/a"
    assert began(await session.run("pwd")) == f"{session.folder}/a/b"
    assert "starts in" in (await session.run("cd -P ../..; false")).output
    assert began(await session.run("pwd")) == str(session.folder)


async def test_exit_codes_and_error_lines_are_preserved(start: Any) -> None:
    session = await start()
    (session.folder / "sub").mkdir()
    left = await session.run("cd sub\nexit 4")
    assert left.error is not None
    assert left.error["exit_code"] == 4
    assert began(await session.run("pwd")) == f"{session.folder}/sub"
    wrong = await session.run("true\nno-such-command\ntrue")
    assert "line 2: no-such-command" in wrong.output
    broken = await session.run("if true; then")
    assert not broken.success
    assert "syntax error" in broken.output
    assert "in quotes and $HOME" in (await session.run("echo 'in quotes and $HOME'")).output
    assert (await session.run("# only a comment")).success


async def test_a_command_may_set_its_own_trap(start: Any) -> None:
    session = await start()
    (session.folder / "sub").mkdir()
    assert "mine" in (await session.run("trap 'echo mine' EXIT; cd sub")).output
    assert began(await session.run("pwd")) == str(session.folder)


async def test_outside_folders_and_odd_names(start: Any, tmp_path: Path) -> None:
    session = await start()
    outside = await session.run("cd ..; pwd")
    assert f"starts in {session.folder} again, not in {tmp_path}" in outside.output
    assert began(await session.run("pwd")) == str(session.folder)
    await session.run("mkdir $'two\\nlines' \"quo'te\" && cd $'two\\nlines'")
    assert (await session.run("pwd")).output.startswith(f"{session.folder}/two\nlines\n")
    await session.run("cd ../quo*")
    assert began(await session.run("pwd")) == f"{session.folder}/quo'te"
    granted = await start({"allowed_paths": [str(tmp_path)]})
    await granted.run("cd ..")
    assert began(await granted.run("pwd")) == str(tmp_path)


async def test_a_deleted_folder_is_not_used(start: Any) -> None:
    session = await start()
    (session.folder / "sub").mkdir()
    await session.run("cd sub")
    shutil.rmtree(session.folder / "sub")
    assert began(await session.run("pwd")) == str(session.folder)
    gone = await session.run("mkdir sub; cd sub; rmdir ../sub")
    assert gone.output == "(no output)\n[exit code 0]"


async def test_keeping_the_folder_can_be_turned_off(start: Any) -> None:
    session = await start({"keep_folder": False})
    (session.folder / "sub").mkdir()
    assert (await session.run("cd sub")).output == "(no output)\n[exit code 0]"
    assert began(await session.run("pwd")) == str(session.folder)
    assert "starts in the folder" not in session.tool.description


async def test_the_output_folder_is_left_clean(start: Any, tmp_path: Path) -> None:
    saved = tmp_path / "session"
    saved.mkdir()
    session = await start(session_dir=str(saved))
    await asyncio.gather(*(session.run("cd /") for _ in range(4)))
    assert list((saved / "tool-output").iterdir()) == []


_NOTE = "note=$(trap -p EXIT | sed -E 's/.*>([^ ]*folder-[0-9a-f]+).*/\\1/')"


@pytest.mark.parametrize(
    "left",
    [
        f"{_NOTE}; trap - EXIT; mkfifo $note",
        f"{_NOTE}; trap - EXIT; ln -s /dev/zero $note",
        f"{_NOTE}; trap - EXIT; mkdir $note",
        f"{_NOTE}; trap - EXIT; echo ../.. >$note",
        f"{_NOTE}; trap - EXIT; ln -s /etc/hostname $note",
        "pwd() { head -c 9000000 /dev/zero | tr '\\0' x; }",
        "pwd() { printf '/\\0x'; }",
    ],
)
async def test_an_invalid_trace_file_does_not_change_the_folder(start: Any, left: str) -> None:
    session = await start()
    result = await session.run(f"{left}; echo done")
    assert result.output == "done\n[exit code 0]"
    assert began(await session.run("pwd")) == str(session.folder)
