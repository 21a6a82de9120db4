"""`amplifier update`, run by an interpreter in an environment that looks as each installer leaves it."""

import shlex
from pathlib import Path

import pexpect
import pytest

from tests.support.installations import Environment
from tests.support.module_repositories import git

URL = "https://example.com/amplifier"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone that is one commit behind the repository it came from."""
    origin, clone = tmp_path / "origin", tmp_path / "my clone"
    origin.mkdir()
    git(origin, "init", "-q")
    git(origin, "commit", "-q", "--allow-empty", "-m", "First")
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    git(origin, "commit", "-q", "--allow-empty", "-m", "Second")
    return clone


@pytest.mark.parametrize(
    ("installer", "source", "words"),
    [
        ("pip", None, "{python} -m pip install --upgrade amplifier"),
        ("uv", None, "uv pip install --python {python} --upgrade amplifier"),
        (
            "pip",
            {"url": URL, "vcs_info": {"vcs": "git", "commit_id": "0" * 40}},
            "{python} -m pip install --upgrade 'amplifier @ git+https://example.com/amplifier'",
        ),
        (
            "pip",
            {"url": URL, "vcs_info": {"vcs": "git", "requested_revision": "v2"}},
            "{python} -m pip install --upgrade 'amplifier @ git+https://example.com/amplifier@v2'",
        ),
        (
            "pip",
            {"url": "file:///opt/a%20b", "dir_info": {"editable": True}},
            "{python} -m pip install --upgrade -e '/opt/a b'",
        ),
    ],
)
def test_a_script_gets_the_command_for_how_it_was_installed(
    tmp_path: Path, installer: str, source: object, words: str
) -> None:
    environment = Environment(tmp_path, installer=installer, source=source)
    finished = environment.update()
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == words.format(python=environment.python) + "\n"
    assert environment.called() == []


@pytest.mark.parametrize(
    ("mark", "update"),
    [
        ("uv-receipt.toml", "uv tool upgrade --reinstall-package amplifier amplifier"),
        ("pipx_metadata.json", "pipx upgrade amplifier"),
    ],
)
def test_a_clone_is_pulled_before_it_is_installed_again(
    tmp_path: Path, clone: Path, mark: str, update: str
) -> None:
    environment = Environment(tmp_path, source={"url": clone.as_uri(), "dir_info": {}})
    (environment.prefix / mark).touch()
    (tmp_path / "pyproject.toml").touch()
    finished = environment.update("--yes")
    assert finished.returncode == 0, finished.stderr
    pull = f"git -C {shlex.quote(str(clone))} pull --ff-only"
    assert finished.stdout.startswith(f"{pull} && {update}\n")
    assert git(clone, "log", "--format=%s") == "Second\nFirst"
    assert environment.called() == [f"{update} no key"]


def test_nothing_is_installed_when_the_clone_cannot_be_pulled(tmp_path: Path, clone: Path) -> None:
    environment = Environment(tmp_path, source={"url": clone.as_uri(), "dir_info": {}})
    (environment.prefix / "uv-receipt.toml").touch()
    git(clone, "commit", "-q", "--allow-empty", "-m", "Mine")
    finished = environment.update("--yes")
    assert finished.returncode == 78
    assert "pull --ff-only failed with exit code" in finished.stderr
    assert environment.called() == []


def test_the_exit_code_is_that_of_the_installer(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    (environment.prefix / "uv-receipt.toml").touch()
    assert environment.update("--yes", CODE="5").returncode == 5
    assert environment.called() == ["uv tool upgrade amplifier no key"]


def test_an_installer_that_is_gone_is_named(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    (environment.prefix / "pipx_metadata.json").touch()
    (environment.bin / "pipx").unlink()
    finished = environment.update("--yes", PATH=str(environment.bin))
    assert finished.returncode == 78
    assert "pipx was not found" in finished.stderr


def test_a_file_has_no_newer_one(tmp_path: Path) -> None:
    finished = Environment(tmp_path, source={"url": f"{URL}.whl", "archive_info": {}}).update()
    assert (finished.returncode, finished.stdout) == (78, "")
    assert f"it was installed from a file: {URL}.whl" in finished.stderr


def test_it_never_runs_in_the_environment_of_a_project(tmp_path: Path) -> None:
    environment = Environment(tmp_path, installer="uv")
    (tmp_path / "pyproject.toml").touch()
    finished = environment.update("--yes")
    assert finished.returncode == 0
    assert f"not run: the environment belongs to {tmp_path}" in finished.stderr
    assert environment.called() == []


@pytest.mark.parametrize(("answer", "calls"), [("y", 1), ("", 0)])
def test_a_terminal_is_asked(tmp_path: Path, answer: str, calls: int) -> None:
    environment = Environment(tmp_path)
    (environment.prefix / "uv-receipt.toml").touch()
    words = ["-m", "amplifier_app.cli", "update"]
    process = pexpect.spawn(str(environment.python), words, env=environment.variables, timeout=30)
    process.expect_exact("Run it? [y/N]")
    process.sendline(answer)
    process.expect(pexpect.EOF)
    process.close()
    assert process.exitstatus == 0
    assert len(environment.called()) == calls
