"""Every command that a message or a page advises to run exists."""

import re
from pathlib import Path

import pytest

from amplifier_app.chat.slash.registry import all_commands
from amplifier_app.commands.group import COMMANDS, amplifier_command

ROOT = Path(__file__).parents[2]
TEXTS = [
    *(ROOT / "src").rglob("*.py"),
    *(ROOT / "src").rglob("*.md"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
]
GROUPS = ("session", "plan", "module", "profile", "provider", "settings")


def mentioned(pattern: str) -> dict[str, str]:
    """Each word a text has in the place of the group, and a file that has it."""
    found: dict[str, str] = {}
    for file in TEXTS:
        for word in re.findall(pattern, file.read_text(encoding="utf-8")):
            found.setdefault(word, str(file.relative_to(ROOT)))
    return found


def walk_commands(group: str) -> set[str]:
    return set(amplifier_command().get_command(None, group).list_commands(None))


@pytest.mark.parametrize("group", [name for name in GROUPS if name in COMMANDS])
def test_commands_of_groups_exist(group: str) -> None:
    words = mentioned(rf"amplifier {group} ([a-z]+(?:-[a-z]+)*)\b(?![.:,;)`'\"]*\w*/)")
    unknown = {word: file for word, file in words.items() if word not in walk_commands(group)}
    assert not unknown
    assert words


def test_session_commands_are_mentioned() -> None:
    words = mentioned(r"amplifier session ([a-z]+)")
    assert {"list", "show", "delete", "verify", "export"} <= set(words)


def test_slash_commands_in_hints_exist() -> None:
    words = mentioned(r"hint=f?\"[^\"]*?(/[a-z]+)\b(?!/)")
    known = set(all_commands())
    assert not {word: file for word, file in words.items() if word not in known}
