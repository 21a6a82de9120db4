"""What a document may cost: hostile YAML is refused at once, with its line and the limit."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_app.plan.tree import yaml_reader
from amplifier_app.plan.tree.nodes import MAX_PROBLEMS, MAX_TOTAL_BYTES
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.sources.loading import load
from amplifier_support import files
from tests.support.cli import run_amplifier, succeed

PLAN = "session: {orchestrator: loop-basic, context: context-simple}\n"
VALUE = f"{PLAN}providers:\n- module: provider-mock\n  config:\n    replies: "

HOSTILE: dict[str, tuple[Callable[[int], str | bytes], str]] = {
    # An integer in base 60, of which each digit would multiply a number as long as the rest.
    "sexagesimal": (lambda n: VALUE + ":".join(["59"] * (n // 3)), "5:14: a YAML int of"),
    "sexagesimal-tag": (lambda n: VALUE + '!!int "1' + ":59" * (n // 3) + '"', "a YAML int of"),
    "sexagesimal-float": (
        lambda n: VALUE + '!!float "1' + ":59" * (n // 3) + '"',
        "a YAML float of",
    ),
    "sexagesimal-in-front-matter": (
        lambda n: "---\nname: " + ":".join(["59"] * (n // 3)) + "\n---\nhi\n",
        "2:7: a YAML int of",
    ),
    "integer": (lambda n: VALUE + "9" * n, "a YAML int of"),
    "integers": (lambda n: VALUE + f"[{','.join(['9' * 4000] * (n // 4000))}]", "a YAML int of"),
    "hexadecimal": (lambda n: VALUE + "0x" + "f" * n, "a YAML int of"),
    "values": (lambda n: VALUE + f"[{'a,' * (n // 2)}]", "the plan has more than 50000"),
    "mappings": (lambda n: VALUE + f"[{'{},' * (n // 3)}]", "the plan has more than 50000 values"),
    "keys": (
        lambda n: "".join(f"k{i}: 1\n" for i in range(n // 8)) + VALUE,
        "the plan has more than 50000 values",
    ),
    "duplicate-keys": (lambda n: "k: 1\n" * (n // 5), "duplicate key 'k': first on line 1"),
    "complex-keys": (
        lambda n: "".join(f"? [a, {i}]\n: 1\n" for i in range(n // 16)),
        "a key must be a string",
    ),
    "long-key": (lambda n: f'? "{"k" * n}"\n: 1\n', "unknown key 'kkkkkk"),
    "anchors": (
        lambda n: "".join(f"&k{i} k{i}: *k{i}\n" for i in range(n // 20)),
        "only the first 100 problems are | more than 50000 values",
    ),
    "aliases": (
        lambda n: (
            "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
        ),
        "the plan has more than 50000 values, counting what aliases repeat",
    ),
    "doubled-aliases": (
        lambda n: (
            "a0: &a0 {k: v}\n"
            + "".join(f"a{i}: &a{i} {{a: *a{i - 1}, b: *a{i - 1}}}\n" for i in range(1, 60))
        ),
        "the plan has more than 50000 values, counting what aliases repeat",
    ),
    "repeated-text": (
        lambda n: f"{VALUE}[&a {'x' * (n // 2)}, {','.join(['*a'] * (n // 6))}]",
        "aliases repeat more than 1024 KiB of text",
    ),
    "repeated-mapping": (
        lambda n: f"m: &m {{k: {'x' * (n // 2)}}}\n{VALUE}[{','.join(['*m'] * (n // 6))}]",
        "aliases repeat more than 1024 KiB of text",
    ),
    "merges": (
        lambda n: (
            "base: &b {"
            + ",".join(f"k{i}: 1" for i in range(n // 50))
            + "}\n"
            + "".join(f"m{i}: {{<<: *b}}\n" for i in range(n // 200))
        ),
        "the plan has more than 50000 values",
    ),
    "merge-list": (
        lambda n: (
            "base: &b {"
            + ",".join(f"k{i}: 1" for i in range(n // 200))
            + "}\nx: {<<: ["
            + ",".join(["*b"] * (n // 10))
            + "]}\n"
        ),
        "the plan has more than 50000 values",
    ),
    "nested-lists": (lambda n: VALUE + "[" * n, "nested more than 64 levels deep"),
    "nested-mappings": (lambda n: VALUE + "{a: " * (n // 4), "nested more than 64 levels deep"),
    "nested-dashes": (
        lambda n: "a:\n" + "".join(" " * i + "- \n" for i in range(1, 900)),
        "nested more than 64 levels deep",
    ),
    "documents": (lambda n: "---\n" * (n // 4), "a second document starts here"),
    "directives": (
        lambda n: "".join(f"%TAG !a{i}! x\n" for i in range(n // 20)) + f"---\n{PLAN}",
        "more than 100 directives",
    ),
    "tags": (
        lambda n: VALUE + f"[{','.join(f'!t{i} 1' for i in range(n // 12))}]",
        "the tag !t0 is not allowed",
    ),
    "nested-variables": (
        lambda n: VALUE + "'" + "${A:-" * (n // 6) + "v" + "}" * (n // 6) + "'",
        "variables are nested more than 16 levels deep",
    ),
    "variables": (
        lambda n: VALUE + "'" + "${LONG_VALUE}" * (n // 13) + "'",
        "variables expand to more than 4096 KiB",
    ),
    "repeated-variables": (
        lambda n: VALUE + "[&s '" + "${A:-v}" * 5000 + "'" + ",*s" * (n // 8) + "]\n",
        "variables expand to more than 4096 KiB | aliases repeat more than 1024 KiB of text",
    ),
    "unclosed-variables": (lambda n: VALUE + "'" + "${A:-" * (n // 6) + "'", "nested more than 16"),
    "missing-includes": (
        lambda n: "instruction: |\n" + "".join(f"  @m{i}\n" for i in range(n // 9)),
        "only the first 100 problems are listed",
    ),
    "escaped-includes": (
        lambda n: 'instruction: "' + "@\\x61\\n\\\n " * (n // 12) + '"\n',
        "the included file 'a' does not exist",
    ),
    "includes-of-agents": (
        lambda n: (
            "agents:\n" + "".join(f"  a{i}: {{instruction: '@m{i}'}}\n" for i in range(n // 60))
        ),
        "only the first 100 problems are listed",
    ),
    "large": (lambda n: VALUE + "x" * 1_100_000, "larger than 1024 KiB"),
    "utf-16": (lambda n: PLAN.encode("utf-16"), "byte 0xff is not UTF-8 text"),
    "nul": (lambda n: VALUE + "\0", "the control character U+0000 is not allowed"),
    "nuls": (lambda n: b"\0" * n, "the control character U+0000 is not allowed"),
    "binary": (lambda n: bytes(range(256)) * (n // 256), "is not UTF-8 text"),
}

SIZES = [30_000, pytest.param(700_000, marks=pytest.mark.thorough)]
MANY_VALUES = 200_000
"""The size from which a document of nothing but values or keys has too many of them."""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_documents_are_refused_with_a_line_and_the_limit(
    name: str, size: int, tmp_path: Path
) -> None:
    make, message = HOSTILE[name]
    data = make(max(size, MANY_VALUES) if name in ("values", "mappings", "keys") else size)
    file = tmp_path / ("p.md" if "front-matter" in name else "p.yaml")
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    began = time.process_time()
    with pytest.raises(PlanError) as refused:
        load(plan=str(file), environ={"LONG_VALUE": "x" * 10_000})
    # The bar is 1 s; a busy machine takes longer for everything.
    assert time.process_time() - began < 5
    text = str(refused.value)
    assert any(one in text for one in message.split(" | "))
    assert len(text) < 100_000
    assert file.name in text


_PEAK = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Runs a command from a small process: the peak of a child includes what it was forked from."""


