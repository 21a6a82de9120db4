"""Skills: found, offered to the model, and loaded."""

import json
import os
from pathlib import Path
from typing import Any

from amplifier_modules._shared.skills import Root, find_skills, list_roots
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.llm_server import Reply, Request, ScriptedLLM, ToolCall
from tests.support.plans import mock_plan


def add_skill(
    folder: Path, name: str, description: str = "Does things.", text: str = "Do it."
) -> Path:
    skill = folder / name
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(
        f"---\nname: {name}\ndescription: {description}\n---\n{text}\n", encoding="utf-8"
    )
    return skill


def run(
    folder: Path, home: Path, *replies: Any, options: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Run the default profile in a folder, and return the bodies of its requests."""
    with ScriptedLLM.running([*replies, "done"]) as server:
        succeed("run", *options, "go", cwd=folder, home=home, env=server.env)
        return [request.body for request in server.completions]


def tool_in(body: dict[str, Any]) -> dict[str, Any] | None:
    return next((tool for tool in body["tools"] if tool["name"] == "skill"), None)


def test_a_skill_of_a_trusted_project_is_loaded(tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    skill = add_skill(project / ".agents/skills", "notes", "Write notes.", "First, think.")
    (skill / "scripts").mkdir()
    (skill / "scripts" / "run.sh").write_text("exit\n")
    call = Reply(tool_calls=[ToolCall("skill", {"name": "notes"})])
    first, second = run(project, home, call, options=("--trust",))
    tool = tool_in(first)
    assert tool is not None
    assert "- notes: Write notes." in tool["description"]
    assert tool["input_schema"]["properties"]["name"]["enum"] == ["notes"]
    loaded = str(second["messages"][-1])
    assert '<skill_content name="notes">' in loaded
    assert "First, think." in loaded
    assert "scripts/run.sh" in loaded
    assert str(skill) in loaded


def test_nothing_is_read_from_a_project_that_is_not_trusted(tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    add_skill(project / ".agents/skills", "notes", "A secret description.")
    for folder in (".amplifier/skills", ".claude/skills"):
        add_skill(project / folder, "more")
    (body,) = run(project, home, options=("--no-project",))
    assert tool_in(body) is None
    assert "secret description" not in str(body)
    assert run_amplifier("skill", "list", cwd=project, home=home).stdout == ""
    trusted = succeed("trust", "--yes", cwd=project, home=home)
    assert str(project / ".agents/skills") in trusted.stdout
    listed = run_amplifier("skill", "list", cwd=project, home=home).stdout
    assert "notes" in listed
    (body,) = run(project, home)
    assert tool_in(body) is not None


def test_without_skills_a_request_has_no_word_of_them(tmp_path: Path) -> None:
    (body,) = run(tmp_path, tmp_path / "home")
    assert tool_in(body) is None
    assert "skill" not in str(body).lower()


def test_the_user_has_skills_in_every_directory(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "work"
    folder.mkdir()
    home.mkdir()
    add_skill(home / "skills", "mine")
    (body,) = run(folder, home)
    assert tool_in(body) is not None


def test_the_nearest_of_a_name_counts_and_invalid_ones_are_reported(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    add_skill(near, "same", "near")
    add_skill(far, "same", "far")
    add_skill(far / "nested" / "deep", "below", "below")
    titled = add_skill(far, "titled", "titled") / "SKILL.md"
    titled.write_text(titled.read_text().replace("name: titled", "name: A Title"))
    (far / "empty").mkdir()
    (far / "empty" / "SKILL.md").write_text("---\nname: empty\n---\n")
    (far / "Upper Case").mkdir()
    (far / "Upper Case" / "SKILL.md").write_text("---\ndescription: x\n---\n")
    (far / "broken").mkdir()
    (far / "broken" / "SKILL.md").write_text("---\nname: [\n---\n")
    (far / "bomb").mkdir()
    aliases = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    bomb = "\n".join(["---", "a0: &a0 [x, x]", *aliases, "name: *a11", "description: x", "---"])
    (far / "bomb" / "SKILL.md").write_text(bomb)
    (far / "plain").mkdir()
    (far / "plain" / "SKILL.md").write_text("no front matter")
    (far / "pipe").mkdir()
    os.mkfifo(far / "pipe" / "SKILL.md")
    (far / "node_modules").mkdir()
    add_skill(far / "node_modules", "ignored")
    found = find_skills([Root(str(near), "plan"), Root(str(far), "user")])
    assert {name: skill.description for name, skill in found.skills.items()} == {
        "same": "near",
        "below": "below",
        "titled": "titled",
    }
    assert found.skills["titled"].warnings == (
        "name: expected at most 64 lower-case letters, digits and single hyphens, got 'A Title'; "
        "the folder's name is used",
    )
    reasons = "\n".join(sorted(found.problems))
    for reason in (
        "description: it is missing",
        "lower-case",
        "not valid YAML",
        "front matter",
        "pipe",
        "aliases are not supported",
    ):
        assert reason in reasons
    assert len(found.problems) == 6


def test_links_do_not_lead_out_of_a_project(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / ".agents").mkdir(parents=True)
    add_skill(tmp_path / "outside", "stranger")
    inside = add_skill(project / "shared", "friend")
    skills = project / ".agents" / "skills"
    skills.mkdir()
    (skills / "stranger").symlink_to(tmp_path / "outside" / "stranger")
    (skills / "friend").symlink_to(inside)
    (skills / "loop").symlink_to(skills)
    found = find_skills(list_roots([str(project)], None))
    assert list(found.skills) == ["friend"]


def test_a_large_catalogue_stays_small(tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    for number in range(200):
        add_skill(project / ".agents/skills", f"skill-{number}", "word " * 150)
    (body,) = run(project, home, options=("--trust",))
    tool = tool_in(body)
    assert tool is not None
    assert len(tool["input_schema"]["properties"]["name"]["enum"]) == 200
    assert len(tool["description"]) < 20_000


class Locked:
    """A plan with one skill, and its lock."""

    def __init__(self, folder: Path, replies: list[Any]) -> None:
        self.folder = folder
        self.skill = add_skill(folder / "skills", "notes")
        tools = [{"module": "tool-skills", "config": {"paths": ["skills"]}}, "tool-bash"]
        mock_plan(folder, [*replies, "done"], tools=tools)

    def __call__(self, *words: str) -> Finished:
        return run_amplifier(*words, "-f", "plan.yaml", cwd=self.folder, home=self.folder / "home")

    def run(self, *options: str) -> Finished:
        return self("run", "--locked", "--no-save", *options, "go")


def test_a_lock_pins_the_files_of_skills(tmp_path: Path) -> None:
    locked = Locked(tmp_path, [])
    assert locked("plan", "lock").code == 0
    assert locked("plan", "lock", "--check").code == 0
    assert locked.run().code == 0

    (locked.skill / "SKILL.md").write_text("---\nname: notes\ndescription: Other things.\n---\n")
    (locked.skill / "more.md").write_text("more")
    refused = locked.run()
    assert refused.code == 78
    assert "skill notes: SKILL.md " in refused.stderr
    assert "skill notes: more.md none → " in refused.stderr
    assert "plan lock" in refused.stderr
    assert locked("plan", "lock", "--check").code == 78
    assert "skill notes: more.md none" in locked("plan", "lock").stdout
    assert locked.run().code == 0

    add_skill(tmp_path / "skills", "second")
    assert "skill second: SKILL.md none → " in locked.run().stderr


def test_a_lock_without_pins_says_what_it_does_not_pin(tmp_path: Path) -> None:
    locked = Locked(tmp_path, [])
    assert locked("plan", "lock").code == 0
    file = tmp_path / "plan.lock.json"
    lock = json.loads(file.read_text())
    del lock["pins"]
    file.write_text(json.dumps(lock))
    done = locked.run()
    assert done.code == 0
    assert "not pinned by the lock: skill notes" in done.stderr


def test_a_skill_that_changes_during_a_locked_session_is_refused(tmp_path: Path) -> None:
    change = {"name": "bash", "input": {"command": "echo x >> skills/notes/SKILL.md"}}
    load = {"name": "skill", "input": {"name": "notes"}}
    locked = Locked(tmp_path, [{"tool_calls": [change]}, {"tool_calls": [load]}])
    assert locked("plan", "lock").code == 0
    done = locked.run("--output", "stream-json")
    assert done.code == 0, done.stderr
    assert "has changed since the session began" in done.stdout


def test_a_skill_that_an_agent_adds_is_named_as_not_pinned(tmp_path: Path) -> None:
    def answer(request: Request) -> Reply:
        if all(tool["name"] != "task" for tool in request.body["tools"]):
            return Reply("worked")
        if len(request.body["messages"]) > 1:
            return Reply("done")
        task = {"agent": "worker", "instruction": "work"}
        return Reply(tool_calls=[ToolCall("task", task)])

    add_skill(tmp_path / "skills", "notes")
    add_skill(tmp_path / "more", "extra")
    agent_tool = {"module": "tool-skills", "config": {"paths": ["more"]}}
    plan = {
        "extends": "default",
        "tools": [{"module": "tool-skills", "config": {"paths": ["skills"]}}, "tool-task"],
        "agents": {"worker": {"description": "Works.", "tools": [agent_tool]}},
    }
    (tmp_path / "plan.yaml").write_text(json.dumps(plan))
    with ScriptedLLM.running([answer] * 3) as server:
        succeed("plan", "lock", "-f", "plan.yaml", cwd=tmp_path, env=server.env)
        done = run_amplifier(
            "run", "--locked", "-f", "plan.yaml", "go", cwd=tmp_path, env=server.env
        )
    assert (done.code, done.stdout) == (0, "done\n"), done.stderr
    assert "worker: not pinned by the lock: skill extra; locks do not pin" in done.stderr
    assert "skill notes" not in done.stderr


def test_without_a_lock_a_file_that_cannot_be_read_does_not_matter(tmp_path: Path) -> None:
    skill = add_skill(tmp_path / ".agents/skills", "notes", text="First, think.")
    os.mkfifo(skill / "pipe")
    call = Reply(tool_calls=[ToolCall("skill", {"name": "notes"})])
    _, second = run(tmp_path, tmp_path / "home", call, options=("--trust",))
    assert "First, think." in str(second["messages"][-1])
