"""Every command in unusual environments: it works, or ends with 78 or 6 and a sentence."""

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.cli import Finished, child_environment, run_amplifier
from tests.support.commands import Furnished, furnished
from tests.support.conditions import ORDINARY_USER, Conditions
from tests.support.warm_interpreter import WarmInterpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="conditions of Linux")

USER = ORDINARY_USER if os.getuid() == 0 else None
"""Permissions do not apply to root."""


class Environment(NamedTuple):
    """An environment.

    Attributes:
        variables: Laid over the usual ones; None takes one out. `{file}` is a file, `{sealed}` a
            folder without permissions, `{read_only}` one without write permission.
        conditions: What else a process finds.
        encoding: Of what is printed.
        works: Whether every command works.
    """

    variables: Mapping[str, str | None] = {}
    conditions: Conditions = Conditions()
    encoding: str = "utf-8"
    works: bool = True


PLATFORM: dict[str, str | None] = {
    "AMPLIFIER_HOME": None,
    "XDG_CONFIG_HOME": None,
    "XDG_DATA_HOME": None,
    "XDG_CACHE_HOME": None,
}
"""The folders of the platform, below HOME."""

ENVIRONMENTS = {
    "locale-C": Environment({"LC_ALL": "C", "PYTHONIOENCODING": None}),
    "locale-POSIX-ascii": Environment(
        {
            "LC_ALL": "POSIX",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "PYTHONIOENCODING": None,
        },
        encoding="ascii",
    ),
    "encoding-ascii": Environment({"PYTHONIOENCODING": "ascii"}, encoding="ascii"),
    "encoding-latin-1": Environment({"PYTHONIOENCODING": "latin-1"}, encoding="latin-1"),
    "terminal-unset": Environment({"TERM": None}),
    "terminal-dumb": Environment({"TERM": "dumb"}),
    "home-unset": Environment({"HOME": None}),
    "home-relative": Environment({"HOME": "relative"}),
    "home-file": Environment({"HOME": "{file}"}),
    "platform-home-file": Environment({**PLATFORM, "HOME": "{file}"}, works=False),
    "platform-home-missing": Environment({**PLATFORM, "HOME": "{file}/missing"}, works=False),
    "platform-home-sealed": Environment(
        {**PLATFORM, "HOME": "{sealed}"}, Conditions(user=USER), works=False
    ),
    "platform-home-read-only": Environment(
        {**PLATFORM, "HOME": "{read_only}"}, Conditions(user=USER), works=False
    ),
    "platform-folders-files": Environment(
        {
            "AMPLIFIER_HOME": None,
            "HOME": "{folder}",
            **dict.fromkeys(("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"), "{file}"),
        },
        works=False,
    ),
    "platform-folders-relative": Environment(
        {
            "AMPLIFIER_HOME": None,
            "HOME": "{folder}",
            **dict.fromkeys(("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"), "relative"),
        },
        works=False,
    ),
    "amplifier-home-unknown": Environment({"AMPLIFIER_HOME": "~nosuchuser/x"}, works=False),
    "amplifier-home-file": Environment({"AMPLIFIER_HOME": "{file}"}, works=False),
    "amplifier-home-sealed": Environment(
        {"AMPLIFIER_HOME": "{sealed}"}, Conditions(user=USER), works=False
    ),
    "amplifier-home-read-only": Environment(
        {"AMPLIFIER_HOME": "{read_only}"}, Conditions(user=USER), works=False
    ),
    "amplifier-home-long": Environment({"AMPLIFIER_HOME": "/tmp/" + "x" * 300}, works=False),
    "folder-removed": Environment({}, Conditions(folder="removed"), works=False),
    "folder-unreadable": Environment({}, Conditions(folder="unreadable", user=USER), works=False),
    "temporary-folder-missing": Environment({"TMPDIR": "/nonexistent"}),
    "umask-closed": Environment({}, Conditions(umask=0o777, user=USER), works=False),
    "few-files": Environment({}, Conditions(limits={"RLIMIT_NOFILE": 32})),
    "no-files-written": Environment({}, Conditions(limits={"RLIMIT_FSIZE": 0}), works=False),
    "small-files": Environment({}, Conditions(limits={"RLIMIT_FSIZE": 1000}), works=False),
    "time-zone-unknown": Environment({"TZ": "Nowhere/Else"}),
    "time-zone-control": Environment({"TZ": "\x01\x1b[31m"}),
    "columns-0": Environment({"COLUMNS": "0", "LINES": "0"}),
    "columns-negative": Environment({"COLUMNS": "-1"}),
    "columns-text": Environment({"COLUMNS": "abc"}),
    "columns-1": Environment({"COLUMNS": "1"}),
    "columns-huge": Environment({"COLUMNS": "1000000000"}),
    "path-empty": Environment({"PATH": ""}),
    "path-unset": Environment({"PATH": None}),
    "path-relative": Environment({"PATH": ".::bin"}),
    "not-utf-8": Environment(
        {"EDITOR": "\udcff", "LANG": "\udcff", "PAGER": '"', "SHELL": "\udcfe"}
    ),
}

SOME = ("session list --output json", "doctor --output", "run -f")

USUAL = (
    *("locale-C", "encoding-ascii", "home-unset", "platform-home-sealed", "folder-removed"),
    *("amplifier-home-unknown", "few-files", "no-files-written", "columns-0", "path-empty"),
)

MORE = (
    *("--version", "run -f", "run hi -f", "session list", "session show", "session verify"),
    *("plan check", "module list", "profile list", "provider list", "trust --list", "doctor"),
    "docs plans",
)
"""Commands that use the home, the terminal, the clock, other programs and every encoder."""

