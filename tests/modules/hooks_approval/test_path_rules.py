"""Rules for paths hold for commands: by what they name, and by what the sandbox hides."""

import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from amplifier_modules.hooks_approval.config import ApprovalConfig, Mode
from amplifier_modules.hooks_approval.rules import Call, Policy, judge
from tests.support.cli import run_amplifier
from tests.support.plans import mock_plan

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")

MODES: tuple[Mode, ...] = ("ask", "read-only")
SECRET = "S3CR3T"
PATHS = [
    *("secrets/k", "./secrets/k", "secrets//k", "src/../secrets/k", "link/k", "src/up/secrets/k"),
    *(
        "s*/k",
        "secret?/k",
        "[s]ecrets/k",
        "*/k",
        "*/*",
        "{secrets,src}/k",
        "{src,s*}/k",
        "s{e,x}crets/k",
    ),
    *('"secrets"/k', "sec''rets/k", "se\\crets/k", "$PWD/secrets/k", "BASE/secrets/k", "BASE/s*/k"),
    *(
        "../outside",
        "BASE/../outside",
        "src/../../outside",
        "out",
        "../out*",
        ".*/outside",
        "{.,..}/outside",
    ),
    *("~/outside", "src/a", "a", "*.txt", "nothing"),
]
READERS = [
    *("cat %", "cat -- %", "head -n1 %", "tail -n +1 %", "nl %", "tac %", "sort %", "cut -c1-9 %"),
    *(
        "grep . %",
        "grep -e . %",
        "grep -rh '' %",
        "diff a %",
        "paste a %",
        "cat a % | head",
        "rev % | rev",
    ),
    *(
        "cat <%",
        "cat a && cat %",
        "cat nothing || cat %",
        "cd src && cat ../%",
        "cd src; cat %; cat ../%",
    ),
    *(
        "cd secrets && cat k",
        "cd s* && cat k",
        "cd link; cat k",
        "cd .. && cat outside",
        "cd && cat outside",
    ),
    *(
        "grep -rh '' .",
        "grep -Rh '' src",
        "grep -dh '' .",
        "grep --directories=recurse '' .",
        "rg ''",
    ),
    *(
        "grep '' -rh .",
        "grep -nf % %",
        "sort --files0-from=%",
        "diff -r src secrets",
        "comm a %",
        "fold %",
    ),
    *(
        "git show HEAD:secrets/k",
        "git show HEAD:./secrets/k",
        "git log -p",
        "git show",
        "git grep -h '' HEAD",
    ),
    *(
        "git diff --no-index a %",
        "git blame %",
        "git cat-file -p HEAD:secrets/k",
        "git -C . show",
        "git log -L1,1:secrets/k",
    ),
    *("wc -l %", "ls %", "find . -name k", "git status", "git status -vv", "git log --oneline"),
]


def make_files(folder: Path) -> Path:
    work = folder / "work"
    for name in ("secrets", "src"):
        (work / name).mkdir(parents=True)
    for file in ("work/secrets/k", "outside"):
        (folder / file).write_text(f"{SECRET}\n")
    for file in ("a", "src/a", "notes.txt"):
        (work / file).write_text("text\n")
    (work / "link").symlink_to("secrets")
    (work / "src/up").symlink_to("..")
    (work / "out").symlink_to("../outside")
    subprocess.run(["git", "init", "-q", work], check=True)
    subprocess.run(["git", "-C", work, "add", "."], check=True)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", work, *who, "commit", "-qm", "x"], check=True)
    return work


def run_all(lines: list[str], folder: Path, work: Path) -> list[str]:
    """Run each line in a shell of its own; return what it writes."""
    outputs = folder / "outputs"
    outputs.mkdir(exist_ok=True)
    script = "".join(
        f"(eval {shlex.quote(line)}) >{outputs}/{number} 2>/dev/null </dev/null\n"
        for number, line in enumerate(lines)
    )
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    (folder / "script").write_text(script)
    argv = [shutil.which("bash") or "sh", str(folder / "script")]
    subprocess.run(argv, cwd=work, env=environment, check=False)
    return [(outputs / str(n)).read_text(errors="replace") for n in range(len(lines))]


