"""How a test runs: in a folder of its own, with stubs, without network."""

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_app.base.errors import ModuleError
from amplifier_kit.plan_tests import running
from tests.kit.plan_tests.support import only, run_tests, write_tests
from tests.support.network_guard import sitecustomize as network
from tests.support.plans import mock_plan, module_folder


def calls(*made: Any) -> list[Any]:
    return [{"calls": list(made)}, "done"]


def test_tools_run_in_a_folder_that_is_removed(tmp_path: Path) -> None:
    (tmp_path / "fixture" / "sub").mkdir(parents=True)
    (tmp_path / "fixture" / "sub" / "kept.txt").write_text("kept")
    (tmp_path / "fixture" / "changed.txt").write_text("before")
    before, here = os.listdir(tmp_path / "fixture"), os.getcwd()
    command = "pwd > where.txt; cat sub/kept.txt changed.txt > all.txt"
    file = write_tests(
        tmp_path,
        script=calls({"bash": {"command": command}}),
        workdir="fixture",
        files={"changed.txt": "after"},
        approve="allow",
        expect={"files": {"where.txt": {"matches": "^/.*/work$"}, "all.txt": "keptafter"}},
    )
    assert only(run_tests(file)) == []
    assert os.getcwd() == here
    assert os.listdir(tmp_path / "fixture") == before
    assert (tmp_path / "fixture" / "changed.txt").read_text() == "before"


def test_files_are_not_written_through_links_of_the_copied_folder(tmp_path: Path) -> None:
    outside, fixture = tmp_path / "outside", tmp_path / "fixture"
    outside.mkdir()
    fixture.mkdir()
    (outside / "kept.txt").write_text("kept")
    (fixture / "link.txt").symlink_to(outside / "kept.txt")
    (fixture / "folder").symlink_to(outside)
    file = write_tests(
        tmp_path,
        {"files": {"link.txt": "own"}},
        {"files": {"folder/kept.txt": "own"}},
        workdir="fixture",
    )
    replaced, refused = run_tests(file)
    assert replaced.status == "passed"
    assert refused.error is not None
    assert "'folder/kept.txt' leads out of the working directory" in refused.error.message
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("kept.txt", "kept")]


def test_a_folder_is_copied_without_pipes_and_only_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = tmp_path / "fixture"
    fixture.mkdir()
    os.mkfifo(fixture / "pipe")
    (fixture / "big.txt").write_text("x" * 1000)
    file = write_tests(
        tmp_path, {"files": {"big.txt/a": "x"}}, {"workdir": "missing"}, {}, workdir="fixture"
    )
    below, missing, good = run_tests(file)
    assert below.error is not None
    assert below.error.message == "files: cannot write 'big.txt/a': Not a directory"
    assert missing.error is not None
    assert missing.error.message.startswith("cannot copy the workdir")
    assert missing.error.message.endswith("missing: No such file or directory")
    assert good.failures == ()
    monkeypatch.setattr(running, "_MAX_BYTES", 999)
    *_, large = run_tests(file)
    assert large.error is not None
    assert "fixture has more than 10,000 files or" in large.error.message


def test_links_and_files_of_any_size_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fixture").mkdir()
    (tmp_path / "fixture" / "large").write_text("123456789")
    monkeypatch.setattr(running, "_COMPARED_BYTES", 5)
    command = "ln -s / root; truncate -s 100G huge; echo 12345678X > large; mkfifo pipe"
    file = write_tests(
        tmp_path,
        script=calls({"bash": {"command": command}}),
        approve="allow",
        workdir="fixture",
        expect={"files": {"root": "/", "huge": {}, "large": {}, "pipe": {}}},
    )
    assert only(run_tests(file)) == []


