"""No way to write a command passes a rule that denies it."""

import os
import random
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from amplifier_modules.hooks_approval.config import ApprovalConfig
from amplifier_modules.hooks_approval.rules import Call, Policy, danger_in, judge

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")

CALLS = [
    *("git push", "git push origin main", "git --git-dir x push", "git --git-dir=x push -f"),
    *("git --work-tree x push", "git --namespace n push", "git --exec-path=/x push"),
    *("git -c a.b=c push", "git -C . --no-pager push", "git-push", "git send-pack x"),
    *("git -c alias.x=push x", "git --config-env alias.x=HOME x", "git p", "git --new-option push"),
]
"""What the rule denies. `p` may be an alias."""

HARMLESS = [
    *("git status", "git log --oneline -3", "git --no-pager diff", "git commit -m 'push later'"),
    *("make -j$(nproc) && pytest -q", "for f in *.py; do python $f; done", "python -c 'print(1)'"),
    *("cat > x.md <<'EOF'\n* item\ngit is nice\n$(x)\nEOF", "find . -name '*.py' -newer $x"),
    *("timeout 60 make test", "env A=1 make", "sh x.sh", "cd src && npm test 2>&1 | tail -5"),
    *("if [ -f x ]; then rm x; fi", 'echo "$(date): $x" >> log', "awk '{print $1}' x | sort"),
    *('git add -A && git commit -m "$x"', "command -v git", "xargs -n 1 wc -l < x", "(cd x && ls)"),
]


TRICKS = [
    *("nice nohup stdbuf -oL git p", "env A=b setsid -w git p", "nice find . -exec git p \\;"),
    *("g=git; $g push", '"$(\'case\' x)"; g=git; $g push; : "', "cat <<$'E'\nx\nE\ng=git; $g push"),
    *(
        "cat <<E\nE\\\n\ng=git\n$g push",
        "printf 'git\\npush' | xargs -n2 env",
        "d='. push'; git -C $d log",
    ),
    *("ln -s $PWD/git ./z; ./z push", "hash -p ./git foo; foo push", "IFS=,; x=git,push; $x"),
    *("sh -c '$0 push' git", "timeout --signal=KILL 5 git push", "env -S 'git push'"),
    *("exec 3<<E; sh /dev/fd/3\ngit push\nE", "git submodule foreach 'git push'", "git -Cx push"),
    *(
        "x() { git $1; }; x push",
        "echo git | xargs -IX sh -c 'X push'",
        "eval $(printf '%s ' git push)",
    ),
]
BASH_TRICKS = [
    *("nice nohup stdbuf -oL git p", "env A=b setsid -w git p", "nice find . -exec git p \\;"),
    *(
        "git$'\\x20'push",
        "{git,push}",
        'x=(git push); "${x[@]}"',
        "coproc git push; wait",
        ". <(echo git push)",
    ),
    *(
        "time -p git push",
        "function f { $1 push; }; f git",
        "((x=1<<2))\ng=git; $g push",
        "x='git push'; ${x@P}",
    ),
    *("a[1<<2]=3\ng=git; $g push", "echo $[1<<2]\ng=git; $g push", "trap 'git push' DEBUG; :"),
    *(
        "shopt -s expand_aliases\nalias z='git push'\nz",
        'a="${x:-"}"}"; g=git; $g push',
        "test -v 'a[$(git push)]'",
    ),
    *("mapfile -t a <<< git; ${a[0]} push", "printf -v g git; $g push", "echo >(git push)"),
]


