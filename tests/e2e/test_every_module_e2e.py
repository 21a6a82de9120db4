"""Every bundled module in one plan: a task of twenty steps with all of them, and without some of them."""

import itertools
import json
import math
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from amplifier_app.base.installed import bundled_modules
from tests.support.cli import Finished, run_amplifier
from tests.support.http_server import QuietHandler, serving
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall
from tests.support.thorough import one_in

MODULES = sorted(bundled_modules())
ORCHESTRATORS = [name for name in MODULES if name.startswith("loop-")]
CONTEXTS = [name for name in MODULES if name.startswith("context-")]
COMBINED = [name for name in MODULES if name not in (*ORCHESTRATORS, *CONTEXTS)]
ASKED = ("provider-anthropic", "provider-openai")
"""One of them answers."""

NOTES = "this is teh text\nand teh rest\nthe end\n"
SERVER = Path(__file__).parents[1] / "extras" / "tool_mcp" / "raw_server.py"
EDITS = [
    {"old_string": "this", "new_string": "This"},
    {"old_string": "the end", "new_string": "END"},
]
TODOS = [{"content": "Read the notes", "status": "in_progress"}]


class Step(NamedTuple):
    """One answer of the model: calls at the same time, of tools of one module."""

    module: str
    calls: list[ToolCall]


def step(module: str, *calls: tuple[str, dict[str, Any]]) -> Step:
    return Step(module, [ToolCall(name, values) for name, values in calls])


def steps(web: str) -> list[Step]:
    """Twenty steps in which every tool is used; `web` is the address of a server of pages."""
    notes = {"path": "notes.txt"}
    return [
        step("tool-todo", ("todo", {"action": "create", "todos": TODOS})),
        step("tool-filesystem", ("list_directory", {"path": "."})),
        step("tool-filesystem", ("read_file", notes), ("read_file", {"path": "AGENTS.md"})),
        step("tool-search", ("grep", {"pattern": "teh"}), ("glob", {"pattern": "*.txt"})),
        step(
            "tool-filesystem",
            (
                "edit_file",
                {**notes, "old_string": "teh", "new_string": "the", "replace_all": True},
            ),
        ),
        step("tool-filesystem", ("edit_file", {**notes, "edits": EDITS})),
        step("tool-filesystem", ("write_file", {"path": "made.txt", "content": "made\n"})),
        step("tool-bash", ("bash", {"command": "mkdir -p sub && cd sub && cat ../notes.txt"})),
        step("tool-bash", ("bash", {"command": "pwd"})),
        step("tool-bash", ("bash", {"command": "sleep 300", "run_in_background": True})),
        step("tool-bash", ("bash_output", {"id": "b1"})),
        step("tool-bash", ("bash_kill", {"id": "b1"})),
        step("tool-web", ("web_fetch", {"url": f"{web}/page"})),
        step("tool-web", ("web_search", {"query": "anything"})),
        step("tool-task", ("task", {"agent": "helper", "instruction": "Say what you see."})),
        step("tool-mcp", ("mcp_things_echo", {"text": "hello"})),
        step("tool-filesystem", ("read_file", notes)),
        step("tool-search", ("grep", {"pattern": "END", "path": "."})),
        step("tool-todo", ("todo", {"action": "list"})),
        step("tool-todo", ("todo", {"action": "update", "todos": []})),
    ]


class _Pages(QuietHandler):
    def do_GET(self) -> None:
        found = {"results": [{"title": "A page", "url": "http://x.example/", "content": "of it"}]}
        searched = self.path.startswith("/search")
        body = json.dumps(found) if searched else "<h1>A page</h1><p>with text</p>"
        self.send_head("application/json" if searched else "text/html", len(body))
        self.wfile.write(body.encode())


class Project:
    """A folder in which there is something to do, and who does it."""

    def __init__(self, folder: Path, web: str, llm: ScriptedLLM) -> None:
        self.folder = folder / "project"
        self.kept = folder / "kept"
        self.home = folder / "home"
        self.folder.mkdir()
        self.kept.mkdir()
        (self.folder / "notes.txt").write_text(NOTES)
        (self.folder / "AGENTS.md").write_text("Always say please.\n")
        self._web = web
        self._llm = llm

    def run(
        self,
        left_out: Collection[str] = (),
        orchestrator: str = "loop-streaming",
        context: str = CONTEXTS[-1],
    ) -> Finished:
        """Run the task with every module that is not left out."""
        asked = "openai" if "provider-anthropic" in left_out else "anthropic"

        def entries(prefix: str) -> list[dict[str, Any]]:
            names = [each for each in COMBINED if each.startswith(prefix)]
            configs = self._configs()
            return [
                {"module": name, "config": configs.get(name, {})}
                for name in names
                if name not in left_out
            ]

        plan = {
            "session": {
                "orchestrator": {"module": orchestrator, "config": {"default_provider": asked}},
                "context": context,
            },
            "providers": entries("provider-"),
            "tools": entries("tool-"),
            "hooks": entries("hooks-"),
            "agents": {
                "helper": {"description": "Helps.", "instruction": "You help.", "tools": []}
            },
            "instruction": "Do what is to be done.",
        }
        file = self.home.parent / "plan.yaml"
        file.write_text(yaml.safe_dump(plan, sort_keys=False))
        return run_amplifier(
            *("run", "--plan", file, "--output", "json", "--approve", "allow", "Do it."),
            home=self.home,
            cwd=self.folder,
        )

    def _configs(self) -> dict[str, dict[str, Any]]:
        """What a module needs; the others need nothing."""
        seen = self.kept / "seen.jsonl"
        return {
            "provider-anthropic": {"api_key": "test-key", "base_url": self._llm.base_url},
            "provider-openai": {"api_key": "test-key", "base_url": self._llm.openai_base_url},
            "provider-replay": {"record": str(self.kept / "recording.jsonl")},
            "tool-web": {
                "allow_hosts": ["127.0.0.1"],
                "search": {"url": f"{self._web}/search"},
            },
            "tool-mcp": {
                "servers": {
                    "things": {
                        "command": sys.executable,
                        "args": [str(SERVER)],
                        "required": True,
                        "tools": {"allow": ["echo"]},
                    }
                }
            },
            "hooks-approval": {"default": "allow"},
            "hooks-otel": {"exporter": "file", "path": str(self.kept / "spans.jsonl")},
            "hooks-shell": {
                "sandbox": {"write": [str(self.kept)]},
                "hooks": [{"event": "tool:pre", "tool": "*", "command": f"cat >> {seen}"}],
            },
        }


