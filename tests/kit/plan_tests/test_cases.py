"""Test files: which are found, what they contain, and their problems with lines."""

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from amplifier_app.base.errors import UsageError
from amplifier_app.plan.tree import nodes
from amplifier_app.plan.tree.nodes import plain_data
from amplifier_app.plan.tree.problems import PlanError
from amplifier_kit.plan_tests.cases import Case, find_cases
from amplifier_kit.plan_tests.grammar import test_schema as schema_of_tests

EXAMPLE = Path(__file__).parents[3] / "examples" / "testing" / "review.test.yaml"

MINIMAL = "plan: plan.yaml\nprompt: hi\nscript: [hello]\n"


def cases_in(folder: Path, text: str) -> list[Case]:
    (folder / "a.test.yaml").write_text(text, encoding="utf-8")
    for name in ("plan.yaml", "p.yaml"):
        (folder / name).touch()
    return find_cases([str(folder)])


def test_a_file_without_a_list_is_one_test_named_after_it(tmp_path: Path) -> None:
    (case,) = cases_in(tmp_path, MINIMAL)
    assert (case.name, case.text("prompt"), case.at.line) == ("a", "hi", 1)


def test_a_test_replaces_settings_of_its_file_and_merges_mappings(tmp_path: Path) -> None:
    text = (
        "plan: p.yaml\nprompt: all\nscript: [x]\nfiles: {a: A, b: B}\nexpect: {exit: 0, steps: 1}\n"
        "tests:\n"
        "  - {name: first}\n"
        "  - {name: second, prompt: own, recording: r.jsonl, files: {b: BB}, expect: {exit: 5}}\n"
        "  - {name: third, profile: mock}\n"
    )
    first, second, third = (plain_data(case.settings) for case in cases_in(tmp_path, text))
    assert first["prompt"] == "all"
    assert first["script"] == ["x"]
    assert second["prompt"] == "own"
    assert "script" not in second
    assert second["files"] == {"a": "A", "b": "BB"}
    assert second["expect"] == {"exit": 5, "steps": 1}
    assert "plan" not in third
    assert third["profile"] == "mock"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "the test file is empty; start with 'plan: FILE'"),
        ("prompt: [\n", 2, "not valid YAML"),
        ("prompt: hi\nscript: [x]\n", 1, "has no plan; set 'plan' or 'profile'"),
        (MINIMAL + "profile: mock\n", 4, "has both 'plan' and 'profile'; keep one"),
        ("plan: p.yaml\nprompt: hi\n", 1, "has no script; set 'script' or 'recording'"),
        ("plan: p.yaml\nscript: [x]\n", 1, "has no prompt"),
        ("plan: nope.yaml\nprompt: hi\nscript: [x]\n", 1, "the plan 'nope.yaml' does not exist"),
        ("profile: mokc\nprompt: hi\nscript: [x]\n", 1, "unknown profile 'mokc'; did you mean"),
        (MINIMAL + "promt: x\n", 4, "unknown key 'promt' in the test file; did you mean 'prompt'?"),
        (MINIMAL + "tests: []\n", 4, "the file has no tests"),
        (MINIMAL + "tests:\n  - {prompt: x}\n", 5, "the test has no name"),
        (MINIMAL + "tests:\n  - {name: x}\n  - {name: x}\n", 6, "two tests are named 'x'"),
        (MINIMAL + "expect:\n  anwser: x\n", 5, "did you mean 'answer'?"),
        (MINIMAL + "expect: {files: }\n", 4, "'expect.files' is empty"),
        (MINIMAL + "expect: {answer: {contains: []}}\n", 4, "'expect.answer.contains' is empty"),
        (MINIMAL + "expect: {answer: {matches: ''}}\n", 4, "'expect.answer.matches' is empty"),
        (MINIMAL + "expect: {answer: {}}\n", 4, "'expect.answer'"),
        (MINIMAL + "expect: {calls: {exclude: []}}\n", 4, "'expect.calls.exclude' is empty"),
        (MINIMAL + "expect: {plan: {}}\n", 4, "'expect.plan' is empty"),
        (MINIMAL + "expect: {steps: {at_most: null}}\n", 4, "'expect.steps.at_most' is empty"),
        (MINIMAL + "expect: {cost: {at_most: .inf}}\n", 4, "expected a number, 0 or greater"),
        (MINIMAL + "expect: {answer: 42}\n", 4, "'expect.answer' is a number; expected a string"),
        (MINIMAL + "expect: {answer: {matches: '('}}\n", 4, "is not a regular expression"),
        (MINIMAL + "expect: {calls: [{a: {}, b: {}}]}\n", 4, "expected a tool, or one 'TOOL:"),
        (MINIMAL + "expect: {calls: [bash: ls]}\n", 4, "expected the input as a mapping"),
        (MINIMAL + "expect: {steps: {at_mots: 3}}\n", 4, "did you mean 'at_most'?"),
        (MINIMAL + "expect: {cost: -1}\n", 4, "expected a number, 0 or greater"),
        (MINIMAL + "approve: yes please\n", 4, "expected one of deny, allow, policy"),
        (MINIMAL + "files: {../x: a}\n", 4, "'../x' is not a file in the working directory"),
        (MINIMAL + "files: {/etc/x: a}\n", 4, "is not a file in the working directory"),
        (MINIMAL + "files: {a/: x}\n", 4, "'a/' is not a file in the working directory"),
        (MINIMAL + "expect: {files: {./a: null}}\n", 4, "'./a' is not a file in the working"),
        (MINIMAL + "expect: {error: ''}\n", 4, "'expect.error' is empty"),
        (MINIMAL + 'workdir: "a\\0b"\n', 4, "'workdir' has line breaks or control characters"),
        (MINIMAL + 'tests: [{name: "a\\nb"}]\n', 4, "'tests.1.name' has line breaks or control"),
        (MINIMAL + "tools: {bash: recorded}\n", 4, "has no recording to use here"),
        (MINIMAL + "match: all\n", 4, "has no recording to use here"),
        (MINIMAL + "tools: {bash: stub}\n", 4, "'{output: …}'"),
        ("plan: p\nprompt: hi\nscript:\n  - {txt: x}\n", 4, "did you mean 'text'?"),
        ("plan: p\nprompt: hi\nscript:\n  - error: {kind: x}\n", 4, "'kind'"),
    ],
)
def test_problems_name_the_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    with pytest.raises(PlanError) as caught:
        cases_in(tmp_path, text)
    found = [(one.at.line, one.body()) for one in caught.value.problems]
    assert any(at == line and problem in body for at, body in found), found


