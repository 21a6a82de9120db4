"""`@file` lines in instructions."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_app.base.errors import Location
from amplifier_app.plan.documents.document import Origin
from amplifier_app.plan.documents.includes import Includer
from amplifier_app.plan.documents.reading import Reader
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.tree.nodes import Scalar
from amplifier_app.plan.tree.problems import PlanError, Problems
from amplifier_app.sources.loading import load
from amplifier_support.include_lines import escape_includes
from tests.app.plan.conftest import Write

PLAN = "session: {orchestrator: loop-basic, context: context-simple}\n"


def block(*lines: str) -> str:
    return PLAN + "instruction: |\n" + "".join(f"  {line}\n" for line in lines)


def loaded(text: str, write: Write, name: str = "plan.yaml") -> ResolvedPlan:
    write(text, name)
    return load(plan=name, environ={"WHO": "you"})


def test_an_include_line_is_replaced_by_the_file(write: Write, tmp_path: Path) -> None:
    write("Be brief.\n\nBe kind.\n\n", "plans/rules/tone.md")
    write("More.", "more.txt")
    plan = loaded(
        block("First ${WHO}.", "@rules/tone.md", "  @../more.txt  ", "Last $$5."),
        write,
        "plans/plan.yaml",
    )
    assert plan.instruction == "First you.\nBe brief.\n\nBe kind.\nMore.\nLast $5.\n"
    assert plan.files == (
        tmp_path / "plans" / "plan.yaml",
        tmp_path / "plans" / "rules" / "tone.md",
        tmp_path / "more.txt",
    )
    assert str(plan.origin("instruction")) == "plans/plan.yaml:2:14"


def test_included_text_is_literal(write: Write) -> None:
    write("${NOT_SET} $$ ${ \\x {a} $", "x.md")
    plan = loaded(block("@x.md", "${WHO}"), write)
    assert plan.instruction == "${NOT_SET} $$ ${ \\x {a} $\nyou\n"


def test_includes_are_relative_to_the_including_file(write: Write) -> None:
    write("a\n@sub/b.md\n", "a.md")
    write("b\n@../c.md\n", "sub/b.md")
    write("c\n", "c.md")
    assert loaded(block("@a.md", "@c.md"), write).instruction == "a\nb\nc\nc\n"


def test_home_and_absolute_paths(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    write("mine", "me/x.md")
    plan = loaded(block("@~/x.md", f"@{tmp_path}/me/x.md"), write)
    assert plan.instruction == "mine\nmine\n"


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("@@x.md", "@x.md"),
        ("  @@x.md", "  @x.md"),
        ("@@@x.md", "@@x.md"),
        ("mail me@x.md", "mail me@x.md"),
        ("@x.md and more", "@x.md and more"),
        ("- @x.md", "- @x.md"),
        ("@", "@"),
        ("@@", "@@"),
        ("@@ -1,3 +1,4 @@", "@@ -1,3 +1,4 @@"),
    ],
)
def test_lines_that_include_nothing(line: str, meant: str, write: Write) -> None:
    assert loaded(block("x", line), write).instruction == f"x\n{meant}\n"


def test_code_fences_are_not_changed(write: Write) -> None:
    write("in", "x.md")
    lines = ["```python", "@property", "@@x.md", "```", "@x.md", "~~~~", "@y", "~~~", "@z", "~~~~"]
    plan = loaded(block(*lines, "@x.md"), write)
    expected = [*lines[:4], "in", *lines[5:], "in"]
    assert plan.instruction == "\n".join(expected) + "\n"


def test_includes_of_markdown_profiles_and_agents_are_relative_to_them(write: Write) -> None:
    write("shared", "shared.md")
    write("---\ndescription: x\n---\nI am\n@../shared.md\n", "agents/one.md")
    write(f"---\n{PLAN}agents: [agents/*.md]\n---\nWe are ${{NOT_SET}}\n@shared.md\n", "plan.md")
    plan = load(plan="plan.md", environ={})
    assert plan.instruction == "We are ${NOT_SET}\nshared"
    assert plan.mount_plan()["agents"]["one"]["instruction"] == "I am\nshared"


def test_includes_of_inline_agents_are_relative_to_the_plan(write: Write, tmp_path: Path) -> None:
    write("shared", "shared.md")
    plan = loaded(PLAN + 'agents: {one: {instruction: "@shared.md"}}\n', write)
    assert plan.mount_plan()["agents"]["one"]["instruction"] == "shared"
    assert tmp_path / "shared.md" in plan.files


def test_an_instruction_survives_being_written_and_read(write: Write) -> None:
    write("$x\n@@alice\n```\n@dataclass\n```\n@@@b", "x.md")
    plan = loaded(block("@x.md"), write)
    assert plan.instruction == "$x\n@alice\n```\n@dataclass\n```\n@@b\n"
    again = load(plan=write(plan.to_yaml(), "again.yaml"), environ={})
    assert again.instruction == plan.instruction


# -- what is wrong -----------------------------------------------------------------------


def problems_of(text: str, write: Write) -> list[str]:
    with pytest.raises(PlanError) as raised:
        loaded(text, write)
    return [str(p).partition("\n")[0] for p in raised.value.problems]


def test_missing_files_are_reported_with_their_lines(write: Write) -> None:
    write("x\n\n   @gone/too.md\n", "a.md")
    assert problems_of(block("one", "@gone.md", "@a.md", "@."), write) == [
        "plan.yaml:4:3: the included file 'gone.md' does not exist; "
        "to keep the text as is, write '@@gone.md'",
        "plan.yaml:6:3: the included file '.' is not a file; to keep the text as is, write '@@.'",
        "a.md:3:4: the included file 'gone/too.md' does not exist; "
        "to keep the text as is, write '@@gone/too.md'",
    ]


def test_a_circular_include_is_reported_with_its_files(write: Write) -> None:
    write("@b.md", "a.md")
    write("x\n@./a.md", "b.md")
    assert problems_of(block("@a.md"), write) == [
        "b.md:2:1: circular include: a.md → b.md → a.md; remove one of them"
    ]
    assert "circular include: plan.yaml → plan.yaml" in problems_of(block("@plan.yaml"), write)[0]


def test_circular_links_end(write: Write, tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to(".")
    write("@self/a.md", "a.md")
    assert "nested more than 10 levels deep" in problems_of(block("@a.md"), write)[0]


def test_files_that_are_not_text_are_reported(write: Write, tmp_path: Path) -> None:
    (tmp_path / "b.bin").write_bytes(b"ok\n\xff\n")
    (tmp_path / "big").write_bytes(b"x" * (1024 * 1024 + 1))
    os.mkfifo(tmp_path / "pipe")
    assert problems_of(block("@b.bin", "@big", "@pipe", "@/dev/zero"), write) == [
        "b.bin:2: byte 0xff is not UTF-8 text; save the file as UTF-8",
        "big: larger than 1024 KiB",
        "plan.yaml:5:3: the included file 'pipe' is not a file; to keep the text as is, write '@@pipe'",
        "plan.yaml:6:3: the included file '/dev/zero' is not a file; "
        "to keep the text as is, write '@@/dev/zero'",
    ]


def test_a_bomb_of_includes_ends(write: Write) -> None:
    for depth in range(9):
        write(f"@{depth + 1}.md\n" * 40, f"{depth}.md")
    write("x" * 1000, "9.md")
    assert problems_of(block("@0.md"), write) == ["7.md: larger than 1024 KiB with its includes"]


def test_an_unknown_collection_is_reported(write: Write) -> None:
    assert problems_of(block("@foundation:context/a.md"), write) == [
        "plan.yaml:3:3: '@foundation:context/a.md' names a file in an unknown "
        "bundle or collection; to keep the text as is, write '@@foundation:context/a.md'"
    ]
    write(f"---\n{PLAN}---\nHi\n@foundation:context/a.md\n", "plan.md")
    plan = load(plan="plan.md", environ={})
    assert plan.instruction == "Hi\n@foundation:context/a.md"
    assert plan.notes == [
        "plan.md:5:1: '@foundation:context/a.md' names a file in an unknown "
        "bundle or collection; the line is kept as is"
    ]
    again = load(plan=write(plan.to_yaml(), "again.yaml"), environ={})
    assert again.instruction == plan.instruction


_LINES = st.lists(
    st.sampled_from(
        ["", "x", "@a", " @b", "@@c", "@@@d", "@", "@@", "```", "~~~", "````py", "@ e"]
    ),
    max_size=12,
)


@given(_LINES)
def test_any_escaped_text_is_literal(lines: list[str]) -> None:
    text = "\n".join(lines)
    problems = Problems()
    includer = Includer(Origin("f", Path("/nowhere/f")), Reader(problems))
    filled = includer.fill(Scalar(escape_includes(text), Location("f", 1, 1), literal=True))
    assert not problems
    assert filled.value == text
