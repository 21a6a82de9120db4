"""Find the programs that a shell command may run, with their arguments.

For rules that ask or deny, and for the mode `auto`: in doubt a command runs something. It is read as
a shell reads it, also in `$(…)`, strings that a shell is given as code and, for what they contain
literally, here-documents and other arguments. What is known only when the command runs, such as
`$x push`, is `UNKNOWN`, which matches everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from amplifier_support.text import lazy_pattern

UNKNOWN = "\0"
"""In a word: the shell puts any number of words here. As a whole: anything."""

PART = "\1"
"""In a word: the shell puts any text here."""

_MAX_DEPTH = 8
_MAX_WORDS = 200
_SEPARATORS = frozenset(";&|()\n")
_ASSIGNMENT = lazy_pattern(r"\w+(\[[^\]]*\])?\+?=")
_CODE = lazy_pattern(r"""[\s;&|<>()$`'"\\]""")
_EXPANDED = frozenset("*?[{")
_WORDS_BEFORE = "{ } ! if then elif else fi while until do done coproc"
_BEFORE_COMMAND = frozenset(_WORDS_BEFORE.split())
_SHELL_NAMES = "sh bash dash zsh ksh mksh ash fish csh tcsh rbash pwsh"
_SHELLS = frozenset(_SHELL_NAMES.split())
_BUILT_INS = "eval source . trap alias hash enable bind compgen complete fc mapfile"
_READ_AS_CODE = frozenset(_BUILT_INS.split())
_WITH_VALUE: dict[str, str] = {
    "env": "-u -C",
    "timeout": "-s -k",
    "nice": "-n",
    "ionice": "-c -n",
    "sudo": "-u -g",
    "xargs": "-n -P -I -L -s -d -a -E",
    "stdbuf": "-i -o -e",
    "exec": "-a",
    "time": "-f -o",
    **dict.fromkeys(("nohup", "setsid", "command", "builtin", "doas", "busybox", "toybox"), ""),
}
"""Programs that run their arguments, and their options that have a value."""

_WITH_FLAGS = {"env": "i0v", "xargs": "0rtx", "sudo": "nE", "exec": "cl", "time": "pv"}
_MAYBE_ARITHMETIC = lazy_pattern(r"\(\(|\$\[|\w\[")
_OTHER_RUNNERS = """
    su pkexec runuser parallel chrt taskset script ssh watch flock chroot unshare nsenter strace ltrace gdb
    systemd-run entr expect screen tmux at batch start-stop-daemon unbuffer find fd npx
"""
_RUNNERS = frozenset(_OTHER_RUNNERS.split())

_GIT_BUILTINS = """
    add am annotate apply archive bisect blame branch bugreport bundle cat-file check-attr check-ignore
    check-mailmap check-ref-format checkout checkout-index cherry cherry-pick clean clone column commit
    commit-graph commit-tree config count-objects describe diagnose diff diff-files diff-index diff-tree
    difftool fast-export fast-import fetch fetch-pack fmt-merge-msg for-each-ref format-patch fsck gc grep
    hash-object help index-pack init interpret-trailers log ls-files ls-remote ls-tree mailinfo mailsplit
    maintenance merge merge-base merge-file merge-tree mergetool mktag mktree mv name-rev notes
    pack-objects pack-refs patch-id prune prune-packed pull push range-diff read-tree rebase reflog
    remote repack replace rerere reset restore rev-list rev-parse revert rm send-pack shortlog show
    show-branch show-index show-ref sparse-checkout stash status stripspace submodule switch
    symbolic-ref tag unpack-file unpack-objects update-index update-ref update-server-info var
    verify-commit verify-pack verify-tag version whatchanged worktree write-tree
"""
_GIT_KNOWN = frozenset(_GIT_BUILTINS.split())
_GIT_ALSO = {"send-pack": "push", "http-push": "push"}
"""Commands of git that do what another one does."""

_GIT_RUNS = frozenset(["bisect", "difftool", "mergetool", "rebase", "submodule"])
_GIT_WITH_VALUE = frozenset(
    ["-C", "-c", "--git-dir", "--work-tree", "--namespace", "--attr-source", "--config-env"]
)
_GIT_OPTION = lazy_pattern(
    r"--(git-dir|work-tree|namespace|exec-path|attr-source|config-env)=.*|-p|-P|--paginate|--no-pager|--bare"
    r"|--no-(replace-objects|lazy-fetch|optional-locks|advice)|--(literal|glob|noglob|icase)-pathspecs"
    r"|--version|-v|--help|-h|--(html|man|info|exec)-path",
    re.DOTALL,
)


@lru_cache(maxsize=8)
def invocations(command: str) -> Sequence[Sequence[str]]:
    """Return what a command may run: a program's name without its folder, and its arguments.

    Arguments that cannot be understood are `UNKNOWN`, and so is a program that cannot be known.
    Options of git before its subcommand are left out.
    """
    text = re.sub(f"[{UNKNOWN}{PART}]", "$x", command)
    return list({tuple(words): words for words in _invocations(text, 0, is_code=True)}.values())


def words_in(command: str, depth: int = 0) -> Iterator[str]:
    """Yield every word of a command, also of the texts inside and the files it redirects to."""
    reader = _Reader(command)
    reader.read()
    for word in (*reader.files, *(word for words in reader.commands for word in words)):
        yield word
        if _CODE.search(word) and word != command and depth < _MAX_DEPTH:
            yield from words_in(word, depth + 1)
    for inner, _ in reader.inner if depth < _MAX_DEPTH else ():
        yield from words_in(inner, depth + 1)


def _invocations(text: str, depth: int, *, is_code: bool) -> Iterator[list[str]]:
    if depth > _MAX_DEPTH:
        if is_code:
            yield [UNKNOWN]
        return
    reader = _Reader(text)
    reader.read()
    for words in reader.commands:
        for invocation in _of_command(words, text, depth, is_code=is_code):
            if is_code or UNKNOWN not in invocation[:2]:
                yield invocation
    for inner, runs in reader.inner:
        yield from _invocations(inner, depth + 1, is_code=is_code and runs)


def _of_command(words: list[str], text: str, depth: int, *, is_code: bool) -> Iterator[list[str]]:
    for at in range(1, len(words)):
        if words[at] in _BEFORE_COMMAND:
            # Such as a function's body.
            yield from _of_command(words[at + 1 :], text, depth, is_code=is_code)
            break
    at = 0
    while at < len(words) and (words[at] in _BEFORE_COMMAND or _ASSIGNMENT.match(words[at])):
        at += 1
    words = words[at:]
    if not words:
        return
    yield from _run(words)
    runs = _runs_arguments(words)
    is_evaluated = _name(words[0]) in _READ_AS_CODE or not _SHELLS.isdisjoint(map(_name, words))
    for word in words:
        is_code_like = _CODE.search(word) or (is_evaluated and not _EXPANDED.isdisjoint(word))
        if is_code_like and word != text:
            yield from _invocations(word, depth + 1, is_code=is_code and runs)
    if _name(words[0]) == "eval":
        yield from _invocations(" ".join(words[1:]), depth + 1, is_code=is_code)
    # Other programs may run what they are given.
    yield from _anywhere(words[1:], is_run=False)


def _anywhere(words: Sequence[str], *, is_run: bool) -> Iterator[list[str]]:
    """Yield what runs if one of the words is a program.

    Args:
        words: The words.
        is_run: One of them is; otherwise that is only possible, and likely if it has a folder.
    """
    for at, word in enumerate(words):
        if not _is_unknown(_name(word)):
            for form in forms(words[at : at + _MAX_WORDS]):
                if is_run or "/" in word or UNKNOWN not in form[:2]:
                    yield form


def _runs_arguments(words: Sequence[str]) -> bool:
    name = _name(words[0])
    if name == "git":
        return any(word in _GIT_RUNS for word in words)
    return name in _SHELLS or name in _READ_AS_CODE or name in _RUNNERS or name in _WITH_VALUE


def _run(words: list[str]) -> Iterator[list[str]]:
    """Yield what the words of a simple command run."""
    name = _name(words[0])
    rest = words[1:]
    if not _is_literal(words[0]):
        yield [UNKNOWN]
    elif name == "command" and rest[:1] in (["-v"], ["-V"]):
        return
    elif name in _SHELLS:
        yield [UNKNOWN] if _reads_unknown_code(rest) else [name, *rest]
    elif name in _WITH_VALUE:
        inner = _inner(name, rest)
        if inner:
            yield from _run(inner)
        elif inner is None and (any(map(_is_unknown, rest)) or name in ("busybox", "toybox")):
            yield [UNKNOWN]
        elif inner is None:
            yield from _anywhere(rest, is_run=True)
        yield [name, *rest]
    elif name in _READ_AS_CODE or name in _RUNNERS:
        from_elsewhere = (
            name in ("source", ".") and rest[:1] and rest[0].startswith(("/dev", "/proc"))
        )
        if name == "find" and not any(word.startswith(("-exec", "-ok")) for word in rest):
            rest = []
        is_defined = name in ("alias", "hash", "enable", "bind") and rest
        if is_defined or from_elsewhere or any(map(_is_unknown, rest)):
            yield [UNKNOWN]
        if name in _RUNNERS:
            yield from _anywhere(rest, is_run=True)
        yield from forms(words)
    else:
        yield from forms(words)


def _reads_unknown_code(arguments: Sequence[str]) -> bool:
    """Return True if a shell with these arguments runs code that is not in them or in a file."""
    for at, word in enumerate(arguments):
        if _is_unknown(word):
            return True
        if word.startswith(("-", "+")) and word not in ("-", "--"):
            if "c" in word[1:] and not word.startswith("--"):
                return any(map(_is_unknown, arguments[at : at + 2]))
            if "s" in word[1:] and not word.startswith("--"):
                return True
            continue
        if at and arguments[at - 1] in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file"):
            continue
        return word in ("-", "--") or word.startswith(("/dev", "/proc"))
    return True


def _inner(name: str, words: list[str]) -> list[str] | None:
    """The command in the arguments of a program that runs it; None if they are not understood."""
    with_value = _WITH_VALUE[name].split()
    flags = _WITH_FLAGS.get(name, "")
    replaced: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        if UNKNOWN in word:
            return None
        if name == "env" and _ASSIGNMENT.match(word):
            at += 1
        elif PART in word and not _is_literal(word):
            return None
        elif word in with_value:
            if at + 1 >= len(words) or UNKNOWN in words[at + 1]:
                return None
            if name == "xargs" and word == "-I":
                replaced.append(words[at + 1])
            at += 2
        elif word.startswith("-I") and name == "xargs":
            replaced.append(word[2:])
            at += 1
        elif re.fullmatch(r"-[nPLs]\d+", word) or (flags and re.fullmatch(f"-[{flags}]+", word)):
            at += 1
        elif word == "--":
            at += 1
            break
        elif word.startswith("-") or (
            name == "timeout" and not re.fullmatch(r"[\d.]+[smhd]?", word)
        ):
            return None
        else:
            at += name == "timeout"
            break
    inner = words[at:]
    if name == "xargs" and inner:
        for text in filter(None, replaced):
            inner = [word.replace(text, UNKNOWN) for word in inner]
        inner = [*inner, UNKNOWN]
    return inner


def forms(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield a program with its arguments; those of git in a common form."""
    name = _name(words[0])
    yield [name, *words[1:]]
    if name != "git" and not name.startswith("git-"):
        return
    arguments = words[1:] if name == "git" else [name[4:], *words[1:]]
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        option, value = arguments[at], arguments[at + 1 : at + 2]
        takes = option in _GIT_WITH_VALUE
        setting = option.partition("=")[2] if "=" in option else "".join(value)
        may_define = option.startswith(("-c", "--config-env")) and (
            setting.lower().startswith("alias") or setting.startswith(PART)
        )
        if UNKNOWN in option or may_define or not (takes or _GIT_OPTION.fullmatch(option)):
            yield ["git", UNKNOWN]
            return
        if takes and (not value or UNKNOWN in value[0]):
            yield ["git", UNKNOWN]
            return
        at += 2 if takes else 1
    arguments = arguments[at:]
    subcommand = arguments[0] if arguments else None
    runs_unknown = subcommand in _GIT_RUNS and any(map(_is_unknown, arguments))
    if subcommand is not None and (subcommand not in _GIT_KNOWN or runs_unknown):
        yield ["git", UNKNOWN]
        return
    yield ["git", *arguments]
    if subcommand in _GIT_ALSO:
        yield ["git", _GIT_ALSO[subcommand], *arguments[1:]]


def _name(word: str) -> str:
    return word.rsplit("/", 1)[-1].lower().removesuffix(".exe")


def _is_unknown(word: str) -> bool:
    return UNKNOWN in word or PART in word


def _is_literal(word: str) -> bool:
    """Return True if a word names a known program, perhaps in an unknown folder."""
    return UNKNOWN not in word and PART not in _name(word)


class _Reader:
    """Split a text into simple commands, as a shell does.

    Attributes:
        commands: Their words, without redirections.
        inner: Texts inside, and whether the shell runs them.
        files: What is redirected to or from.
    """

    def __init__(self, text: str, at: int = 0, *, nested: bool = False) -> None:
        self.text = text
        self.at = at
        self.commands: list[list[str]] = [[]]
        self.inner: list[tuple[str, bool]] = []
        self.files: list[str] = []
        self._nested = nested
        self._open = 0
        self._cases = 0
        self._documents: list[tuple[str, bool]] = []
        self._redirects = ""

    def read(self) -> None:
        word: str | None = None
        start = 0
        while self.at < len(self.text):
            c = self.text[self.at]
            if word is None:
                start = self.at
            elif c in " \t\n;&|)" and _BEFORE_COMMAND.issuperset(self.commands[-1]):
                # Its patterns end with a parenthesis, which closes nothing.
                self._cases += {"case": 1, "esac": -1}.get(self.text[start : self.at], 0)
            if c in " \t" or c in _SEPARATORS or c in "<>":
                if c in "<>" and word is not None and word.isdigit():
                    word = None
                self._add(word)
                word = None
                if c in "<>" and self._redirect():
                    # A process substitution is a word.
                    word = PART
                    continue
                if c in _SEPARATORS and self._separate(c):
                    return
                self.at += c not in "<>"
            elif c == "#" and word is None:
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                self.at += 1
                word = (word or "") + self._next(c, word)
        self._add(word)
        self._take_documents()

    def _add(self, word: str | None) -> None:
        if word is None:
            return
        kind, self._redirects = self._redirects, ""
        if kind == "<<<":
            self.inner.append((word, False))
        else:
            (self.files if kind else self.commands[-1]).append(word)

    def _separate(self, c: str) -> bool:
        """Begin a new command; return True if the text ends here."""
        self._redirects = ""
        if c in "()" and not self._cases:
            self._open += 1 if c == "(" else -1
            if self._nested and self._open < 0:
                self.at += 1
                return True
        elif c == "&" and self.text[self.at + 1 : self.at + 2] == ">":
            return False
        elif c == "\n":
            self._take_documents()
        self.commands.append([])
        return False

    def _redirect(self) -> bool:
        """Read an operator; return True for a process substitution, which is read too."""
        match = re.compile(r"[<>]\(|<<<|<<-?|<>|>>|>\||[<>]&|[<>]").match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        operator = match[0]
        if operator.endswith("("):
            self._substitute()
            return True
        self._redirects = operator
        if operator in ("<<", "<<-"):
            delimiter = re.compile(r"[ \t]*((?:'[^']*'|\"[^\"]*\"|\\.|[^\s;&|()<>])*)").match(
                self.text, self.at
            )
            assert delimiter is not None
            self.at = delimiter.end()
            self._redirects = ""
            self._documents.append((re.sub(r"['\"\\]", "", delimiter[1]), operator == "<<-"))
        return False

    def _take_documents(self) -> None:
        """Read the here-documents that begin after a line."""
        for delimiter, indented in self._documents:
            lines: list[str] = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at + 1)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at + 1 : end]
                self.at = end
                if (line.lstrip("\t") if indented else line) == delimiter:
                    break
                lines.append(line)
            body = "\n".join(lines)
            # Where the document ends, or whether it is one, is then uncertain.
            is_code = bool(_MAYBE_ARITHMETIC.search(self.text)) or "\\\n" in body
            self.inner.append((body, is_code or bool(set("$`") & set(delimiter))))
            self._expand(body)
        self._documents = []

    def _expand(self, text: str) -> None:
        """Read the command substitutions of a text in which nothing else is special."""
        reader = _Reader(text)
        while reader.at < len(text):
            c = text[reader.at]
            reader.at += 1
            if c in "$`":
                reader._dollar_or_tick(c, PART)
            elif c == "\\":
                reader.at += 1
        self.commands[-1:-1] = reader.commands
        self.inner += reader.inner
        self.files += reader.files

    def _next(self, c: str, before: str | None) -> str:
        text, at = self.text, self.at
        if c == "'":
            return self._until("'")
        if c == '"':
            return self._double()
        if c == "\\":
            self.at += 1
            return "" if text[at : at + 1] == "\n" else text[at : at + 1]
        if c in "$`":
            return self._dollar_or_tick(c, UNKNOWN)
        following = text[at : at + 1]
        is_alone = before is None and (not following or following.isspace())
        if c in "*?" or (c == "[" and not is_alone and not (before is None and following == "[")):
            return "" if c == "[" and before == "[" else UNKNOWN
        if c == "{" and not is_alone and following != "}":
            return UNKNOWN
        return c

    def _until(self, end: str) -> str:
        stop = self.text.find(end, self.at)
        stop = len(self.text) if stop < 0 else stop
        text = self.text[self.at : stop]
        self.at = stop + 1
        return text

    def _double(self) -> str:
        text = ""
        while self.at < len(self.text):
            c = self.text[self.at]
            self.at += 1
            if c == '"':
                break
            if c == "\\":
                following = self.text[self.at : self.at + 1]
                self.at += 1
                text += (
                    ""
                    if following == "\n"
                    else following
                    if following in '$`"\\'
                    else c + following
                )
            elif c in "$`":
                text += self._dollar_or_tick(c, PART)
            else:
                text += c
        return text

    def _dollar_or_tick(self, c: str, mark: str) -> str:
        text = self.text
        if c == "`":
            code = ""
            while self.at < len(text) and text[self.at] != "`":
                self.at += text[self.at] == "\\" and text[self.at + 1 : self.at + 2] in (
                    "`",
                    "\\",
                    "$",
                )
                code += text[self.at : self.at + 1]
                self.at += 1
            self.at += 1
            self.inner.append((code, True))
            return mark
        following = text[self.at : self.at + 1]
        if following == "(":
            self.at += 1
            self._substitute()
            return mark
        if following == "{":
            start = self.at + 1
            depth = 0
            while self.at < len(text):
                depth += {"{": 1, "}": -1}.get(text[self.at], 0)
                self.at += 1
                if depth == 0:
                    break
            content = text[start : self.at - 1]
            self._expand(content)
            if re.search(r"['\"\\]", content):
                # Where it ends depends on the quotes.
                self.commands.insert(-1, [UNKNOWN])
            return UNKNOWN if re.search(r"@|\*\]", content) else mark
        if mark == UNKNOWN and following in ("'", '"'):
            # Escapes, or a translation.
            self.at += 1
            if following == '"':
                return PART + self._double()
            while self.at < len(text) and text[self.at] != "'":
                self.at += 1 + (text[self.at] == "\\")
            self.at += 1
            return PART
        name = re.compile(r"\w+|[@*#?$!-]").match(text, self.at)
        if name is None:
            return "$"
        self.at = name.end()
        return UNKNOWN if name[0] == "@" else mark

    def _substitute(self) -> None:
        """Read the commands up to the closing parenthesis."""
        reader = _Reader(self.text, self.at, nested=True)
        reader.read()
        self.at = reader.at
        self.commands[-1:-1] = reader.commands
        self.inner += reader.inner
        self.files += reader.files
