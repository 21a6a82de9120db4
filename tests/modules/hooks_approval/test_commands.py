"""Which commands are plain, and which of them a pattern means."""

import pytest

from amplifier_modules.hooks_approval.commands import Unclear, matches, may_run, split_words

TRICKY = [
    "",
    "   ",
    "git status; rm -rf x",
    "git status;rm x",
    "git status && rm x",
    "git status || rm x",
    "git status & rm x",
    "git status &",
    "git status | sh",
    "git status |& sh",
    "git status $(rm x)",
    "git status `rm x`",
    'git status "$(rm x)"',
    'git status "`rm x`"',
    "git status $HOME",
    "git status ${IFS}x",
    'git status "$X"',
    "git status $'\\x3b'",
    "git status $((1+1))",
    "git status > x",
    "git status >> x",
    "git status 2>&1",
    "git status &> x",
    "git status < x",
    "git status << E",
    "git status <(rm x)",
    "git status >(rm x)",
    "git status\nrm x",
    "git status\\\nrm x",
    "git status\r\nrm x",
    "git status\x00rm x",
    "git status \x1b[2K",
    "git status \u202erm",
    "git status \u200bx",
    "git status\u00a0x",
    "git status \u2028x",
    "git status \udcff",
    "(git status)",
    "{ git status; }",
    "! git status",
    "GIT_PAGER=evil git status",
    "A=1",
    "A+=1 git status",
    "a[0]=1 git status",
    "env git status",
    "/usr/bin/env git status",
    "sudo git status",
    "doas git status",
    "xargs git status",
    "sh -c 'git status'",
    "bash -c 'git status'",
    "/bin/sh -c 'rm x'",
    "'sh' -c 'rm x'",
    "s\\h -c 'rm x'",
    's"h" -c x',
    "nohup git status",
    "timeout 5 rm x",
    "time git status",
    "exec git status",
    "eval 'git status'",
    "command git status",
    "builtin eval x",
    "source x",
    ". x",
    "trap 'rm x' EXIT",
    "if true",
    "find . -exec rm x \\;",
    "find . -execdir rm x ';'",
    "find . -ok rm x '+'",
    "test -v 'a[$(rm x)]'",
    "printf -v 'a[$(rm x)]' x",
    "git status *",
    "git status ?",
    "git status [a-z]",
    "git status {a,b}",
    "git status ~root",
    "git status --x=~/y",
    "git status # rm",
    "git status 'x",
    'git status "x',
    "git status \\",
    "git status 'a'\\''b",
]


def test_ambiguous_commands_are_unclear() -> None:
    for command in TRICKY:
        with pytest.raises(Unclear, match=r"^(it|'|a quote|the shell) ?"):
            pytest.fail(f"{command!r} is split into {split_words(command)}")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("git status", ["git", "status"]),
        ("  git\t status ", ["git", "status"]),
        ("git commit -m 'a; b && c $(d)'", ["git", "commit", "-m", "a; b && c $(d)"]),
        ('git commit -m "it\'s \\"so\\" \\n"', ["git", "commit", "-m", 'it\'s "so" \\n']),
        ("grep foo\\;bar x", ["grep", "foo;bar", "x"]),
        ("git show HEAD~1 a#b", ["git", "show", "HEAD~1", "a#b"]),
        ("x '' y", ["x", "", "y"]),
        ("echo höhe", ["echo", "höhe"]),
        ("find . -name '*.py'", ["find", ".", "-name", "*.py"]),
    ],
)
def test_a_plain_command_is_its_words(command: str, words: list[str]) -> None:
    assert split_words(command) == words


@pytest.mark.parametrize(
    ("command", "pattern", "expected"),
    [
        ("git status", "git status", True),
        ("git status -s", "git status", False),
        ("git status", "git status *", True),
        ("git status -s x", "git status *", True),
        ("git statusx", "git status *", False),
        ("gitx status", "git *", False),
        ("/tmp/git status", "git status", False),
        ("./git status", "git *", False),
        ("'git status'", "git status", False),
        ("make test-unit", "make test-*", True),
        ("make test-unit install", "make test-*", False),
        ("anything at all", "*", True),
        ("GIT status", "git status", False),
    ],
)
def test_patterns_go_by_words(command: str, pattern: str, expected: bool) -> None:
    assert matches(split_words(command), pattern) is expected


@pytest.mark.parametrize(
    ("command", "pattern"),
    [
        ("ls; rm -rf x", "rm *"),
        ("ls;rm -rf x", "rm -rf *"),
        ("sudo /bin/rm x", "rm *"),
        ("sh -c 'rm x'", "rm *"),
        ("echo $(rm x)", "rm *"),
        ("cd x && git push --force", "git push *"),
        ("A=1 rm x", "rm *"),
        ("x\nrm y", "rm *"),
    ],
)
def test_restricting_rules_look_inside_compound_commands(command: str, pattern: str) -> None:
    assert may_run(command, pattern)
    assert not may_run(command, "shutdown *")
