"""The examples of `amplifier docs testing` are what they say they are."""

import re
from pathlib import Path

from amplifier_kit.plan_tests.cases import find_cases
from amplifier_kit.plan_tests.grammar import TEST_FILE
from amplifier_kit.plan_tests.grammar import test_schema as schema_of_tests
from tests.kit.plan_tests.support import run_tests

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "src/amplifier_kit/plan_tests/README.md").read_text(encoding="utf-8")


def test_the_examples_of_the_page_pass(tmp_path: Path) -> None:
    files = re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in files] == [
        "greeter.yaml",
        "greeter.test.yaml",
        "recorded.test.yaml",
    ]
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    ended = run_tests(tmp_path / "greeter.test.yaml")
    assert [(one.case.name, one.failures) for one in ended if one.status != "passed"] == []
    assert len(ended) == 4
    # There is no recording of a real model; the file itself is valid.
    assert len(find_cases([str(tmp_path / "recorded.test.yaml")])) == 1


def test_the_page_names_every_key() -> None:
    expectations = schema_of_tests()["$defs"]["expect"]["properties"]
    missing = [key for key in (*TEST_FILE.keys, *expectations) if f"`{key}`" not in PAGE]
    assert missing == []
