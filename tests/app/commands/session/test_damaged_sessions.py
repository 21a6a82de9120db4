"""One damaged session never hides the others, and no command fails for it without saying why."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Finished, run_amplifier
from tests.support.plans import mock_plan
from tests.support.thorough import Scale

Damage = Callable[[Path, dict[str, Any]], object]


def text(content: str | bytes) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda file, good: file.write_bytes(data)


def values(**changed: Any) -> Damage:
    return lambda file, good: file.write_text(json.dumps({**good, **changed}))


def everything(value: Any) -> Damage:
    return lambda file, good: file.write_text(json.dumps(dict.fromkeys(good, value)))


def instead(make: Callable[[Path], object]) -> Damage:
    return lambda file, good: (file.unlink(), make(file))


DAMAGES: dict[str, Damage] = {
    "empty": text(""),
    "binary": text(bytes(range(256)) * 10),
    "a-list": text("[1]"),
    "deep": text('{"a":' * 5000 + "1" + "}" * 5000),
    "less-deep": values(x=[[[0]]], more=json.loads("[" * 400 + "]" * 400)),
    "too-large": text('{"a":"' + "x" * 16_000_000 + '"}'),
    "many-digits": text('{"prompts":' + "9" * 5000 + "}"),
    "not-numbers": values(prompts=float("nan"), usage={"input_tokens": float("inf")}),
    "usage-of-texts": values(usage={"input_tokens": "many"}),
    "newer": values(schema_version=99),
    "odd-version": values(schema_version="\x1b[2Jtwo"),
    "texts": everything("\ud800"),
    "numbers": everything(-1),
    "flags": everything(True),
    "lists": everything([[]]),
    "mappings": everything({"a": {"b": []}, "folder": 1, "sources": [3]}),
    "nothing": everything(None),
    "missing": instead(lambda file: None),
    "a-folder": instead(lambda file: (file.mkdir(), (file / "x").touch())),
    "a-link": instead(lambda file: file.symlink_to("/etc/hostname")),
    "a-circle": instead(lambda file: file.symlink_to(file.name)),
    "a-pipe": instead(os.mkfifo),
}
OF_ONE: list[tuple[str, ...]] = [
    ("session", "show", "ID"),
    ("session", "show", "ID", "--output", "json"),
    ("run", "-f", "PLAN", "--resume", "ID", "go"),
    ("run", "--resume", "ID", "go"),
    ("run", "-f", "PLAN", "--continue", "go"),
    ("session", "export", "ID"),
    ("session", "export", "ID", "--json"),
    ("session", "export", "ID", "--html"),
    ("session", "export", "ID", "--atif"),
    ("session", "export", "ID", "--bundle", "--to", "OUT"),
    ("session", "replay", "ID"),
    ("session", "cost", "ID"),
    ("session", "fork", "ID"),
    ("run", "-f", "PLAN", "--fork", "ID", "go"),
    ("session", "diff", "good", "ID"),
    ("session", "rename", "ID", "new"),
    ("policy", "suggest", "ID"),
    ("policy", "replay", "ID", "-f", "PLAN"),
    ("report", "--session", "ID", "--to", "OUT", "--yes"),
    ("session", "delete", "ID", "--yes"),
]
OF_ALL: list[tuple[str, ...]] = [
    ("session", "list"),
    ("session", "list", "--all", "--output", "json"),
    ("session", "search", "hello", "-n", "0"),
    ("session", "prune", "--older", "1d", "--dry-run"),
    ("policy", "replay", "-f", "PLAN"),
]


class Machine:
    """A home with a whole session called `good` and, for each damage, one that is damaged."""

    def __init__(self, folder: Path) -> None:
        self.home, self.cwd = folder / "home", folder / "work"
        self.cwd.mkdir()
        hooks = [{"module": "hooks-logging"}, {"module": "hooks-approval"}]
        self.plan = mock_plan(self.cwd, ["hello"], hooks=hooks)
        done = self("run", "-f", "PLAN", "hi", "--session", "good")
        assert done.code == 0, done.stderr
        self.good = self.home / "sessions" / "good"
        for name in DAMAGES:
            self.damage(name)

    def damage(self, name: str) -> Path:
        session = self.good.with_name(name)
        shutil.rmtree(session, ignore_errors=True)
        shutil.copytree(self.good, session)
        good = json.loads((session / "metadata.json").read_text())
        DAMAGES[name](session / "metadata.json", good)
        return session

    def __call__(self, *command: str, session: str = "") -> Finished:
        """Run a command; whatever it finds, it ends with a sentence and one of its own codes."""
        output = self.cwd / "output"
        output.unlink(missing_ok=True)
        words = {"ID": session, "PLAN": str(self.plan), "OUT": str(output)}
        arguments = [words.get(word, word) for word in command]
        done = run_amplifier(*arguments, home=self.home, cwd=self.cwd)
        assert done.code in (0, 6, 78), (command, session, done)
        assert done.code == 0 or done.stderr or "json" in command, (command, session)
        assert "Traceback" not in done.stderr
        assert "\x1b" not in done.stdout + done.stderr, (command, session)
        return done


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def check_that_damaged_metadata_is_explained_and_rebuilt(machine: Machine) -> None:
    listed = json.loads(machine("session", "verify", "--output", "json").stdout)
    problems = {one["id"]: one["problems"] for one in listed if one["problems"]}
    assert problems.keys() == DAMAGES.keys() - {"less-deep"}
    repaired = machine("session", "verify", "--repair")
    assert repaired.code == 6
    assert "newer: error: unsupported schema version 99" in repaired.stdout
    left = json.loads(machine("session", "verify", "--output", "json").stdout)
    assert {one["id"] for one in left if one["problems"]} == {"newer"}
    for name in DAMAGES.keys() - {"newer", "less-deep"}:
        session = machine.good.with_name(name)
        found = json.loads((session / "metadata.json").read_text())
        title = "\ud800" if name == "texts" else "hi"
        assert (found["id"], found["title"], found["prompts"]) == (name, title, 1), name
        assert name == "missing" or os.path.lexists(session / "metadata.json.damaged")
    numbers = json.loads((machine.good.with_name("not-numbers") / "metadata.json").read_text())
    assert numbers["model"] == "mock-model", "a valid value is kept"


def test_damaged_sessions_are_listed_explained_and_rebuilt_next_to_the_others(
    machine: Machine,
) -> None:
    for command in OF_ALL:
        done = machine(*command)
        assert done.code == 0, done.stderr
        assert command[1] not in ("list", "search") or "good" in done.stdout
    listed = json.loads(machine("session", "list", "--all", "--output", "json").stdout)
    faults = {one["id"]: one["fault"] for one in listed}
    assert faults.pop("good") is None
    assert {name for name, fault in faults.items() if fault} == DAMAGES.keys() - {"less-deep"}
    assert machine("report", "--session", "texts", "--to", "OUT", "--yes").code == 0
    check_that_damaged_metadata_is_explained_and_rebuilt(machine)


def test_every_command_copes_with_a_damaged_session(machine: Machine, scale: Scale) -> None:
    """Each command meets one of the damages by default, and a third of them in a thorough run."""
    names = list(DAMAGES)
    for number, command in enumerate(OF_ONE):
        for step in range(scale(1, len(names) // 3)):
            name = names[(number + 3 * step) % len(names)]
            machine.damage(name)
            machine(*command, session=name)


def test_messages_that_the_context_refuses_are_an_error_of_the_session(machine: Machine) -> None:
    transcript = machine.good / "transcript.jsonl"
    good = transcript.read_bytes()
    for role in (b"", b'"role": ["user"], ', b'"role": {"a": 1}, '):
        bad = good + b'{%s"content": "x"}\n' % role
        transcript.write_bytes(bad)
        for command in ("--resume", "--fork") if not role else ("--resume",):
            done = machine("run", "-f", "PLAN", command, "good", "go")
            assert done.code == 6
            assert "the context cannot take over the messages of session" in done.stderr
        assert transcript.read_bytes() == bad
    assert machine("session", "fork", "good", "--at", "1").code == 0
