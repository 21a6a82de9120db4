"""What the documents of a project take in from elsewhere is covered by trust as they are."""

from pathlib import Path

import pytest

from amplifier_app.sources.loading import load
from amplifier_app.trust import examine
from amplifier_app.trust.review import selection
from tests.support.module_repositories import write_files

FILES = {
    ".amplifier/settings.yaml": "agents: [../team/*.md]\ninstruction: '@../docs/rules.md'\n",
    ".amplifier/profiles/dev.md": (
        "---\nprofile: {name: dev, extends: default}\n"
        "tools: [{module: tool-x, source: ../../tools/x}]\n---\nHi\n@../../docs/more.md\n"
    ),
    ".amplifier/agents/own.md": "---\ndescription: d\n---\n@../../docs/own.md\n",
    "docs/rules.md": "Rules\n@nested.txt\n",
    "docs/nested.txt": "nested",
    "docs/more.md": "more",
    "docs/own.md": "own",
    "docs/unused.md": "unused",
    "team/one.md": "---\ntools: [{module: tool-y, source: ./y}]\n---\nUse ${X}.\n@two.txt\n",
    "team/two.txt": "two",
    "team/y/tool_y.py": "",
    "tools/x/tool_x.py": "",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "home"))
    return write_files(tmp_path / "project", FILES)


def test_everything_included_is_covered(project: Path) -> None:
    content = examine(project / ".amplifier")
    assert sorted(content.entries) == sorted(FILES.keys() - {"docs/unused.md"})
    plan = load(profile="dev", project=project / ".amplifier", environ={})
    own = [path for path in plan.files if path.is_relative_to(project)]
    assert len(own) == 7
    assert all(content.covers(path) for path in own)


@pytest.mark.parametrize("name", sorted(FILES.keys() - {"docs/unused.md"}))
def test_changing_any_included_file_is_a_change(name: str, project: Path) -> None:
    before = examine(project / ".amplifier").hash
    with (project / name).open("a") as file:
        file.write(" ")
    assert examine(project / ".amplifier").hash != before


def test_a_new_file_that_matches_a_pattern_is_a_change(project: Path) -> None:
    before = examine(project / ".amplifier").hash
    (project / "team" / "three.md").write_text("---\n---\nNew.\n")
    assert examine(project / ".amplifier").hash != before


def test_what_agents_and_markdown_select_is_shown(project: Path) -> None:
    shown = selection(examine(project / ".amplifier"))
    assert ".amplifier/profiles/dev.md:3: source ../../tools/x" in shown
    assert "team/one.md:2: module tool-y" in shown
    assert "team/one.md:2: source ./y" in shown
    assert not any("variable" in line for line in shown)


def test_the_users_agents_are_not_part_of_the_project(project: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "home", {"agents/mine.md": "---\n---\nMine.\n"})
    (project / ".amplifier/settings.yaml").write_text("agents: [mine]\n")
    content = examine(project / ".amplifier")
    assert not any("mine.md" in name for name in content.entries)


def test_patterns_match_in_one_folder_only(project: Path) -> None:
    (project / ".amplifier/settings.yaml").write_text("agents: [/**/*.md, ../*/*.md]\n")
    assert "team/one.md" not in examine(project / ".amplifier").entries


def test_a_collection_that_a_profile_extends_is_covered(project: Path) -> None:
    write_files(project, {"team/base.md": "---\nextends: default\n---\n@team:two.txt\n"})
    profile = project / ".amplifier/profiles/dev.md"
    profile.write_text("---\nextends: team:base.md\n---\n")
    content = examine(project / ".amplifier")
    plan = load(profile="dev", project=project / ".amplifier", environ={})
    assert project / "team/base.md" in plan.files
    assert all(content.covers(path) for path in plan.files if path.is_relative_to(project))