def script(chosen: list[Step]) -> list[Any]:
    """What the model answers."""
    answers: list[Any] = []
    for each in chosen:
        answers.append(Reply("Next.", tool_calls=each.calls))
        if each.module == "tool-task":
            answers.append("I see nothing.")
    return [*answers, "All done."]


def first_steps(web: str, left_out: Collection[str]) -> list[Step]:
    """The first step with each module that is not left out."""
    firsts = {each.module: each for each in reversed(steps(web))}
    return [each for name, each in firsts.items() if name not in left_out]


def separating_halves() -> list[list[str]]:
    """Halves to leave out such that each module runs at least once without each other module.

    No set of runs that a module is in contains that of another one. One of those that answer is in each.
    """
    runs = next(n for n in itertools.count(2, 2) if math.comb(n, n // 2) >= len(COMBINED))
    *sets, complement = itertools.combinations(range(runs), runs // 2)
    first, last = ASKED
    others = [name for name in COMBINED if name not in ASKED]
    in_runs = {**dict(zip([first, *others], sets, strict=False)), last: complement}
    return [[name for name, those in in_runs.items() if run not in those] for run in range(runs)]


def failed(result: dict[str, Any]) -> list[Any]:
    """The tool calls of a run that did not go well."""
    return [tool for tool in result["tools"] if tool["outcome"] != "ok"]


ALWAYS = [("loop-streaming", "context-persistent")]
PAIRS = [
    pair if pair in ALWAYS else pytest.param(*pair, marks=pytest.mark.thorough)
    for pair in itertools.product(ORCHESTRATORS, CONTEXTS)
]


@pytest.mark.parametrize(("orchestrator", "context"), PAIRS)
def test_a_task_with_every_module(orchestrator: str, context: str, tmp_path: Path) -> None:
    with serving(_Pages) as web, ScriptedLLM.running(script(steps(web))) as llm:
        project = Project(tmp_path, web, llm)
        done = project.run(orchestrator=orchestrator, context=context)
        result = json.loads(done.stdout)
        assert (done.code, result["response"]) == (0, "All done."), done.stderr
        assert llm.rejections == []
        first, last = llm.completions[0].body, json.dumps(llm.completions[-1].body)
    assert failed(result) == []
    used = {call.name for each in steps(web) for call in each.calls}
    assert used == {tool["name"] for tool in first["tools"]}
    # What tools said has reached the model, and what hooks add.
    for text in ("teh", "with text", "A page", "I see nothing.", "hello", "Always say please."):
        assert text in last
    assert (project.folder / "notes.txt").read_text() == "This is the text\nand the rest\nEND\n"
    assert (project.folder / "made.txt").read_text() == "made\n"
    # What hooks and providers keep is there.
    (session,) = [
        folder for folder in (project.home / "sessions").iterdir() if "helper" not in folder.name
    ]
    assert (session / "events.jsonl").stat().st_size
    calls = [json.loads(line) for line in (project.kept / "seen.jsonl").read_text().splitlines()]
    assert {call["tool_name"] for call in calls} == used
    assert len((project.kept / "recording.jsonl").read_text().splitlines()) > len(steps(web))


def check_the_rest_works(folder: Path, left_out: Collection[str]) -> None:
    with serving(_Pages) as web, ScriptedLLM.running(script(first_steps(web, left_out))) as llm:
        done = Project(folder, web, llm).run(left_out, "loop-events", "context-simple")
        result = json.loads(done.stdout)
        assert (done.code, result["response"]) == (0, "All done."), done.stderr
        assert llm.rejections == []
    assert failed(result) == []


@pytest.mark.parametrize(
    "left_out", one_in(8, separating_halves()), ids=range(len(separating_halves()))
)
def test_no_module_needs_another(left_out: list[str], tmp_path: Path) -> None:
    check_the_rest_works(tmp_path, left_out)


def test_the_halves_separate_every_two_modules() -> None:
    runs = [set(COMBINED).difference(left_out) for left_out in separating_halves()]
    for one, other in itertools.permutations(COMBINED, 2):
        assert any(one in run and other not in run for run in runs), (one, other)
    assert all(run.intersection(ASKED) for run in runs)


@pytest.mark.thorough
@pytest.mark.parametrize("left_out", COMBINED)
def test_without_any_one_of_them_the_rest_works(left_out: str, tmp_path: Path) -> None:
    check_the_rest_works(tmp_path, [left_out])