def test_stubs_answer_instead_of_the_tool_under_the_same_rules(tmp_path: Path) -> None:
    call = {"bash": {"command": "touch ran.txt"}}
    file = write_tests(
        tmp_path,
        {"expect": {"calls": ["bash"], "files": {}}},
        {"tools": {"bash": {"error": "no shell"}}, "expect": {"failed": ["bash"], "files": {}}},
        {"approve": "deny", "expect": {"denied": ["bash"]}},
        script=calls(call),
        approve="allow",
        tools={"bash": {"output": "stubbed"}},
    )
    assert [one.failures for one in run_tests(file)] == [(), (), ()]


def test_a_list_of_results_is_for_one_call_after_the_other(tmp_path: Path) -> None:
    call = {"bash": {"command": "make"}}
    file = write_tests(
        tmp_path,
        script=[{"calls": [call]}, {"calls": [call]}, "done"],
        approve="allow",
        tools={"bash": [{"error": "1 error"}, {"output": "built"}]},
        expect={"calls": ["bash", "bash"], "failed": ["bash"]},
    )
    assert only(run_tests(file)) == []


def test_a_tool_that_reaches_for_the_network_fails_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The suite's own guard would refuse it first; the host exists nowhere.
    monkeypatch.setattr(network, "allowed", True)
    mock_plan(tmp_path, [], tools=[{"module": "tool-web"}])
    call = {"web_fetch": {"url": "https://docs.invalid/page"}}
    file = write_tests(
        tmp_path,
        {"expect": {"failed": ["web_fetch"]}},
        {"tools": {"web_fetch": {"output": "a page"}}},
        script=calls(call),
    )
    reached, stubbed = run_tests(file)
    assert [failure.lines for failure in reached.failures] == [
        (
            "web_fetch reached for the network (docs.invalid); stub it: tools: {web_fetch: "
            "{output: …}}",
        )
    ]
    assert stubbed.failures == ()


def test_agents_have_scripts_of_their_own(tmp_path: Path) -> None:
    agents = {
        name: {"description": name, "tools": [{"module": "tool-filesystem"}]}
        for name in ("reader", "writer")
    }
    mock_plan(tmp_path, [], tools=[{"module": "tool-task"}], agents=agents)
    task = {"task": {"agent": "reader", "instruction": "Read notes.txt."}}
    file = write_tests(
        tmp_path,
        {
            "agents": {
                "reader": [{"calls": [{"read_file": {"file_path": "notes.txt"}}]}, "It says hi."]
            }
        },
        {"expect": {"failed": ["task"]}},
        {"agents": {"raeder": ["x"]}},
        {"agents": {"reader": ["It says hi.", "more"], "writer": ["x"]}},
        script=calls(task),
        files={"notes.txt": "hi"},
        expect={"calls": [task]},
    )
    own, without, misspelt, unused = run_tests(file)
    assert own.failures == ()
    assert without.failures == ()
    assert "the plan has no agent 'raeder'; did you mean 'reader'?" in str(misspelt.failures)
    assert [failure.lines[0] for failure in unused.failures] == [
        "the model of the agent 'reader' was called 1 of 2 times; replies are left over",
        "the agent 'writer' was not called; its script is left over",
    ]


