"""Files that the command line names for reading: anything else is an error, never a wait."""

import os
from pathlib import Path

import click
import pytest

from amplifier_app.commands.group import amplifier_command
from tests.support.cli import run_amplifier
from tests.support.commands import every_command
from tests.support.plans import mock_plan

pytestmark = pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")

READ = {
    "--attach",
    "--plan",
    "--schema",
    "--lock",
    "--replay",
    "--config",
    "import file",
    "run plan",
}
WRITTEN = {"--record", "--report", "--to"}

LINES = {
    "plan": "run hi -f {file}",
    "schema": "run hi -f {plan} --schema {file}",
    "attachment": "run hi -f {plan} --attach {file}",
    "lock": "run hi -f {plan} --lock {file} --locked",
    "lock-check": "plan lock -f {plan} -o {file} --check",
    "recording": "run hi -f {plan} --replay {file}",
    "bundle": "session import {file}",
    "config": "module validate tool-todo --config {file}",
    "rows": "batch run {plan} {file} -o out",
    "plan-of-a-batch": "batch run {file} rows.txt -o out",
    "schema-of-a-batch": "batch run {plan} rows.txt -o out --schema {file}",
    "lock-of-a-batch": "batch run {plan} rows.txt -o out --lock {file} --locked",
}
STREAMS = {"plan", "schema", "config"}
"""These may be pipes: what is written to them can come late."""


def test_every_option_that_names_a_file_is_known() -> None:
    found = set[str]()
    for words in every_command():
        command = amplifier_command()
        for word in words:
            command = command.get_command(click.Context(command), word)  # pyright: ignore
        for one in command.params:
            if one.metavar and ("FILE" in one.metavar or one.metavar in ("PLAN", "BUNDLE")):
                is_option = one.param_type_name == "option"
                found.add(one.opts[0] if is_option else f"{words[-1]} {one.name}")
    assert found - {"import bundle"} == READ | WRITTEN


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("pipe", sorted(LINES.keys() - STREAMS)),
        pytest.param("pipe", sorted(STREAMS), marks=pytest.mark.thorough),
        ("device", sorted(LINES)),
        pytest.param("folder", sorted(LINES.keys() - {"rows"}), marks=pytest.mark.thorough),
    ],
)
def test_a_missing_or_special_file_is_one_error(
    kind: str, names: list[str], tmp_path: Path
) -> None:
    plan = mock_plan(tmp_path, ["said"])
    (tmp_path / "rows.txt").write_text("hi\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    file = "/dev/zero" if kind == "device" else str(tmp_path / kind)
    for name in names:
        line = LINES[name].format(plan=plan, file=file).split()
        done = run_amplifier(*line, cwd=tmp_path, home=tmp_path / "home", timeout=60)
        assert done.code in (2, 6, 78), (name, done)
        assert done.stderr.count("amplifier: ") == 1, (name, done)
        assert file in done.stderr, (name, done)
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "out").exists(), (name, done)