@pytest.mark.timeout(900)
def test_no_command_that_reads_reaches_what_a_rule_denies(
    tmp_path: Path, scale: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = make_files(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    rng = random.Random(3)
    rules = [{"action": "deny", "path": "secrets/**"}]
    policy = Policy(ApprovalConfig.model_validate({"rules": rules}))
    lines = list(READERS)
    for _ in range(scale(100, 10_000)):
        line = rng.choice(READERS)
        while "%" in line:
            line = line.replace("%", rng.choice(PATHS).replace("BASE", str(work)), 1)
        lines.append(f"{line} | cat" if rng.random() < 0.1 else line)
    allowed = 0
    reached = 0
    for start in range(0, len(lines), 2000):
        batch = lines[start : start + 2000]
        for line, output in zip(batch, run_all(batch, tmp_path, work), strict=True):
            reached += SECRET in output
            for is_sandboxed in (False, True):
                call = Call("bash", {"command": line}, str(work), is_sandboxed=is_sandboxed)
                free = any(judge(policy, call, mode).action == "allow" for mode in MODES)
                allowed += free
                # What the sandbox hides is empty.
                hidden = is_sandboxed and "git" not in line and "outside" not in line
                assert not free or SECRET not in output or hidden, line
    assert reached > len(lines) // 5
    assert allowed > len(lines) // 50


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cat src/a", "allow"),
        ("ls *.txt src/{a,b}", "allow"),
        ("grep -rn '/users' src | head", "allow"),
        ("cd src && cat a", "allow"),
        ("git log --oneline", "allow"),
        ("git commit -m 'about secrets/k'", "ask"),
        ("cat /etc/passwd", "ask"),
        ("cat ../outside", "ask"),
        ("cat secrets/k", "deny"),
        ("cp secrets/k x", "deny"),
        ("python x.py <secrets/k", "deny"),
        ("sh -c 'cat secrets/k'", "deny"),
        ("git show HEAD:secrets/k", "deny"),
        ("git log -p", "ask"),
        ("grep -r x .", "ask"),
    ],
)
def test_a_path_rule_holds_for_the_words_of_a_command(
    tmp_path: Path, command: str, expected: str
) -> None:
    work = make_files(tmp_path)
    (work / "out").unlink()
    rules = [{"action": "deny", "path": "secrets/**"}]
    policy = Policy(ApprovalConfig.model_validate({"rules": rules}))
    call = Call("bash", {"command": command}, str(work), is_sandboxed="users" in command)
    assert judge(policy, call, "ask").action == expected


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the sandbox of Linux")
def test_the_sandbox_hides_what_a_rule_denies(tmp_path: Path) -> None:
    work = make_files(tmp_path)
    shutil.rmtree(work / ".git")
    (work / "src/key.pem").write_text(f"{SECRET}\n")
    commands = [
        *(
            "a=sec; ln -s $a'rets' z; cat z/k",
            "cp -r s?crets y; cat y/k",
            "tar cf - sec* | tar xOf -",
        ),
        *(
            "cat link/k",
            "find . -type f | xargs cat",
            "cat src/key.p*",
            "echo x > src/new; cat src/new",
        ),
    ]
    calls = [
        {"name": "bash", "input": {"command": command}, "id": f"c{number}"}
        for number, command in enumerate(commands)
    ]
    plan = mock_plan(
        tmp_path,
        [*({"tool_calls": [call]} for call in calls), "done"],
        tools=[{"module": "tool-bash"}],
        hooks=[{"module": "hooks-approval", "config": {"mode": "auto", "default": "ask"}}],
        approvals=[{"action": "deny", "path": ["secrets/**", "**/*.pem"]}],
    )
    done = run_amplifier("run", "-f", plan, "go", "--output", "stream-json", cwd=work)
    assert SECRET not in done.stdout, done.stdout
    assert '"x\\n' in done.stdout or "x\\n[exit code 0]" in done.stdout, done.stdout
    for sandbox, words in (("workspace", "not covered: copies in git"), ("off", "can reach what")):
        checked = run_amplifier(
            "plan", "check", "-f", plan, "--set", f"session.sandbox={sandbox}", cwd=work
        )
        assert words in checked.stdout + checked.stderr, checked.stdout + checked.stderr