def test_what_agents_do_can_be_expected(tmp_path: Path) -> None:
    agents = {
        name: {"description": name, "tools": [{"module": "tool-filesystem"}]}
        for name in ("reader", "writer")
    }
    hooks = [{"module": "hooks-approval"}]
    mock_plan(tmp_path, [], tools=[{"module": "tool-task"}], agents=agents, hooks=hooks)
    tasks = [
        {"task": {"agent": "reader", "instruction": f"Read {name}"}} for name in ("a.txt", "b.txt")
    ]
    read = {"read_file": {"file_path": "a.txt"}}
    write = {"write_file": {"file_path": "a.txt", "content": "x"}}
    met = {
        "calls": ["read_file", "write_file"] * 2,
        "denied": ["write_file", {"write_file": {"file_path": "a.txt"}}],
        "answer": {"contains": "done", "schema": {"const": "done"}},
        "request": {
            "prompt": "Read a.txt",
            "tools": ["read_file", "write_file", "edit_file", "list_directory"],
        },
    }
    unmet: dict[str, Any] = {
        "answer": "other",
        "calls": {"include": ["edit_file"]},
        "denied": [],
        "failed": ["read_file"],
        "request": {"tools": []},
    }
    file = write_tests(
        tmp_path,
        {"expect": {"agents": {"reader": met}}},
        {"expect": {"denied": ["write_file"] * 2}},
        {"expect": {"agents": {"reader": unmet, "writer": {"calls": []}}}},
        {"expect": {"agents": {"raeder": {"calls": []}}}},
        agents={"reader": [{"calls": [read, write]}, '"done"']},
        script=calls(*tasks),
        files={"a.txt": "hi"},
    )
    own, together, failing, misspelt = run_tests(file)
    assert own.failures == ()
    assert together.failures == ()
    assert [failure.what for failure in failing.failures if failure.what != "exit"] == [
        "agents.reader.answer",
        "agents.reader.calls",
        "agents.reader.denied",
        "agents.reader.failed",
        "agents.reader.request",
        "agents.writer",
    ]
    assert "expect.agents: the plan has no agent 'raeder'; did you mean 'reader'?" in str(misspelt)


def test_keys_and_conditions_of_the_real_providers_are_not_needed(tmp_path: Path) -> None:
    providers = [
        {"module": "provider-openai", "config": {"api_key": "${NO_SUCH_KEY}", "model": "gpt-5"}},
        {"module": "provider-anthropic", "when": {"env": "NO_SUCH_KEY"}, "config": {"priority": 1}},
    ]
    mock_plan(tmp_path, [], providers=providers)
    file = write_tests(tmp_path, expect={"request": {"provider": "anthropic"}})
    assert only(run_tests(file)) == []


def test_a_profile_and_variables_in_scripts_are_left_as_they_are(tmp_path: Path) -> None:
    file = write_tests(
        tmp_path,
        {"profile": "mock"},
        script=["costs ${PRICE}"],
        expect={"answer": "costs ${PRICE}"},
    )
    assert only(run_tests(file)) == []


def test_a_time_limit_ends_a_test(tmp_path: Path) -> None:
    file = write_tests(
        tmp_path,
        script=calls({"bash": {"command": "sleep 60"}}),
        approve="allow",
        timeout=1.5,
        expect={"exit": 7, "error": "time limit of 1.5 s reached"},
    )
    assert only(run_tests(file)) == []


def test_problems_of_a_plan_fail_the_test_and_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = mock_plan(tmp_path, [])
    plan.write_text(
        plan.read_text() + "tools: [{module: tool-bash, config: {timeout: 5, nonsense: 1}}]\n"
    )
    (one,) = run_tests(write_tests(tmp_path))
    assert one.status == "failed"
    assert "nonsense" in str(one.failures)
    assert capfd.readouterr() == ("", "")


def test_nothing_of_a_project_counts_before_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    module = tmp_path / ".amplifier" / "modules" / "tool-bash"
    module.mkdir(parents=True)
    (module / "__init__.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    (tmp_path / ".amplifier" / "settings.yaml").write_text(
        "sources: {tool-bash: ./modules/tool-bash}\n"
    )
    file = write_tests(tmp_path, {}, {"plan": "other.yaml"}, {"profile": "mock"})
    (tmp_path / "other.yaml").write_bytes((tmp_path / "plan.yaml").read_bytes())
    plan, other, profile = run_tests(file)
    assert (plan.failures, other.failures) == ((), ())
    assert "Review and trust it with 'amplifier trust'" in str(profile.failures)
    assert capfd.readouterr().err.count("is not trusted; skipping it") == 1
    ignoring = run_tests(file, no_project=True)
    assert [one.status for one in ignoring] == ["passed", "passed", "passed"]
    assert not (tmp_path / "imported").exists()