def split_words(text: str, rng: random.Random) -> str:
    """Write the words of a command in another way."""
    first: list[str] = []
    words: list[str] = []
    for number, word in enumerate(text.split()):
        name = f"v{number}"
        half = rng.randint(0, len(word))
        ways: list[Callable[[], str]] = [
            lambda word=word: word,
            lambda word=word: f'"{word}"',
            lambda word=word: f"'{word}'",
            lambda word=word: f"\\{word}" if word[0].isalpha() else word,
            lambda word=word, half=half: f"{word[:half]}''{word[half:]}",
            lambda word=word, half=half: f'{word[:half]}"{word[half:]}"',
            lambda word=word, half=half: f"{word[:half]}\\\n{word[half:]}",
            lambda word=word: f"$(echo {word})",
            lambda word=word: f"`echo {word}`",
            lambda word=word: f'"$(printf %s {word})"',
            lambda word=word: f"${{nothing:-{word}}}",
            lambda word=word: f"${{nothing-'{word}'}}",
        ]
        kind = rng.randint(0, len(ways) + 3)
        if kind < len(ways):
            words.append(ways[kind]())
        elif kind == len(ways):
            first.append(f"{name}={word}")
            words.append(f"${name}")
        elif kind == len(ways) + 1:
            first += [f"{name}={word[:half]}", f"w{name}={word[half:]}"]
            words.append(f"${name}${{w{name}}}")
        elif kind == len(ways) + 2 and word == "git":
            words.append(rng.choice(["g?t", "[g]it", "./git", "*t", "$PWD/git", '"$PWD"/git']))
        else:
            words.append(word)
    between = rng.choice([" ", "  ", "\t", " ", " \\\n "])
    if rng.random() < 0.1 and not any("-" in word[:1] for word in words):
        between = "${IFS}"
    line = between.join(words)
    return "; ".join([*first, line])


def wrap(line: str, rng: random.Random) -> str:
    """Put a command into another one that runs it."""
    quoted, plain = shlex.quote(line), "\n" not in line and ";" not in line
    ways = [
        *(f"sh -c {quoted}", f"eval {quoted}", f"sh -ec {quoted} x", f"echo {quoted} | sh"),
        *(f"printf %s {quoted} | sh -s", f"trap {quoted} EXIT", f"sh <<'E'\n{line}\nE"),
        *(f". /dev/stdin <<'E'\n{line}\nE", f"f() {{ {line}; }}; f", f'x={quoted}; eval "$x"'),
        *(f'x={quoted}; sh -c "$x"', f"if true; then {line}; fi", f"{{ {line}; }}", f"({line})"),
        *(f"while true; do {line}; break; done", f"for i in 1; do {line}; done", f"! {line}"),
        *(f"case a in a) {line};; esac", f"true && {line}", f"false || {line}", f"ls; {line}"),
        *(f"ls\n{line}", f"ls & {line}", f"ls | {line}", f"x=$({line})", f": `echo`; {line}"),
        *(f'echo "$({line})"', f": ${{x:-$({line})}}", f"# it's\n{line}", f"echo 'a # b'; {line}"),
        *(f"cat <<E\n$({line})\nE", f"cat <<'E'; {line}\nit's\nE", f"cat <<-E\n\tx'\n\tE\n{line}"),
        *(f"echo $((1+2)); {line}", f'echo "it\'s"; {line}', f': "${{x:-\'}}"; {line}'),
        *(
            f"env sh -c {quoted}",
            f"find . -maxdepth 0 -exec sh -c {quoted} \\;",
            f"time_=1; {line}",
        ),
        *(f"xargs -I% sh -c {quoted} </dev/null", f"echo x | xargs -I% sh -c {quoted}"),
        f"cat <<\\E\nE x\nE\n{line}",
    ]
    if plain:
        ways += [
            *(f"env {line}", f"env A=b {line}", f"command {line}", f"exec {line}", f"nohup {line}"),
            *(
                f"timeout 5 {line}",
                f"timeout -s KILL 5 {line}",
                f"nice {line}",
                f"nice -n 1 {line}",
            ),
            *(f"A=1 {line}", f">x {line}", f"2>&1 {line}", f"{line} >x 2>&1", f"{line} &"),
            *(f'set -- {line}; "$@"', f'f() {{ "$@"; }}; f {line}', f"sudo -u me {line}"),
            *(
                f"echo origin | xargs {line}",
                f"xargs -n 1 {line} <x",
                f"find . -maxdepth 0 -exec {line} \\;",
            ),
            *(
                f"env -u A {line}",
                f'env -i PATH="$PATH" LOG="$LOG" CASE=$CASE {line}',
                f"stdbuf -oL {line}",
            ),
            *(f"setsid -w {line}", f"x=; ${{x}} {line}", f"alias a={quoted}\na"),
        ]
    return rng.choice(ways)


