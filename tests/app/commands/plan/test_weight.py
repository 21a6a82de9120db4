"""`amplifier plan check --tokens`: what a request weighs, before the first one is sent."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.fixtures import StartLLM
from tests.support.llm_server import Reply
from tests.support.plans import SMALL

HEAVY = """\
extends: mock
tools:
  - module: tool-skills
    config: {paths: [skills]}
instruction: Answer in verse. Never in prose.
"""


def weigh(folder: Path, plan: str, *options: str, output: str = "json") -> Finished:
    (folder / "plan.yaml").write_text(plan, encoding="utf-8")
    words = ("plan", "check", "-f", "plan.yaml", "--tokens", "--output", output, *options)
    return run_amplifier(*words, cwd=folder)


def parts(finished: Finished) -> dict[tuple[str, str], dict[str, Any]]:
    assert finished.code in (0, 9), finished.stderr
    return {
        (part["kind"], part["name"]): part
        for part in json.loads(finished.stdout)["tokens"]["parts"]
    }


def test_every_part_has_its_place_and_they_add_up(tmp_path: Path) -> None:
    skill = tmp_path / "skills" / "rhyme" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: rhyme\ndescription: Finds rhymes for any word.\n---\nSing.\n")
    finished = weigh(tmp_path, HEAVY)
    tokens = json.loads(finished.stdout)["tokens"]
    found = parts(finished)
    assert sum(part["tokens"] for part in tokens["parts"]) == tokens["total"]
    assert not tokens["is_counted"]
    instruction = found["instruction", ""]
    assert (instruction["file"], instruction["line"], instruction["tokens"]) == ("plan.yaml", 5, 8)
    assert found["skill", "rhyme"]["line"] == found["tool", "skill"]["line"] == 3
    assert found["skill", "rhyme"]["tokens"] == len("- rhyme: Finds rhymes for any word.") // 4 + 1
    for name in ("bash", "web_fetch", "task"):
        assert found["tool", name]["file"].endswith("default.yaml"), name


def test_instruction_files_and_hooks_are_named(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Use tabs.\n")
    home = tmp_path / "home"
    succeed("trust", "--yes", cwd=tmp_path, home=home)
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        f"{SMALL}tools: [tool-filesystem]\nhooks: [hooks-context-files, hooks-status]\n"
    )
    finished = run_amplifier(
        *("plan", "check", "-f", str(plan), "--tokens", "--output", "json"), cwd=tmp_path, home=home
    )
    found = parts(finished)
    assert found["file", str(tmp_path / "AGENTS.md")]["file"] == str(tmp_path / "AGENTS.md")
    assert found["hook", "hooks-status"]["line"] == 4


def test_too_many_tokens_are_a_failed_check(tmp_path: Path) -> None:
    plan = f"{SMALL}tools: [tool-filesystem]\n"
    finished = weigh(tmp_path, plan, "--max", "100", output="text")
    assert finished.code == 9
    assert "too many tokens: about " in finished.stderr
    assert " of 100 tokens a request to mock-model" in finished.stderr
    lines = [line.split() for line in finished.stdout.splitlines() if " edit_file " in line]
    assert [line[1:3] for line in lines] == [["tool", "edit_file"]]
    assert weigh(tmp_path, plan, "--max", "100000").code == 0


def test_a_maximum_needs_tokens(tmp_path: Path) -> None:
    finished = run_amplifier("plan", "check", "--max", "10", "-P", "mock", cwd=tmp_path)
    assert finished.code == 2
    assert "--max needs --tokens" in finished.stderr


def test_a_plan_with_a_problem_is_not_weighed(tmp_path: Path) -> None:
    finished = weigh(tmp_path, f"{SMALL}tools: [{{module: nope}}]\n", "--max", "1")
    assert finished.code == 3
    assert json.loads(finished.stdout)["tokens"] is None


async def test_the_provider_counts_what_a_run_then_sends(
    tmp_path: Path, llm_server: StartLLM
) -> None:
    server = await llm_server([Reply("Done.")])
    config = {"base_url": server.base_url, "api_key": "k", "model": "claude-sonnet-4-5"}
    plan = {
        "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
        "providers": [{"module": "provider-anthropic", "config": config}],
        "tools": [{"module": "tool-filesystem"}],
        "instruction": "Answer in verse.",
    }
    weighed = await asyncio.to_thread(weigh, tmp_path, json.dumps(plan))
    tokens = json.loads(weighed.stdout)["tokens"]
    assert [request.path for request in server.requests] == ["/v1/messages/count_tokens"]
    run = ("run", "-f", "plan.yaml", "Hi")
    assert (await asyncio.to_thread(run_amplifier, *run, cwd=tmp_path)).code == 0
    counted, sent = (request.body for request in server.requests)
    assert counted["messages"] == sent["messages"]
    assert counted["tools"] == sent["tools"]
    assert counted["system"] == sent["system"]
    assert tokens["is_counted"]
    assert tokens["total"] == sum(part["tokens"] for part in tokens["parts"]) > 300
    assert tokens["cost_usd"] == pytest.approx(tokens["total"] * 3 / 1_000_000)
    assert tokens["cached_cost_usd"] == pytest.approx(tokens["cost_usd"] / 10)
