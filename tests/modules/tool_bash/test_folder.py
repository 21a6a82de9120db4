"""Where commands start: where the last one ended, if that is allowed."""

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


@pytest.mark.parametrize(
    "left",
    [
        "trap - EXIT; echo ../.. >&137",
        "trap - EXIT; exec 137>&-",
        "pwd() { head -c 9000000 /dev/zero | tr '\\0' x; }",
        "pwd() { printf '/\\0x'; }",
    ],
)
async def test_an_invalid_record_does_not_change_the_folder(start: Any, left: str) -> None:
    session = await start()
    result = await session.run(f"{left}; echo done")
    assert result.output == "done\n[exit code 0]"
    assert began(await session.run("pwd")) == str(session.folder)


@pytest.mark.parametrize("shell", ["bash", "sh"])
async def test_the_record_of_the_folder_has_no_name(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    programs, saved, temporary = (tmp_path / name for name in ("bin", "saved", "temporary"))
    for folder in (programs, saved, temporary):
        folder.mkdir()
    for program in (shell, "ls"):
        (programs / program).symlink_to(shutil.which(program) or "")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("TMPDIR", str(temporary))
    session = await start(session_dir=str(saved))
    (session.folder / "sub").mkdir()
    listed = await session.run(f"ls -A {saved} {temporary}; cd sub")
    assert ".folder" not in listed.output
    assert f"starts in {session.folder}/sub" in listed.output
    assert not list(temporary.iterdir())