LOOP = """\
import asyncio

__amplifier_module_type__ = "orchestrator"

async def end():
    raise SystemExit(0)

class Loop:
    async def execute(self, prompt, **others):
        HOW
        return "done"

async def mount(coordinator, config=None):
    await coordinator.mount("orchestrator", Loop())
"""


def test_a_module_cannot_end_the_program_as_if_all_had_passed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, how in {
        "here": "await end()",
        "at_once": "import os; os._exit(0)",
        "in_thread": "import os; await asyncio.to_thread(os._exit, 0)",
        "in_fork": "import os; os.waitpid(os.fork() or os._exit(0), 0)",
        "elsewhere": "asyncio.create_task(end()); await asyncio.sleep(60)",
    }.items():
        folder = tmp_path / name
        (folder / f"loop_{name}").mkdir(parents=True)
        (folder / f"loop_{name}" / "__init__.py").write_text(LOOP.replace("HOW", how))
        plan = yaml.safe_load(mock_plan(folder, []).read_text())
        module = f"loop-{name.replace('_', '-')}"
        plan["session"]["orchestrator"] = {"module": module, "source": f"./loop_{name}"}
        (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    for name in ("here", "at-once", "in-thread"):
        folder = tmp_path / name.replace("-", "_")
        failed, other = run_tests(write_tests(folder, {}, {"profile": "mock"}))
        assert f"orchestrator 'loop-{name}' raised SystemExit: 0" in str(failed.failures)
        assert other.status == "passed"
    with pytest.raises(ModuleError, match="a module raised SystemExit: 0"):
        run_tests(write_tests(tmp_path / "elsewhere"))
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]
    (forked,) = run_tests(write_tests(tmp_path / "in_fork", {"script": []}))
    assert forked.status == "passed", forked


STAMP = """
import itertools

__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    numbers = itertools.count(1)

    def on_request(event, data):
        stamp = {"role": "system", "content": f"Request {next(numbers)}."}
        return {"action": "modify", "data": {**data, "messages": [stamp, *data["messages"]]}}

    coordinator.hooks.register("provider:request", on_request, name="stamp")
"""

SILENT_LOOP = """
__amplifier_module_type__ = "orchestrator"


class Loop:
    async def execute(self, prompt, context, providers, tools, hooks, **other):
        from amplifier_core.message_models import ChatRequest, Message

        request = ChatRequest(messages=[Message(role="user", content=prompt)])
        response = await providers["mock"].complete(request)
        return response.content[0].text


async def mount(coordinator, config=None):
    await coordinator.mount("orchestrator", Loop())
"""


def test_requests_that_break_the_cache_are_named(tmp_path: Path) -> None:
    module_folder(tmp_path, STAMP, "amplifier_module_hooks_stamp")
    hooks = [{"module": "hooks-stamp", "source": "./amplifier-module-hooks-stamp"}]
    plan = mock_plan(tmp_path, [], tools=[{"module": "tool-filesystem"}], hooks=hooks)
    call = {"calls": [{"list_directory": {"path": "."}}]}
    expected: list[dict[str, Any]] = [{"expect": {"max_cache_breaks": most}} for most in (1, 2)]
    first, second = run_tests(write_tests(tmp_path, *expected, script=[call, call, "ok"]))
    (failure,) = only([first])
    assert failure.startswith("max_cache_breaks: expected at most 1, got 2: /   request 2, byte ")
    assert failure.count(f"hook stamp ({plan}:2)") == 2
    assert "'Request 1.' → 'Request 2.'" in failure
    assert only([second]) == []


def test_unreported_requests_do_not_count_as_cached(tmp_path: Path) -> None:
    module_folder(tmp_path, SILENT_LOOP, "amplifier_module_loop_silent")
    loop = {"module": "loop-silent", "source": "./amplifier-module-loop-silent"}
    mock_plan(tmp_path, [], session={"orchestrator": loop, "context": "context-simple"})
    (failure,) = only(run_tests(write_tests(tmp_path, expect={"max_cache_breaks": 5})))
    assert failure.startswith("max_cache_breaks: is unknown: ")
