"""Modules that behave like the published ones, together with the bundled loops, contexts and tools."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_app.base.installed import bundled_modules
from tests.support.cli import Finished, run_amplifier
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall

MODULES = Path(__file__).parent / "modules_of_others"
ORCHESTRATORS = sorted(name for name in bundled_modules() if name.startswith("loop-"))
CONTEXTS = sorted(name for name in bundled_modules() if name.startswith("context-"))
ALWAYS = list(zip(ORCHESTRATORS, itertools.cycle(CONTEXTS), strict=False))

FIRST_TURN = [
    Reply("Reading.", tool_calls=[ToolCall("read_file", {"file_path": "notes.txt"}, id="c1")]),
    Reply(
        tool_calls=[
            # One under each of the names that file tools take.
            ToolCall("read_file", {"file_path": "secret.txt"}, id="c2"),
            ToolCall("read_file", {"path": "secret.txt"}, id="c3"),
            ToolCall("bash", {"command": "touch made.txt"}, id="c4"),
        ]
    ),
    "Read and done.",
]
SECOND_TURN = [
    Reply(tool_calls=[ToolCall("read_file", {"file_path": "notes.txt"}, id="c5")]),
    "Read again.",
]


class Project:
    """A folder with notes and a secret, and a plan with modules of others."""

    def __init__(self, folder: Path, llm: ScriptedLLM, orchestrator: str, context: str) -> None:
        self.folder = folder / "project"
        self.folder.mkdir()
        (self.folder / "notes.txt").write_text("a LONG text\n")
        (self.folder / "secret.txt").write_text("the password\n")
        self.seen = folder / "seen.jsonl"
        self.home = folder / "home"
        self.plan = folder / "plan.yaml"

        def entry(name: str, **config: Any) -> dict[str, Any]:
            source = str(MODULES / f"{name.replace('-', '_')}.py")
            return {"module": name, "source": source, "config": config}

        plan = {
            "session": {"orchestrator": orchestrator, "context": context},
            "providers": [entry("wire-provider", base_url=llm.openai_base_url)],
            "tools": ["tool-filesystem", "tool-bash"],
            "hooks": [
                entry("serialising-hook", file=str(self.seen)),
                entry("asking-hook"),
                entry("guarding-hook"),
                entry("shortening-hook"),
            ],
        }
        self.plan.write_text(yaml.safe_dump(plan))

    def run(self, *arguments: str, approve: str = "allow") -> Finished:
        return run_amplifier(
            *("run", "--output", "json", "--approve", approve, *arguments),
            home=self.home,
            cwd=self.folder,
        )

    def events(self, event: str) -> dict[str, dict[str, Any]]:
        """What the serialising hook kept of `event`, by call id."""
        lines = [json.loads(line) for line in self.seen.read_text().splitlines()]
        return {line["tool_call_id"]: line for line in lines if line["event"] == event}


def results_in(body: dict[str, Any]) -> dict[str, str]:
    """What the model was sent as the results of its calls, by call id."""
    return {m["tool_call_id"]: m["content"] for m in body["messages"] if m["role"] == "tool"}


def calls_in(body: dict[str, Any]) -> list[str]:
    """The ids of the calls that requests repeat to the model."""
    return [call["id"] for m in body["messages"] for call in m.get("tool_calls") or []]


@pytest.mark.parametrize(
    ("orchestrator", "context"),
    [
        pytest.param(*pair, marks=() if pair in ALWAYS else pytest.mark.thorough)
        for pair in itertools.product(ORCHESTRATORS, CONTEXTS)
    ],
)
def test_they_work_together_over_two_turns_and_a_resume(
    orchestrator: str, context: str, tmp_path: Path
) -> None:
    with ScriptedLLM.running([*FIRST_TURN, *SECOND_TURN]) as llm:
        project = Project(tmp_path, llm, orchestrator, context)
        first = project.run("--plan", str(project.plan), "Read the notes.")
        result = json.loads(first.stdout)
        # The guard denied two calls.
        assert (first.code, result["response"]) == (8, "Read and done."), first.stderr
        second = project.run("--resume", result["session_id"], "Read them again.")
        assert (second.code, json.loads(second.stdout)["response"]) == (0, "Read again."), (
            second.stderr
        )
        assert llm.rejections == []
        bodies = [request.body for request in llm.completions]

    # The provider found every call and result on the messages themselves, also after the resume.
    assert calls_in(bodies[2]) == ["c1", "c2", "c3", "c4"]
    assert calls_in(bodies[4]) == ["c1", "c2", "c3", "c4", "c5"]
    results = results_in(bodies[4])
    # The hook that rewrites results as dictionaries was heeded, in this run and the resumed one.
    assert "SHORT" in results["c1"]
    assert "SHORT" in results["c5"]
    assert "LONG" not in json.dumps(bodies)
    # The guard on `file_path` denied the file under either name of the input.
    assert "out of bounds" in results["c2"]
    assert "out of bounds" in results["c3"]
    assert "the password" not in json.dumps(bodies)
    # The hook that waits for its approval provider got one and allowed the command.
    assert (project.folder / "made.txt").exists()
    # The hook that serialises got plain data of every call that ran.
    posts = project.events("tool:post")
    assert set(posts) == {"c1", "c4", "c5"}
    assert posts["c4"]["result"]["success"] is True
    assert set(project.events("tool:pre")) == {"c1", "c4", "c5"}
    assert project.seen.read_text().count('"event": "message.end"') == 2


def test_a_denied_approval_ends_the_run_with_8(tmp_path: Path) -> None:
    calls = [ToolCall("bash", {"command": "touch made.txt"}, id="c1")]
    with ScriptedLLM.running([Reply(tool_calls=calls), "Not done."]) as llm:
        project = Project(tmp_path, llm, "loop-streaming", "context-simple")
        run = project.run("--plan", str(project.plan), "Make it.", approve="deny")
        assert llm.rejections == []
    assert run.code == 8, run.stderr
    assert [denied["name"] for denied in json.loads(run.stdout)["denied"]] == ["bash"]
    assert not (project.folder / "made.txt").exists()


@pytest.mark.parametrize(
    "orchestrator",
    [
        pytest.param(name, marks=() if name == "loop-streaming" else pytest.mark.thorough)
        for name in ORCHESTRATORS
    ],
)
def test_text_masked_for_logs_reaches_the_model_unmasked(orchestrator: str, tmp_path: Path) -> None:
    seen = tmp_path / "seen.jsonl"
    plan = tmp_path / "plan.yaml"
    (tmp_path / "notes.txt").write_text("the key is hunter2\n")
    call = ToolCall("read_file", {"file_path": "notes.txt"}, id="c1")
    with ScriptedLLM.running([Reply(tool_calls=[call]), "It is hunter2."]) as llm:
        config = {"secret": "hunter2", "file": str(seen)}
        hook = {"source": str(MODULES / "masking_hook.py"), "config": config}
        server = {"base_url": llm.openai_base_url, "api_key": "any"}
        provider = {"module": "provider-openai", "config": server}
        document = {
            "session": {"orchestrator": orchestrator, "context": "context-simple"},
            "providers": [provider],
            "tools": ["tool-filesystem"],
            "hooks": [{"module": "masking-hook", **hook}],
        }
        plan.write_text(yaml.safe_dump(document))
        run = run_amplifier(
            *("run", "--plan", plan, "Is hunter2 the key?"), home=tmp_path / "home", cwd=tmp_path
        )
        assert llm.rejections == []
        bodies = [request.body for request in llm.completions]
    assert (run.code, run.stdout.strip()) == (0, "It is hunter2."), run.stderr
    assert bodies[0]["messages"][-1]["content"] == "Is hunter2 the key?"
    assert "hunter2" in results_in(bodies[1])["c1"]
    # Hooks that run later see the mask, and what else was changed in the same data counts.
    assert "REDACTED" in seen.read_text()
    assert "hunter2" not in seen.read_text()
    assert [tool["function"]["name"] for tool in bodies[0]["tools"]] == ["read_file"]
