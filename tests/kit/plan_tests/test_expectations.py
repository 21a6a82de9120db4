"""What each expectation accepts, and what it reports otherwise."""

from typing import Any

import pytest

from tests.kit.plan_tests.support import run_tests, write_tests

READ = {"read_file": {"file_path": "notes.txt"}}
WRITE = {"write_file": {"file_path": "new/out.txt", "content": "one\ntwo\n"}}
COMMAND = {"bash": {"command": "touch x"}}
REMOVE = {"bash": {"command": "rm notes.txt"}}
ALLOWED = {"approve": "allow"}


def script(*calls: Any, answer: str = "All done.\n") -> list[Any]:
    return [{"calls": [call]} for call in calls] + [answer]


UNSET = (
    *("instruction", "fallbacks", "orchestrator.source", "session.metadata.team.name"),
    *("session.budget.max_cost", "session.sandbox.write", "approvals.0.action", "agents.tester"),
    *("tools.tool-web", "tools.tool-bash.config.timeout", "tools.tool-bash.config"),
    *("providers.provider-mock.when.env", "hooks.hooks-of-mine", "checks"),
)

MET: list[dict[str, Any]] = [
    {"expect": {"answer": "All done.", "exit": 0}},
    {"expect": {"answer": {"contains": ["All", "done"], "excludes": "not", "matches": r"^A\w+"}}},
    {
        "script": ['{"n": 3}'],
        "expect": {"answer": {"schema": {"type": "object", "required": ["n"]}}},
    },
    {
        "script": script(READ, WRITE),
        "expect": {"calls": [READ, "write_file"], "files": {"new/*": {}}},
    },
    {"script": script(READ, READ), "expect": {"calls": ["read_file", "read_*"]}},
    {
        "script": script(READ, WRITE),
        "expect": {"calls": {"include": ["write_file"], "exclude": ["bash"]}},
    },
    {
        "script": script(WRITE),
        "expect": {
            "calls": [{"write_file": {"content": {"contains": "two", "matches": "^one$"}}}],
            "files": {"new/out.txt": "one\ntwo\n", "gone.txt": None},
        },
    },
    {"script": script(READ, READ), "expect": {"max_cache_breaks": 0}},
    {"script": script(REMOVE), **ALLOWED, "expect": {"files": {"notes.txt": None}}},
    {"script": script({"read_file": {"file_path": "x"}}), "expect": {"failed": ["read_file"]}},
    {"script": script({"nothing": {"a": 1}}), "expect": {"failed": [{"nothing": {"a": 1}}]}},
    {
        "script": [
            {"text": "a", "usage": {"input_tokens": 7, "output_tokens": 5, "cost_usd": "0.25"}}
        ],
        "expect": {"cost": 0.25, "tokens": {"at_least": 12, "at_most": 12}, "steps": 1},
    },
    {
        "script": [{"error": {"type": "AuthenticationError", "message": "no such key"}}],
        "expect": {"exit": 4, "error": {"contains": "no such key"}},
    },
    {
        "expect": {
            "request": {
                "prompt": "Do it.",
                "provider": "mock",
                "tools": [
                    *("read_file", "write_file", "edit_file", "list_directory"),
                    *("bash", "bash_output", "bash_kill"),
                ],
            },
            "plan": {"session.orchestrator.module": "loop-streaming", "session.budget": None},
        }
    },
    # Addresses without a value, each of which a plan may have.
    {"expect": {"plan": dict.fromkeys(UNSET)}},
    {"script": script(WRITE), "expect": {"files": {"**/*.txt": {}}}},
    {"plan": "notes.txt", "expect": {"exit": 78, "error": {"contains": "notes.txt"}}},
]

