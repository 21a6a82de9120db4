"""The YAML of the pages: a plan that a reader copies has no fault but the files, variables and hosts that only the reader has."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.sources.loading import load

SOURCES = Path(__file__).parents[3] / "src"
SECTIONS = {"extends", "session", "providers", "tools", "hooks", "agents", "approvals", "checks"}
OF_THE_READER = re.compile(
    r"does not exist|is not set|no agent file matches|is not a plugin|unknown agent|HOST|example\.com"
)


def plans() -> list[Any]:
    """The blocks that are plans or parts of one, with the page and the line of each."""
    found: list[Any] = []
    for page in [SOURCES.parent / "README.md", *sorted(SOURCES.rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for block in re.finditer(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            data = yaml.safe_load(block[1])
            # A file of settings and one of tests have other keys.
            if data.keys() & SECTIONS and not data.keys() & {"profile", "plan", "bundle"}:
                line = text.count("\n", 0, block.start()) + 1
                name = f"{page.relative_to(SOURCES.parent)}:{line}"
                found.append(pytest.param({"extends": "mock", **data}, id=name))
    return found


@pytest.mark.parametrize("data", plans())
def test_a_plan_of_a_page_has_no_fault_of_its_own(data: Any, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    messages: list[str] = []
    try:
        load(plan=file, keep_unset=True)
    except PlanError as error:
        messages = [problem.message for problem in error.problems]
    assert [message for message in messages if not OF_THE_READER.search(message)] == []
