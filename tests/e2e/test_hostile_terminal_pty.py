"""Nothing that a model, a tool, a file name or a module says controls the terminal."""

import os
from pathlib import Path

import pytest

from tests.support.cli import succeed
from tests.support.hostile_terminal import (
    ATTACK,
    ATTACKS,
    attacks_in,
    write_project,
)
from tests.support.terminal import CTRL_D, ENTER, Terminal
from tests.support.thorough import Scale

NAME = "\x1b[38;5;201m\u202elive\x9b7m"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path)
    return tmp_path


def run_once(project: Path) -> str:
    """Run the plan and save a session; its id."""
    done = succeed(
        *("run", "-f", "plan.yaml", "--approve", "allow", "--session", "s1", ATTACK), cwd=project
    )
    for text in (done.stdout, done.stderr):
        assert "\x1b" not in text
        assert not any("\x80" <= one <= "\x9f" for one in text)
        assert "The end." in text or "evil" in text
    return "s1"


def test_every_attack_is_found_where_nothing_removes_it() -> None:
    assert set(ATTACKS) <= set(attacks_in(ATTACK))
    assert attacks_in(f"{NAME} ")


def test_a_run_shows_texts_without_their_effects(project: Path) -> None:
    arguments = ("run", "-f", "plan.yaml", "--approve", "allow", "--verbose", ATTACK)
    with Terminal(*arguments, cwd=project) as terminal:
        assert terminal.finish() == 0
    assert "The end." in terminal.shown
    assert "[bold]markup[/bold]" in terminal.shown
    assert attacks_in(terminal.raw) == []


def test_a_chat_and_its_commands_show_texts_without_their_effects(project: Path) -> None:
    commands = (
        *("/show 1", "/show 2", "/show 3", "/show 4", "/show 8", "/history", "/context", "/plan"),
        *("/modules", "/agents", "/tools", "/sessions", "/why 1", "/status", "/cost", "/help"),
        *(f"/{NAME}", f"/show {NAME}", f"/rename {NAME}", f"@{NAME}", "/save", "/verbose"),
    )
    with Terminal("-f", "plan.yaml", "--approve", "allow", "--plain", cwd=project) as terminal:
        terminal.prompt()
        # Typed as text: keys that mean something to the line editor are left out.
        terminal.enter("hello", "The end.")
        for command in commands:
            terminal.prompt()
            terminal.type(command.replace("\x1b", "").replace("\x9b", "") + ENTER)
        terminal.prompt()
        terminal.type(CTRL_D)
        terminal.finish()
    echoed = {"U+202E"}
    assert set(attacks_in(terminal.raw)) <= echoed


def test_commands_show_texts_without_their_effects(project: Path, scale: Scale) -> None:
    session = run_once(project)
    profiles = Path(os.environ["AMPLIFIER_HOME"]) / "profiles"
    profiles.mkdir(parents=True)
    (profiles / f"{NAME}.yaml").write_text("extends: mock\n")
    (profiles / "hostile.yaml").write_text((project / "plan.yaml").read_text())
    plan = ("-f", "plan.yaml")
    commands: list[tuple[str, ...]] = [
        *(("session", name) for name in ("list", "verify")),
        *(("session", name, session) for name in ("show", "cost", "export", "verify")),
        *(
            ("session", "show", session, "--call", str(number))
            for number in scale((1, 4, 8), range(1, 10))
        ),
        ("session", "export", session, "--html"),
        ("session", "search", "markup"),
        *(
            (*command, "--output", "json")
            for command in (("session", "list"), ("plan", "show", *plan))
        ),
        ("session", "show", session, "--output", "json"),
        ("tool", "info", "evil", *plan, "--output", "json"),
        ("session", "replay", session, "--speed", "1000"),
        ("session", "rename", session, ATTACK),
        *((name, "list", *plan) for name in ("module", "tool")),
        ("module", "show", "evil", *plan),
        ("module", "validate", "./evil.py"),
        ("tool", "info", "evil", *plan),
        ("tool", "invoke", "evil", *plan, "--approve", "allow"),
        *(("plan", name, *plan) for name in ("show", "check", "explain")),
        ("profile", "list"),
        ("profile", "show", "hostile"),
        ("trust", "--show"),
        ("doctor",),
        # Names that are unknown, in every place for a name.
        ("run", "--profile", ATTACK, "x"),
        ("run", "-f", ATTACK, "x"),
        ("run", *plan, "--set", ATTACK, "x"),
        ("run", f"--{NAME}", "x"),
        ("session", "show", NAME),
        ("module", "show", NAME),
        ("tool", "info", NAME, *plan),
        ("docs", NAME),
        ("docs", "--search", NAME),
        ("policy", "test", "bash", f"command={ATTACK}"),
    ]
    reached: dict[tuple[str, ...], list[str]] = {}
    for command in commands:
        with Terminal(*command, cwd=project, env={"PAGER": "cat"}) as terminal:
            terminal.finish()
        assert terminal.raw.strip() or command[:2] == ("docs", "--search"), command
        if found := attacks_in(terminal.raw):
            reached[command] = found
    assert reached == {}
