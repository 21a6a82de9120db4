"""Every command in a hostile directory that is not trusted: nothing in it is run or reached."""

from pathlib import Path

import pytest

from tests.support.cli import run_amplifier
from tests.support.commands import furnished
from tests.support.hostile import hostile_directory
from tests.support.plans import mock_plan

MODULES = ("tool-bash", "tool-filesystem", "tool-search", "tool-todo", "tool-web")
HOOKS = ("hooks-status", "hooks-context-files", "hooks-backup", "hooks-logging", "hooks-redaction")

CALLS = [
    ("grep", {"pattern": "evil"}),
    ("glob", {"pattern": "**/*.py"}),
    ("read_file", {"file_path": "pyproject.toml"}),
]

SOME = ("run hi -f", "module list")


# Whatever a command starts in a plain directory, it also starts with a relative path.
@pytest.mark.parametrize(
    ("path", "begin"),
    [("plain", SOME), pytest.param("relative", ("",), marks=pytest.mark.thorough)],
)
def test_no_command_runs_or_reaches_anything_in_it(
    path: str, begin: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "user").mkdir()
    place = furnished(tmp_path / "user", with_batch=begin != SOME)
    env: dict[str, str | None] = {"HOME": str(tmp_path / "user")}
    if path == "relative":
        # Programs of the directory come first.
        env["PATH"] = f".::{tmp_path / 'hostile'}:bin:/usr/local/bin:/usr/bin:/bin"
    calls = [{"name": name, "arguments": arguments} for name, arguments in CALLS]
    # The plan of the user, with every module that reads files or starts programs by itself.
    mock_plan(
        place.work,
        [{"tool_calls": calls}, "what the model said"],
        tools=[{"module": name} for name in MODULES],
        hooks=[{"module": name} for name in (*HOOKS, "hooks-approval")],
    )
    used: set[str] = set()
    with hostile_directory(tmp_path) as hostile:
        for line in place.lines():
            # Help is printed before anything is looked for, and JSON after.
            if not " ".join(line).startswith(begin) or {"--help", "json"} & set(line):
                continue
            used |= {words for words in begin if " ".join(line).startswith(words)}
            done = run_amplifier(*line, home=place.home, cwd=hostile.folder, env=env)
            assert hostile.damage == [], (line, done)
            assert "Traceback" not in done.stderr, (line, done)
            if begin == SOME or line[:2] == ("run", "hi"):
                assert done.code == 0, (line, done)
        assert used == set(begin)
        done = run_amplifier("run", "hi", "-f", place.plan, home=place.home, cwd=hostile.folder)
        assert (done.code, done.stdout) == (0, "what the model said\n"), done.stderr