@pytest.mark.parametrize("size", SIZES)
def test_a_hostile_document_needs_little_memory(size: int, tmp_path: Path) -> None:
    worst = 0
    for name, (make, _) in HOSTILE.items():
        if name != "values" and size < 500_000:
            continue
        data = make(max(size, MANY_VALUES))
        (tmp_path / "p.yaml").write_bytes(data if isinstance(data, bytes) else data.encode())
        command = ["-c", "from amplifier_app.cli import main; main()", "plan", "show", "-f"]
        environment = {**os.environ, "LONG_VALUE": "x" * 10_000}
        measured = subprocess.run(
            [sys.executable, "-S", "-c", _PEAK, sys.executable, *command, str(tmp_path / "p.yaml")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            check=True,
        )
        code, peak = map(int, measured.stdout.split()[-2:])
        assert code == 78, name
        worst = max(worst, peak * (1 if sys.platform == "darwin" else 1024))
    assert worst < 100_000_000


@pytest.mark.thorough
def test_the_documents_of_a_plan_share_one_budget(tmp_path: Path) -> None:
    (tmp_path / "text.md").write_text("text\n" * 200_000)
    count = MAX_TOTAL_BYTES // 1_000_000 + 1
    for number in range(count):
        (tmp_path / f"text{number}.md").write_text("text\n" * 200_000)
        (tmp_path / f"a{number}.md").write_text(f"---\nname: a{number}\n---\n@text{number}.md\n")
    agents = [f"./a{number}.md" for number in range(count)]
    (tmp_path / "p.yaml").write_text(f"extends: mock\nagents: {agents}\n".replace("'", ""))
    done = run_amplifier("plan", "show", "-f", "p.yaml", cwd=tmp_path)
    assert done.code == 78
    assert "the documents of the plan are larger than 16 MiB" in done.stderr


def test_only_the_first_of_many_problems_are_listed(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("".join(f"k{number}: 1\n" for number in range(1000)))
    done = run_amplifier("plan", "show", "-f", "p.yaml", cwd=tmp_path)
    assert done.code == 78
    assert done.stderr.startswith(f"amplifier: {MAX_PROBLEMS + 1} problems:\n")
    assert done.stderr.count("unknown key") == MAX_PROBLEMS
    assert "only the first 100 problems are listed" in done.stderr


# -- plans that are not in a file ----------------------------------------------------------

PIPED = f"{PLAN}providers: [{{module: provider-mock, config: {{replies: [an answer]}}}}]\n"


def test_a_plan_comes_from_a_pipe(tmp_path: Path) -> None:
    done = run_amplifier("run", "hi", "-f", "-", stdin=PIPED, cwd=tmp_path)
    assert (done.code, done.stdout) == (0, "an answer\n"), done.stderr
    done = succeed("plan", "check", "-f", "/dev/stdin", stdin=PIPED, cwd=tmp_path)
    done = run_amplifier("plan", "show", "-f", "-", stdin=f"{PIPED}x: 1\n", cwd=tmp_path)
    assert done.code == 78
    assert "stdin:3:1: unknown key 'x'" in done.stderr


def test_a_plan_in_a_pipe_names_files_of_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(PIPED)
    done = run_amplifier("run", "hi", "-f", "-", stdin="extends: ./base.yaml\n", cwd=tmp_path)
    assert (done.code, done.stdout) == (0, "an answer\n"), done.stderr


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("/dev/zero", "larger than 1024 KiB"),
        ("/dev/null", "the plan is empty"),
        pytest.param("fifo", "no data for 10 s", marks=pytest.mark.thorough),
        pytest.param("link-to-fifo.yaml", "no data for 10 s", marks=pytest.mark.thorough),
        (".", "is a directory"),
        ("extends.yaml", "does not exist"),
    ],
)
def test_a_plan_that_is_not_a_file_is_refused(plan: str, message: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link-to-fifo.yaml").symlink_to("fifo")
    (tmp_path / "extends.yaml").write_text("extends: ./fifo\n")
    done = run_amplifier("plan", "show", "-f", plan, cwd=tmp_path)
    assert done.code == (2 if plan == "." else 78)
    assert message in done.stderr


def test_a_fifo_without_a_writer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(files, "STREAM_SECONDS", 0.05)
    with pytest.raises(ConfigError, match="cannot read the plan: no data for"):
        yaml_reader.read_bytes(tmp_path / "fifo", "fifo", "the plan", may_be_stream=True)


def test_settings_in_a_fifo_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "settings.yaml")
    done = run_amplifier("plan", "show", home=tmp_path)
    assert done.code == 78
    assert "it is not a regular file" in done.stderr


def test_a_huge_sparse_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "p.yaml").open("wb") as file:
        file.truncate(1 << 30)
    done = run_amplifier("plan", "show", "-f", "p.yaml", cwd=tmp_path)
    assert done.code == 78
    assert "larger than 1024 KiB" in done.stderr