def test_the_problems_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.test.yaml").write_text("nonsense: 1\n")
    with pytest.raises(PlanError) as caught:
        find_cases([str(tmp_path)])
    assert {Path(one.at.file).name for one in caught.value.problems} == {
        "a.test.yaml",
        "b.test.yaml",
    }


def test_the_limits_of_a_document_are_those_of_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "MAX_VALUES", 10)
    (tmp_path / "plan.yaml").touch()
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.test.yaml").write_text(MINIMAL)
    assert len(find_cases([str(tmp_path)])) == 3
    (tmp_path / "d.test.yaml").write_text(MINIMAL + f"expect: {{calls: {['bash'] * 9}}}\n")
    with pytest.raises(PlanError, match=r"d\.test\.yaml:4:.*more than 50000 values"):
        find_cases([str(tmp_path)])


def test_tests_are_selected_by_file_name_and_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    two = MINIMAL + "tests: [{name: reads}, {name: writes a lot}]\n"
    plans = ("plan.yaml", "below/plan.yaml")
    for file in ("one.test.yaml", "below/two.test.yml", ".hidden/no.test.yaml", *plans):
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text(two)

    def ids(*targets: str, keyword: str | None = None) -> list[str]:
        return [case.id for case in find_cases(targets, keyword)]

    first = ["one.test.yaml::reads", "one.test.yaml::writes a lot"]
    second = ["below/two.test.yml::reads", "below/two.test.yml::writes a lot"]
    assert ids() == [*first, *second]
    assert ids("below") == second
    assert ids("one.test.yaml::writes a lot", "below/two.test.yml") == [first[1], *second]
    assert ids("one.test.yaml", "one.test.yaml::reads") == first
    Path("below/two.test.yml").rename("odd::two.test.yml")
    second = ["odd::two.test.yml::reads", "odd::two.test.yml::writes a lot"]
    assert ids("odd::two.test.yml") == second
    assert ids(keyword="WRITES") == [second[1], first[1]]
    assert ids(keyword="two.test") == second


@pytest.mark.parametrize(
    ("targets", "keyword", "message"),
    [
        (["missing"], None, "missing does not exist"),
        (["plan.yaml"], None, "plan.yaml is not a test file"),
        (["a.test.yaml::reeds"], None, "has no test 'reeds'"),
        (["a.test.yaml"], "nothing", "no tests in a.test.yaml whose name contains 'nothing'"),
        (["empty"], None, "there are no tests in the folder empty"),
    ],
)
def test_a_selection_without_tests_is_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    targets: list[str],
    keyword: str | None,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("plan.yaml").touch()
    Path("a.test.yaml").write_text(MINIMAL + "tests: [{name: reads}]\n")
    with pytest.raises(UsageError, match=message):
        find_cases(targets, keyword)


def test_the_schema_accepts_the_example_and_refuses_mistakes() -> None:
    schema = schema_of_tests()
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert list(validator.iter_errors(yaml.safe_load(EXAMPLE.read_text()))) == []
    for wrong in (
        {"promt": "x"},
        {"tests": [{"expect": {"anwser": "x"}}]},
        {"expect": {"calls": "bash"}},
        {"script": [{"txt": "x"}]},
    ):
        assert list(validator.iter_errors(wrong)), wrong
    # Printed as it is.
    assert json.loads(json.dumps(schema)) == schema
