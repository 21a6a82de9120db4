"""`amplifier profile list|show|use` as real processes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.module_repositories import write_files

MOCK = "extends: mock\ndescription: {}\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / "profiles").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def repo(tmp_path: Path, home: Path) -> Path:
    """A project with a profile of its own, trusted."""
    folder = tmp_path / "repo"
    (folder / ".amplifier" / "profiles").mkdir(parents=True)
    (folder / ".amplifier" / "profiles" / "team.yaml").write_text(MOCK.format("the team's"))
    succeed("trust", "--yes", home=home, cwd=folder)
    return folder


def listed(home: Path, cwd: Path) -> dict[str, dict[str, Any]]:
    done = succeed("profile", "list", "--output", "json", home=home, cwd=cwd)
    return {row["name"]: row for row in json.loads(done.stdout)}


def chosen(home: Path, cwd: Path) -> list[str]:
    return [name for name, row in listed(home, cwd).items() if row["chosen"]]


def use(name: str, *scope: str, home: Path, cwd: Path) -> Finished:
    return run_amplifier("profile", "use", name, *scope, home=home, cwd=cwd)


def test_profiles_of_a_trusted_project_are_listed(home: Path, repo: Path, tmp_path: Path) -> None:
    rows = listed(home, repo)
    assert rows["team"] == {
        "name": "team",
        "scope": "project",
        "path": str(repo / ".amplifier" / "profiles" / "team.yaml"),
        "chosen": False,
        "description": "the team's",
        "problem": "",
    }
    assert rows["default"]["chosen"]
    assert "team" not in listed(home, tmp_path)


def test_profiles_are_listed_the_users_own_in_front_of_the_bundled(home: Path) -> None:
    write_files(
        home,
        {
            "profiles/default.yaml": 'extends: default\ndescription: "my [own] \\a one"\n',
            "profiles/broken.yaml": "tolls: []\n",
        },
    )
    done = succeed("profile", "list", "--output", "json", home=home)
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["default"]["scope"] == "user"
    assert rows["minimal"]["scope"] == "bundled"
    assert "unknown key 'tolls'" in rows["broken"]["problem"]
    text = run_amplifier("profile", "list", home=home).stdout
    assert "invalid: " in text
    assert "my [own] one" in text
    assert list(rows) == sorted(rows)


def test_profiles_of_an_untrusted_project_are_left_out_and_that_is_said(
    home: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "repo" / ".amplifier" / "profiles"
    folder.mkdir(parents=True)
    (folder / "team.yaml").write_text(MOCK.format("x"))
    done = succeed("profile", "list", home=home, cwd=tmp_path / "repo")
    assert "team" not in done.stdout
    assert "amplifier trust" in done.stderr


def test_a_profile_is_used_from_then_on(home: Path, tmp_path: Path) -> None:
    done = use("mock", home=home, cwd=tmp_path)
    assert (done.code, done.stdout) == (0, "")
    assert "mock is now the default profile" in done.stderr
    assert (home / "settings.yaml").read_text() == "profile: mock\n"
    assert (home / "settings.yaml").stat().st_mode & 0o777 == 0o600
    assert chosen(home, tmp_path) == ["mock"]
    succeed("run", "hi", home=home, cwd=tmp_path)


def test_what_else_is_in_the_settings_stays(home: Path, tmp_path: Path) -> None:
    before = "# mine\ntools: [tool-bash]   # the shell\nprofile: default # for now\n"
    (home / "settings.yaml").write_text(before)
    assert use("local", home=home, cwd=tmp_path).code == 0
    after = (home / "settings.yaml").read_text()
    assert after == before.replace("profile: default", "profile: local")


def test_scopes_and_who_wins(home: Path, repo: Path) -> None:
    assert use("minimal", "--scope", "user", home=home, cwd=repo).code == 0
    assert chosen(home, repo) == ["minimal"]
    assert use("team", "--scope", "project", home=home, cwd=repo).code == 0
    assert chosen(home, repo) == ["team"]
    done = use("mock", home=home, cwd=repo)
    assert "settings.local.yaml" in done.stderr
    assert chosen(home, repo) == ["mock"]
    local = repo / ".amplifier" / "settings.local.yaml"
    done = use("team", "--scope", "project", home=home, cwd=repo)
    assert f"mock is still the default here, set in {local}:1:10" in done.stderr


def test_the_users_settings_cannot_name_a_profile_of_one_project(home: Path, repo: Path) -> None:
    done = use("team", "--scope", "user", home=home, cwd=repo)
    assert done.code == 2
    assert "unknown profile 'team'" in done.stderr
    assert not (home / "settings.yaml").exists()


@pytest.mark.parametrize(
    ("name", "said"), [("moc", "did you mean 'mock'?"), ("broken", "unknown key 'tolls'")]
)
def test_a_profile_that_cannot_run_is_not_chosen(
    name: str, said: str, home: Path, tmp_path: Path
) -> None:
    (home / "profiles" / "broken.yaml").write_text("tolls: []\n")
    done = use(name, home=home, cwd=tmp_path)
    assert done.code == (78 if name == "broken" else 2)
    assert said in done.stderr
    assert not (home / "settings.yaml").exists()
    shown = run_amplifier("profile", "show", name, home=home, cwd=tmp_path)
    assert (shown.code, shown.stdout) == (done.code, "")
    assert said in shown.stderr


def test_there_is_no_project_scope_without_a_project(home: Path, tmp_path: Path) -> None:
    done = use("mock", "--scope", "local", home=home, cwd=tmp_path)
    assert done.code == 78
    assert "no project here" in done.stderr


def test_show_is_the_plan_with_settings_on_top(home: Path, tmp_path: Path) -> None:
    (home / "settings.yaml").write_text("exclude: [tool-bash]\n")
    done = succeed("profile", "show", "mock", home=home, cwd=tmp_path)
    assert "tool-filesystem" in done.stdout
    assert "tool-bash" not in done.stdout
    arguments = ("profile", "show", "mock", "--output", "json")
    shown = json.loads(run_amplifier(*arguments, home=home, cwd=tmp_path).stdout)
    assert shown["settings"] == [str(home / "settings.yaml")]


def test_a_run_says_what_could_be_misspelt_in_settings(home: Path, tmp_path: Path) -> None:
    (home / "settings.yaml").write_text("profile: mock\nexclude: [tool-bahs]\n")
    done = succeed("run", "hi", home=home, cwd=tmp_path)
    assert "settings.yaml:2:11 excludes 'tool-bahs', which the plan does not have" in done.stderr
    assert "did you mean 'tool-bash'?" in done.stderr
    assert "excludes" not in run_amplifier("run", "-q", "hi", home=home, cwd=tmp_path).stderr