NOT_MET: list[tuple[dict[str, Any], str]] = [
    ({"expect": {"answer": "Done."}}, 'answer: expected "Done." / got      "All done.\\n"'),
    (
        {"expect": {"answer": {"contains": "xyz"}}},
        'answer: does not contain "xyz" / got: /   All done.',
    ),
    ({"expect": {"answer": {"excludes": "done"}}}, 'answer: contains "done"'),
    ({"expect": {"answer": {"matches": "^done"}}}, 'answer: does not match "^done"'),
    (
        {"script": ["a\nb\nc"], "expect": {"answer": "a\nx\nc"}},
        "answer: differs (- expected, + got)",
    ),
    ({"expect": {"answer": {"schema": {"type": "object"}}}}, "answer: the answer contains no JSON"),
    (
        {"script": ["{}"], "expect": {"answer": {"schema": {"required": ["n"]}}}},
        "answer: does not match the schema",
    ),
    ({"expect": {"answer": {"schema": "no.json"}}}, "error: answer: cannot read"),
    ({"expect": {"exit": 3}}, "exit: expected 3, got 0 (ok)"),
    (
        {"script": [{"error": {"type": "ProviderUnavailableError", "message": "busy"}}]},
        "exit: expected 0, got 75 (unavailable) /   busy",
    ),
    (
        {"script": script(READ, COMMAND), "expect": {"calls": ["read_file"], "denied": ["bash"]}},
        'calls: expected 1, got 2; unexpected: /   bash {"command": "touch x"}',
    ),
    (
        {"script": script(READ), "expect": {"calls": ["read_file", "bash"]}},
        "calls: expected 2, got 1; missing: /   bash",
    ),
    (
        {"script": script(READ), "expect": {"calls": [{"read_file": {"file_path": "other.txt"}}]}},
        'calls: call 1 differs /   expected read_file {"file_path": "other.txt"} /   got      read_file '
        '{"file_path": "notes.txt"',
    ),
    ({"expect": {"calls": ["bash"]}}, "missing: /   bash / there were no calls"),
    (
        {
            "script": script(READ, WRITE),
            "expect": {"calls": {"include": ["write_file", "read_file"]}},
        },
        "calls: no call read_file, or not in this order",
    ),
    (
        {"script": script(READ), "expect": {"calls": {"exclude": ["read_*"]}}},
        "calls: unexpected call read_file",
    ),
    ({"script": script(COMMAND), "expect": {"exit": 8}}, "denied: expected 0, got 1; unexpected:"),
    ({"script": script(COMMAND)}, "exit: expected 0, got 8 (denied)"),
    ({"expect": {"denied": ["bash"]}}, "denied: expected 1, got 0; missing: /   bash"),
    (
        {"script": script({"read_file": {"file_path": "x"}})},
        "failed: expected 0, got 1; unexpected:",
    ),
    ({"script": script(WRITE), "expect": {"files": {}}}, "files: new/out.txt was added"),
    ({"expect": {"files": {"a.txt": {}}}}, "files: a.txt does not exist"),
    ({"expect": {"files": {"notes.txt": None}}}, "files: notes.txt exists"),
    (
        {"script": script(WRITE), "expect": {"files": {"new/out.txt": "one\nTWO\n"}}},
        "files: new/out.txt: differs (- expected, + got)",
    ),
    (
        {"script": script(WRITE), "expect": {"files": {"new/*": {"contains": "three"}}}},
        'files: new/out.txt: does not contain "three"',
    ),
    ({"script": script(WRITE), "expect": {"files": {"new/*": None}}}, "files: new/out.txt exists"),
    ({"expect": {"files": {"notes.txt": {}}}}, "files: notes.txt was not changed"),
    (
        {"script": script(REMOVE), **ALLOWED, "expect": {"files": {"notes.txt": "hello\n"}}},
        "files: notes.txt was removed",
    ),
    (
        {"script": script(REMOVE), **ALLOWED, "expect": {"files": {"*.txt": {}}}},
        "files: notes.txt was removed",
    ),
    (
        {
            "script": script({"read_file": {"file_path": "notes.txt", "limit": 1}}),
            "expect": {"calls": [{"read_file": {"limit": True}}]},
        },
        "calls: call 1 differs",
    ),
    (
        {"script": [*script(COMMAND), "more"], "expect": {"denied": ["bash"]}},
        "test: the model was called 2 of 3 times; replies are left over",
    ),
    ({"expect": {"steps": {"at_least": 2}}}, "steps: expected at least 2, got 1"),
    ({"expect": {"cost": 1}}, "cost: expected 1, got 0"),
    ({"expect": {"tokens": {"at_most": 1}}}, "tokens: expected at most 1, got"),
    ({"expect": {"limit": "max_cost"}}, "limit: expected max_cost, got none"),
    (
        {"expect": {"request": {"system": {"contains": "kind"}}}},
        'request: system: does not contain "kind"',
    ),
    ({"expect": {"request": {"tools": ["grep"]}}}, "request: tools: missing: grep"),
    ({"expect": {"request": {"model": "gpt"}}}, "request: model: expected gpt, got mock-model"),
    (
        {"expect": {"request": {"provider": "openai"}}},
        "request: provider: expected openai, got mock",
    ),
    (
        {"expect": {"modules": ["tool-bash"]}},
        "modules: unexpected: context-simple, hooks-approval, loop-streaming",
    ),
    (
        {"expect": {"plan": {"session.budget.max_cost": 5}}},
        "plan: session.budget.max_cost: /   expected 5 /   got      nothing",
    ),
    *(
        ({"expect": {"plan": {address: None}}}, f"plan: {address}: {problem}")
        for address, problem in {
            "session.budget.max_csot": "there is no 'max_csot' in session.budget; did you mean "
            "'max_cost'?",
            "sesion.budget": "there is no 'sesion' in the plan; did you mean 'session'?",
            "session.orchestrator_source": "there is no 'orchestrator_source' in session",
            "extends": "there is no 'extends' in the plan",
            "tools.tool-bahs": "there is no 'tool-bahs' in tools; did you mean 'tool-bash'?",
            "tools.tool-web.config.x": "there is no 'tool-web' in tools; available: tool-bash",
            "tools.tool-bash.confg": "there is no 'confg' in tools.tool-bash; did you mean",
            "tools.tool-bash.config.timeuot": "there is no 'timeuot' in tools.tool-bash.config; did "
            "you mean 'timeout'?",
            "agents.tester.instrction": "there is no 'instrction' in agents.tester; did you",
            "session..budget": "'session..budget' is not a path",
        }.items()
    ),
    ({"expect": {"error": {"excludes": "x"}}}, "error: the run ended without an error"),
    (
        {"script": script(WRITE), "expect": {"files": {"*.txt": {}}}},
        "files: *.txt was not changed\nfiles: new/out.txt was added",
    ),
    ({"script": ["a", "b"]}, "test: the model was called 1 of 2 times; replies are left over"),
    ({"script": script(READ)[:1]}, "the script has no reply to request 2; add one"),
    ({"tools": {"grep": {"output": "x"}}}, "the plan has no tool 'grep'"),
    (
        {
            "script": script(READ, READ),
            "tools": {"read_file": [{"output": "x"}]},
            "expect": {"failed": ["*"]},
        },
        "test: read_file was called more often than it has results",
    ),
    ({"workdir": "missing"}, "error: cannot copy the workdir"),
    ({"plan": "notes.txt"}, "exit: expected 0, got 78 (configuration)"),
]


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The failures of all tests above, by the name of the test; they run once, as one file."""
    folder = tmp_path_factory.mktemp("plans")
    tests = [{"script": script(), **test} for test in (*MET, *(test for test, _ in NOT_MET))]
    (folder / "notes.txt").write_text("hello")
    file = write_tests(folder, *tests, mode="edits", files={"notes.txt": "hello\n"})
    found: dict[str, str] = {}
    for one in run_tests(file):
        texts = [f"{failure.what}: {' / '.join(failure.lines)}" for failure in one.failures]
        found[one.case.name] = f"error: {one.error.message}" if one.error else "\n".join(texts)
    return found


def test_expectations_that_are_met(failures: dict[str, str]) -> None:
    assert {failures[f"test {number + 1}"] for number in range(len(MET))} == {""}


def test_expectations_that_are_not_met(failures: dict[str, str]) -> None:
    for number, (_, message) in enumerate(NOT_MET, len(MET) + 1):
        assert message in failures[f"test {number}"]