ALL = {
    *("locale-POSIX-ascii", "platform-home-sealed", "folder-removed", "amplifier-home-unknown"),
    *("umask-closed", "few-files", "no-files-written", "columns-1", "path-empty"),
}
"""One environment of each kind, in which every command is run."""

FULLY = ("run", "session", "docs")
"""Commands of which help and JSON are printed, too."""

STARTS_AN_INTERPRETER = ("LC_ALL", "LANG", "PYTHON")


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Furnished, Path]]:
    # Not below pytest's own folder, which only its user can enter.
    folder = Path(tempfile.mkdtemp(prefix="amplifier-environments-"))
    try:
        yield prepared(folder, with_batch=False), folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def prepared(folder: Path, *, with_batch: bool = True) -> Furnished:
    place = furnished(folder, with_batch=with_batch)
    (folder / "file").touch()
    for name, mode in (("sealed", 0), ("read_only", 0o555), ("folder", 0o777)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)
    folder.chmod(0o777)
    if USER is not None:
        for path in (folder / "home", folder / "work", folder / "out", folder / "project"):
            for one in (path, *path.rglob("*")):
                os.chown(one, USER, USER)
    return place


def run_all(
    environment: Environment, place: Furnished, folder: Path, begin: tuple[str, ...]
) -> int:
    paths = {name: str(folder / name) for name in ("file", "sealed", "read_only", "folder")}
    variables = {
        name: value if value is None or "{" not in value else value.format(**paths)
        for name, value in environment.variables.items()
    }
    count = 0
    for line in place.lines():
        # All of them have a help page, and most can print JSON: a few of each are enough.
        if begin != SOME and {"--help", "--output"} & set(line) and line[0] not in FULLY:
            continue
        if " ".join(line).startswith(begin):
            done = run_amplifier(
                *line,
                home=place.home,
                cwd=place.work,
                env=variables,
                conditions=environment.conditions,
            )
            check(done, line, environment)
            count += 1
    return count


def interpreter_of(
    environment: Environment, place: Furnished
) -> contextlib.AbstractContextManager[object]:
    """A warm interpreter that was started with the variables only an interpreter reads."""
    if not starts_an_interpreter(environment):
        return contextlib.nullcontext()
    return WarmInterpreter.with_environment(child_environment(place.home, environment.variables))


def starts_an_interpreter(environment: Environment) -> bool:
    return any(one.startswith(STARTS_AN_INTERPRETER) for one in environment.variables)


def check(done: Finished, line: tuple[str, ...], environment: Environment) -> None:
    if "resume" in line and line[0] != "batch":
        # It needs a terminal.
        assert done.code in (2, 6, 78), (line, done)
    elif environment.works:
        assert done.code == 0, (line, done)
    elif line[:2] in (("session", "search"), ("tool", "invoke")) and done.code == 1:
        assert done.stderr.startswith(("no session contains", "amplifier: read_file failed"))
    elif line[0] == "test" and done.code == 9:
        assert re.search("^1 (failed|could not run) in ", done.stdout, re.M), (line, done)
    else:
        expected = (0, 78, 6, 2) if line[:2] == ("module", "new") else (0, 78, 6)
        assert done.code in expected, (line, done)
    assert "Traceback" not in done.stderr, (line, done)
    assert "Exception ignored" not in done.stderr, (line, done)
    assert "No usable temporary" not in done.stdout + done.stderr, (line, done)
    if done.code in (6, 78) and line[0] != "doctor":
        assert done.stderr.strip()
    if line[0] in ("run", "continue", "batch") or "replay" in line:
        # What a model says is UTF-8 everywhere.
        return
    # Undecodable bytes have become U+FFFD here.
    (done.stdout + done.stderr).replace("\ufffd", "").encode(environment.encoding, "strict")


@pytest.mark.parametrize("name", USUAL)
def test_commands_work_or_report_why_not(name: str, shared: tuple[Furnished, Path]) -> None:
    environment = ENVIRONMENTS[name]
    begin = SOME[:1] if starts_an_interpreter(environment) else SOME
    assert run_all(environment, *shared, begin) == len(begin)


def test_without_a_folder_for_temporary_files_what_needs_one_reports_it(
    shared: tuple[Furnished, Path],
) -> None:
    place, _ = shared
    test = place.work / "temporary.test.yaml"
    test.write_text("plan: plan.yaml\nprompt: hi\nscript: [done]\n")
    run = ("run", "-f", "plan.yaml", "--check", "true", "hi")
    for line in (("test", str(test)), ("module", "validate", "tool-bash"), run):
        done = run_amplifier(
            *line,
            cwd=place.work,
            env={"TMPDIR": "/nonexistent"},
            conditions=Conditions(limits={"RLIMIT_FSIZE": 0}),
        )
        assert done.code in (6, 78), (line, done)
        if line[0] != "run":
            assert "no folder for temporary files can be written to" in done.stderr
            assert "Set TMPDIR to a folder that can be written to." in done.stderr
    test.unlink()


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(ENVIRONMENTS.keys() - ALL))
def test_read_only_commands_work_or_report_why_not(
    name: str, shared: tuple[Furnished, Path]
) -> None:
    place, folder = shared
    environment = ENVIRONMENTS[name]
    with interpreter_of(environment, place):
        assert run_all(environment, place, folder, MORE) >= len(MORE)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(ALL))
def test_all_commands_work_or_report_why_not(name: str) -> None:
    environment = ENVIRONMENTS[name]
    folder = Path(tempfile.mkdtemp(prefix="amplifier-environments-"))
    try:
        place = prepared(folder)
        with interpreter_of(environment, place):
            assert run_all(environment, place, folder, ("",)) > 60
    finally:
        shutil.rmtree(folder, ignore_errors=True)
