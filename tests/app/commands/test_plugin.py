"""`amplifier plugin`, with real folders and real git repositories."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.llm_server import ScriptedLLM
from tests.support.module_repositories import Repository, git, write_files
from tests.support.plugins import SKILL, write_plugin


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def plugin(home: Path, *words: str, **more: Any) -> Finished:
    return run_amplifier("plugin", *words, home=home, cwd=home.parent, **more)


def skills(home: Path) -> list[str]:
    """The folders of skills that plugins add to the mock profile."""
    shown = succeed("plan", "show", "-P", "mock", "--output", "json", home=home, cwd=home.parent)
    tools = json.loads(shown.stdout)["plan"]["tools"]
    [config] = [tool.get("config", {}) for tool in tools if tool["module"] == "tool-skills"]
    return [folder for folders in config.get("plugins", {}).values() for folder in folders]


def test_what_it_may_do_is_shown_before_it_is_added(home: Path) -> None:
    write_plugin(home.parent / "review")
    refused = plugin(home, "add", "./review")
    assert refused.code == 2
    for text in (
        "review 1.2.0: Reviews code.",
        "skills     triage",
        "commands   /review-file",
        "agents     review:reviewer",
        "review-echo runs ",
        "variables  REVIEW_CALLS",
        "not used   the models of its agents",
    ):
        assert text in refused.stderr
    assert not (home / "settings.yaml").exists()
    assert not (home.parent / "review/__pycache__").exists()


def test_a_folder_is_added_shown_updated_and_removed(home: Path) -> None:
    folder = write_plugin(home.parent / "review")
    added = plugin(home, "add", "review", "--yes")
    assert added.code == 0, added.stderr
    [listed] = json.loads(plugin(home, "list", "--output", "json").stdout)
    assert (listed["name"], listed["skills"]) == ("review", ["triage"])
    assert skills(home) == [str(folder / "skills")]
    assert "/review-file" in plugin(home, "show", "review").stdout
    again = plugin(home, "add", "review", "--yes")
    assert again.code == 78
    assert "already have a plugin 'review'" in again.stderr

    write_files(folder, {"skills/second/SKILL.md": SKILL.format(name="second")})
    changed = run_amplifier("run", "-P", "mock", "hi", home=home, cwd=home.parent)
    assert changed.code == 78
    assert "has changed since it was added" in changed.stderr
    assert "amplifier plugin update" in changed.stderr
    updated = plugin(home, "update", "--yes")
    assert updated.code == 0, updated.stderr
    assert "skills     second, triage" in updated.stderr
    assert skills(home) == [str(folder / "skills")]
    assert "is up to date" in plugin(home, "update", "review").stderr

    removed = plugin(home, "remove", "review", "--yes")
    assert removed.code == 0, removed.stderr
    assert skills(home) == []
    assert plugin(home, "remove", "review").code == 2


def test_a_repository_is_used_at_the_version_that_was_shown(home: Path, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    write_plugin(repository.folder / "plugins/review")
    first = repository.commit({}, tag="v1")
    source = f"{repository.url}@main#subdirectory=plugins/review"
    added = plugin(home, "add", source, "--yes")
    assert added.code == 0, added.stderr
    assert f"@{first}#subdirectory=plugins/review" in (home / "settings.yaml").read_text()

    git(repository.folder, "rm", "-rq", "plugins/review/skills")
    second = repository.commit({"plugins/review/skills/b/SKILL.md": SKILL.format(name="b")})
    [folder] = skills(home)
    assert first in folder
    assert [path.name for path in Path(folder).iterdir()] == ["triage"]

    declined = plugin(home, "update")
    assert declined.code == 2
    assert "-   skills     triage" in declined.stderr
    assert "+   skills     b" in declined.stderr
    assert "agents" not in declined.stderr
    assert plugin(home, "update", "review", "--yes").code == 0
    [folder] = skills(home)
    assert second in folder
    assert [path.name for path in Path(folder).iterdir()] == ["b"]
    # What is in use needs no network.
    git(repository.folder, "branch", "-m", "gone")
    assert skills(home) == [folder]


def write_marketplace(folder: Path, **sources: Any) -> Path:
    """Write a marketplace that lists a plugin for each source."""
    listed = [
        {"name": name, "description": f"Has {name}.", "source": source}
        for name, source in sources.items()
    ]
    return write_files(folder, {".claude-plugin/marketplace.json": json.dumps({"plugins": listed})})


@pytest.mark.parametrize("kind", ["inside", "elsewhere"])
def test_a_plugin_of_a_marketplace_is_pinned_and_updated(home: Path, kind: str) -> None:
    market = Repository(home.parent / "market")
    other = Repository(home.parent / "other") if kind == "elsewhere" else market
    write_plugin(other.folder / "plugins/review")
    other.commit({})
    source: Any = "./plugins/review"
    if kind == "elsewhere":
        url = other.url.removeprefix("git+")
        source = {"source": "git-subdir", "url": url, "path": "plugins/review", "ref": "main"}
    write_marketplace(market.folder, review=source)
    market.commit({})
    name = f"review@{market.url}@main"
    shown = plugin(home, "show", name)
    assert "review-echo runs" in shown.stdout, shown.stderr
    added = plugin(home, "add", name, "--yes")
    assert added.code == 0, added.stderr
    [folder] = skills(home)
    assert [path.name for path in Path(folder).iterdir()] == ["triage"]
    assert "is up to date" in plugin(home, "update", "review").stderr

    git(other.folder, "rm", "-rq", "plugins/review/skills")
    second = other.commit({"plugins/review/skills/b/SKILL.md": SKILL.format(name="b")})
    assert skills(home) == [folder]
    updated = plugin(home, "update", "review", "--yes")
    assert "+   skills     b" in updated.stderr
    [folder] = skills(home)
    assert second in folder
    assert [path.name for path in Path(folder).iterdir()] == ["b"]


def test_plugins_of_one_folder_have_the_parts_that_the_marketplace_lists(home: Path) -> None:
    folder = write_files(
        home.parent / "market",
        {f"skills/{name}/SKILL.md": SKILL.format(name=name) for name in ("one", "two", "three")},
    )
    parts = {"documents": ["./skills/one", "./skills/two"], "examples": ["./skills/three"]}
    listed = [
        {"name": name, "source": "./", "strict": False, "skills": paths}
        for name, paths in parts.items()
    ]
    text = json.dumps({"name": "market", "plugins": listed})
    write_files(folder, {".claude-plugin/marketplace.json": text})
    for name in parts:
        added = plugin(home, "add", f"{name}@market", "--yes")
        assert added.code == 0, added.stderr
    listing = json.loads(plugin(home, "list", "--output", "json").stdout)
    assert {one["name"]: one["skills"] for one in listing} == {
        "documents": ["one", "two"],
        "examples": ["three"],
    }
    tool = run_amplifier("tool", "info", "skill", "-P", "mock", home=home, cwd=home.parent)
    assert all(f"- {name}: " in tool.stdout for name in ("one", "two", "three")), tool.stderr
    write_files(folder, {"skills/one/more.md": "More."})
    changed = run_amplifier("run", "-P", "mock", "hi", home=home, cwd=home.parent)
    assert changed.code == 78
    assert plugin(home, "update", "--yes").code == 0


def test_a_marketplace_is_listed_and_nothing_of_it_runs(home: Path) -> None:
    command = {"source": "command", "command": f"touch {home.parent}/ran"}
    write_marketplace(home.parent / "market", review="./review", odd=command)
    listed = json.loads(plugin(home, "list", "market", "--output", "json").stdout)
    assert [(one["name"], one["description"]) for one in listed] == [
        ("review", "Has review."),
        ("odd", "Has odd."),
    ]
    assert "Has review." in plugin(home, "list", "./market").stdout
    assert "NAME@./market: review, odd" in plugin(home, "add", "market", "--yes").stderr
    assert not (home.parent / "ran").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("../outside", "has no plugin 'review' in its own folder"),
        ("./missing", "./market/missing is not a plugin"),
        ({"source": "npm", "package": "x"}, '"npm"'),
        ({"source": "command", "command": "touch ran"}, "cannot be used"),
        ({"source": "url", "url": "http://example.invalid/x"}, "over 'http' are not allowed"),
        (None, "cannot be used"),
    ],
)
def test_a_source_of_a_marketplace_that_cannot_be_used_is_an_error(
    home: Path, source: Any, message: str
) -> None:
    write_plugin(home.parent / "outside")
    write_marketplace(home.parent / "market", review=source)
    added = plugin(home, "add", "review@market", "--yes")
    assert added.code in (2, 78)
    assert message in added.stderr
    assert "Traceback" not in added.stderr
    assert not (home / "settings.yaml").exists()


def test_only_some_parts_stay_chosen_after_an_update(home: Path) -> None:
    folder = write_plugin(home.parent / "review")
    assert plugin(home, "add", "review", "--yes", "--only", "agents", "--as", "mine").code == 0
    assert skills(home) == []
    write_files(folder, {"commands/more.md": "More."})
    updated = plugin(home, "update", "--yes")
    assert updated.code == 0, updated.stderr
    assert "mine:reviewer" in updated.stderr
    assert "/more" not in updated.stderr
    [listed] = json.loads(plugin(home, "list", "--output", "json").stdout)
    assert (listed["name"], listed["skills"]) == ("mine", [])


def test_removing_deletes_the_data_it_has_kept(home: Path) -> None:
    folder = write_plugin(home.parent / "review")
    server = {"command": "a", "args": ["${CLAUDE_PLUGIN_DATA}/cache"]}
    write_files(folder, {".mcp.json": json.dumps({"mcpServers": {"s": server}})})
    assert plugin(home, "add", "review", "--yes").code == 0
    data = home / "plugins/review"
    # Looking at it creates nothing; a session does.
    assert not data.exists()
    run_amplifier("run", "-P", "mock", "hi", home=home, cwd=home.parent)
    assert data.is_dir(), sorted(home.rglob("*"))
    removed = plugin(home, "remove", "review", "--yes")
    assert f"deleted its data in {data}" in removed.stderr
    assert not data.exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("add", "nothing"), 2, "there is no folder"),
        (("add", "git+file:///nowhere/at/all@v1", "--yes"), 3, "/nowhere/at/all"),
        (("add", "review@review", "--yes"), 78, "marketplace.json"),
        (("show", "revue"), 2, "there is no plugin 'revue', and no folder of that name"),
        (("show", "./revue"), 2, "there is no folder './revue'"),
        (("remove", "revue"), 2, "have no plugin 'revue'"),
        (("update", "revue"), 2, "have no plugin 'revue'"),
        (("add", "review", "--yes", "--only", "skils"), 2, "'skils' is not one of skills"),
    ],
)
def test_what_cannot_be_done_is_an_error_and_changes_nothing(
    home: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    write_plugin(home.parent / "review")
    finished = plugin(home, *words)
    assert (finished.code, finished.stdout) == (code, "")
    assert message in finished.stderr
    assert "Traceback" not in finished.stderr
    assert not (home / "settings.yaml").exists()


def test_a_plugin_of_this_project_only_is_listed_and_shown(home: Path) -> None:
    project = home.parent / "project"
    write_plugin(project / "review")
    (project / ".amplifier").mkdir()
    run_amplifier("trust", "--yes", home=home, cwd=project)
    succeed("plugin", "add", "review", "--yes", home=home, cwd=project)
    assert (project / ".amplifier/settings.local.yaml").exists()
    listed = run_amplifier("plugin", "list", "--output", "json", home=home, cwd=project)
    assert [plugin["name"] for plugin in json.loads(listed.stdout)] == ["review"]
    assert plugin(home, "list").stdout == ""


def test_an_untrusted_project_adds_no_plugin(home: Path) -> None:
    project = home.parent / "project"
    write_plugin(project / "review")
    write_files(project, {".amplifier/settings.yaml": "plugins: [../review]\n"})
    shown = run_amplifier("plugin", "list", home=home, cwd=project)
    assert "No plugins" in shown.stderr
    succeed("trust", "--yes", home=home, cwd=project)
    trusted = run_amplifier(
        "plan", "show", "-P", "mock", "--output", "json", home=home, cwd=project
    )
    assert str(project / "review/skills") in trusted.stdout
    # The plugin is part of what was trusted.
    write_files(project, {"review/skills/new/SKILL.md": SKILL.format(name="new")})
    changed = run_amplifier(
        "plan", "show", "-P", "mock", "--output", "json", home=home, cwd=project
    )
    assert str(project / "review/skills") not in changed.stdout


def test_a_run_leaves_plugins_or_skills_out(home: Path) -> None:
    folder = write_plugin(home.parent / "review")
    assert plugin(home, "add", "review", "--yes").code == 0
    provider = "providers.provider-anthropic.config.base_url"

    def offered(*options: str) -> str:
        with ScriptedLLM.running(["fine"]) as server:
            succeed(
                *(
                    "run",
                    "-p",
                    "anthropic",
                    "--set",
                    f"{provider}={server.base_url}",
                    *options,
                    "hi",
                ),
                home=home,
                cwd=home.parent,
                env={"ANTHROPIC_API_KEY": "sk-test"},
            )
            return json.dumps(server.completions[0].body["tools"])

    assert "triage" in offered()
    without_skills = offered("--no-skills")
    assert "triage" not in without_skills
    assert "review:reviewer" in without_skills
    write_files(folder, {"skills/second/SKILL.md": SKILL.format(name="second")})
    without = offered("--no-plugins")
    assert "triage" not in without
    assert "review:reviewer" not in without
