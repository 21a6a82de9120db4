"""Settings that cannot be understood stop every command, and nothing is written over them."""

from pathlib import Path

import pytest

from tests.support.cli import run_amplifier
from tests.support.module_repositories import write_files

BROKEN = {
    "no YAML": ("# mine\nprofile: mock\ntools: ]\n", 3),
    "twice": ("# mine\nprofile: mock\nprofile: default\n", 3),
    "unknown key": ("# mine\nprofil: mock\n", 2),
    "wrong type": ("# mine\n\ntools: 1\n", 3),
    "not text": ("# mine\n\xff\n", 2),
}
FILES = {
    "user": "home/settings.yaml",
    "project": "project/.amplifier/settings.yaml",
    "local": "project/.amplifier/settings.local.yaml",
}
RUN = ("run", "--trust", "hi")
CHANGES = [
    ("profile", "use", "minimal"),
    ("module", "override", "tool-bash", "tool-filesystem"),
    ("module", "add", "tool-todo"),
]
CASES = [
    *((kind, "user", RUN) for kind in BROKEN if kind != "no YAML"),
    *(("no YAML", scope, command) for scope in FILES for command in (RUN, *CHANGES)),
]


@pytest.mark.parametrize(("kind", "scope", "command"), CASES)
def test_invalid_settings_are_an_error_and_are_not_changed(
    tmp_path: Path, kind: str, scope: str, command: tuple[str, ...]
) -> None:
    text, line = BROKEN[kind]
    write_files(tmp_path, {"home/x": "", "project/.amplifier/settings.yaml": "profile: mock\n"})
    file = tmp_path / FILES[scope]
    file.write_bytes(text.encode("latin-1"))
    before = set(file.parent.iterdir())
    chosen = ("--scope", scope) if command != RUN else ()
    done = run_amplifier(*command, *chosen, home=tmp_path / "home", cwd=tmp_path / "project")
    assert (done.code, done.stdout) == (78, ""), done.stderr
    assert f"{file}:{line}" in done.stderr
    assert "Traceback" not in done.stderr
    assert file.read_bytes() == text.encode("latin-1")
    assert set(file.parent.iterdir()) - {tmp_path / "home/.settings.lock"} == before