def disguise(rng: random.Random) -> str:
    line = rng.choice([*CALLS, *CALLS, *HARMLESS])
    if line in CALLS:
        line = split_words(line, rng)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        line = wrap(line, rng)
    return line


def stand_ins(folder: Path) -> None:
    """Programs that record how they were called, first on PATH and in the working directory."""
    record = '#!/bin/sh\n{ printf \'%s\' "$CASE"; printf \'\\037%s\' "${0##*/}" "$@"; echo; } >> "$LOG"\n'
    for place in ("bin", "work"):
        (folder / place).mkdir(exist_ok=True)
        for name in ("git", "git-push"):
            (folder / place / name).write_text(record)
            (folder / place / name).chmod(0o755)
    (folder / "bin/sudo").write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    for name in ("make", "pytest", "npm", "python"):
        (folder / "bin" / name).write_text("#!/bin/sh\n")
    for file in (folder / "bin").iterdir():
        file.chmod(0o755)
    (folder / "work/x").write_text("origin\n")


def run_all(lines: list[str], folder: Path) -> set[int]:
    """Run each line in a shell of its own; return the numbers of those that pushed."""
    log = folder / "log"
    log.write_text("")
    script = "".join(
        f"(CASE={number}; export CASE; eval {shlex.quote(line)})\n"
        for number, line in enumerate(lines)
    )
    (folder / "script").write_text(script)
    none = subprocess.DEVNULL
    environment = {"PATH": f"{folder}/bin:/usr/bin:/bin", "LOG": str(log), "HOME": str(folder)}
    argv = ["sh", str(folder / "script")]
    subprocess.run(
        argv,
        cwd=folder / "work",
        env=environment,
        stdin=none,
        stdout=none,
        stderr=none,
        check=False,
    )
    calls = [entry.split("\x1f") for entry in log.read_text().splitlines()]
    return {int(case) for case, *words in calls if case.isdigit() and pushes(words)}


def pushes(words: list[str]) -> bool:
    if words[0] == "git-push":
        return True
    return any(word in ("push", "send-pack", "p") or "alias." in word for word in words[1:])


@pytest.mark.timeout(900)
def test_no_disguise_passes_a_rule_that_denies(
    tmp_path: Path, scale: Callable[[int, int], int]
) -> None:
    rng = random.Random(scale(7, 20261125))
    stand_ins(tmp_path)
    work = str(tmp_path / "work")
    rule = {"action": "deny", "tool": "bash", "command": "git push *"}
    policies = [ApprovalConfig.model_validate({"rules": rules}) for rules in ([rule], [])]

    def is_free(line: str) -> bool:
        call = Call("bash", {"command": line}, work)
        return any(judge(Policy(one), call, "auto").action == "allow" for one in policies)

    lines = [disguise(rng) for _ in range(scale(500, 100_000))]
    sample = lines[:500]
    reached = run_all(sample, tmp_path)
    assert len(reached) > 250
    assert not [sample[number] for number in sorted(reached) if is_free(sample[number])]
    free = [line for line in lines[500:] if is_free(line)]
    assert not [free[number] for number in run_all(free, tmp_path)]


def test_no_trick_passes_a_rule_that_denies() -> None:
    rule = {"action": "deny", "tool": "bash", "command": "git push *"}
    policy = Policy(ApprovalConfig.model_validate({"rules": [rule]}))
    for line in (*TRICKS, *BASH_TRICKS, *(f"bash -c {shlex.quote(line)}" for line in BASH_TRICKS)):
        call = Call("bash", {"command": line}, "/")
        assert judge(policy, call, "auto").action == "deny", line


def test_harmless_commands_pass_a_rule_that_denies_others() -> None:
    rule = {"action": "deny", "tool": "bash", "command": "git push *"}
    policy = Policy(ApprovalConfig.model_validate({"rules": [rule]}))
    for line in HARMLESS:
        call = Call("bash", {"command": line}, "/")
        assert judge(policy, call, "auto").action == "allow", line
        assert danger_in(line) is None, line
