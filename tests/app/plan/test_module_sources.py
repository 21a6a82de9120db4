"""Every module that a plan can come to use, with its source as it may stand in a lock."""

from pathlib import Path

import pytest

from amplifier_app.plan.modules import sourced_modules, written_override, written_value
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.sources.loading import load
from tests.app.plan.conftest import Write

PLAN = """\
session:
  orchestrator: {module: loop-basic, source: "git+https://me:${TOKEN}@example.com/loop@main"}
  context: context-simple
providers:
  - module: provider-mock
    source: ./mock
  - module: provider-far
    when: {env: FAR_KEY}
    source: ${FAR:-git+https://example.com/far}
    config: {key: "${FAR_KEY}"}
tools:
  - module: tool-one
    source: ../shared/one
  - module: tool-two
    source: ${TOOLS:-/opt/tools}/two
  - module: tool-three
    source: git+https://example.com/three@${REF:-main}
  - module: tool-six
    source: "./six.whl#sha256=%s"
  - module: tool-four
    source: git+https://user:hunter2@example.com/four
agents:
  helper:
    tools:
      - module: tool-five
        source: ../five
    providers:
      - module: provider-helper
        when: {env: HELPER_KEY}
        source: ./helper
""" % ("0" * 64)


def test_sources_are_reported_as_written_without_passwords(write: Write, tmp_path: Path) -> None:
    file = write(PLAN, "plans/plan.yaml")
    plan = load(plan=file, environ={"TOKEN": "s3cret"})
    found = {one.module: one for one in sourced_modules(plan)}
    assert {name: one.written for name, one in found.items()} == {
        "loop-basic": "git+https://me:***@example.com/loop@main",
        "context-simple": None,
        "provider-mock": "./mock",
        "provider-far": "git+https://example.com/far",
        "tool-one": "../shared/one",
        "tool-two": "${TOOLS:-/opt/tools}/two",
        "tool-three": "git+https://example.com/three@main",
        "tool-six": f"./six.whl#sha256={'0' * 64}",
        "tool-four": "git+https://user:***@example.com/four",
        "tool-five": "../five",
        "provider-helper": "./helper",
    }
    assert found["tool-one"].source == str(tmp_path / "shared" / "one")
    assert found["tool-two"].source == "/opt/tools/two"
    assert found["loop-basic"].source == "git+https://me:s3cret@example.com/loop@main"
    left_out = {name for name, one in found.items() if one.left_out}
    assert left_out == {"provider-far", "provider-helper"}
    assert found["tool-five"].source == str(tmp_path / "five")
    assert str(found["tool-one"].at) == f"{file}:13:13"


def test_a_source_from_the_command_line_is_reported(write: Write) -> None:
    file = write(PLAN, "plan.yaml")
    sets = ["tools.tool-one.source=git+https://example.com/other"]
    plan = load(plan=file, sets=sets, environ={"TOKEN": "x"})
    one = next(one for one in sourced_modules(plan) if one.module == "tool-one")
    assert one.written == "git+https://example.com/other"


def test_the_source_of_a_skipped_entry_is_checked(write: Write) -> None:
    file = write(PLAN.replace("${FAR:-git+https://example.com/far}", "${FAR_SOURCE}"), "plan.yaml")
    plan = load(plan=file, environ={"TOKEN": "x"})
    with pytest.raises(PlanError, match="FAR_SOURCE"):
        sourced_modules(plan)


def test_a_source_with_an_unset_variable_is_an_error(write: Write) -> None:
    file = write(PLAN, "plan.yaml")
    plan = load(plan=file, environ={}, keep_unset=True)
    with pytest.raises(PlanError, match="TOKEN is not set"):
        sourced_modules(plan)


def test_overrides_are_reported_as_written_in_settings(write: Write, tmp_path: Path) -> None:
    write("sources: {tool-one: ../dev/one, tool-two: git+https://example.com/two}\n",
          "home/settings.yaml")  # fmt: skip
    plan = load(plan=write(PLAN, "plan.yaml"), environ={"TOKEN": "x"})
    assert written_override(plan, "tool-one") == "../dev/one"
    assert written_override(plan, "tool-two") == "git+https://example.com/two"
    assert written_override(plan, "tool-three") is None
    assert written_value("git+https://user:hunter2@x/y") == "git+https://user:***@x/y"
