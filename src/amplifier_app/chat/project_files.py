"""Files of the project: which ones can be included in a prompt, and their text."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Container
from fnmatch import fnmatchcase
from pathlib import Path

from amplifier_app.base import paths
from amplifier_app.base.errors import AppError, UsageError
from amplifier_app.base.sanitize import one_line, visible
from amplifier_app.runtime import describe
from amplifier_app.runtime.attachments import AttachedImage, to_image
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_support.files import (
    is_below,
    make_private_folder,
    open_inside,
    system_errors_as,
    write_atomically,
)
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.programs import TimedOut, find_program, git_environment, run
from amplifier_support.text import nearest

MAX_BYTES = 200_000
"""The largest text that is included."""

_MAX_LISTED = 20_000
_MAX_MATCHES = 50
_LIST_SECONDS = 5.0
_SECRET = (
    *(".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.keystore", "id_rsa*", "id_ed25519*"),
    *(".netrc", ".npmrc", ".pypirc", "credentials*", "*.tfstate", "secrets.*"),
)
_TEXT_FILE = re.compile(
    r"(?i)\.(?:bash|c|cc|cfg|conf|cpp|cs|css|csv|diff|env|go|gradle|h|hpp|html|ini|ipynb|java|js|json|jsonl|jsx|kt|"
    r"less|lock|log|lua|md|mjs|patch|php|pl|proto|ps1|py|pyi|r|rb|rs|rst|scala|scss|sh|sql|svg|swift|tex|tf|toml|"
    r"ts|tsv|tsx|txt|vue|xml|ya?ml|zsh)$"
)
"""Names of files; others that begin with `@` can be users, packages and decorators."""
_MAX_NAMES = 200
_PATH = r"[^\s@:\"]+"
_MENTION = re.compile(
    rf"(?<!\S)@(?:\"(?P<quoted>[^\"\n]+)\"|(?P<path>{_PATH}))(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?(?=[\s,;.?!)]|$)"
)


class Included(NamedTuple):
    """A prompt with the files it mentions.

    Attributes:
        text: The prompt, followed by the files.
        notes: What was added.
        problems: What could not be added, and why.
        images: The images among the files, which are not part of the text.
    """

    text: str
    notes: list[str]
    problems: list[str]
    images: tuple[AttachedImage, ...] = ()


def project_files(folder: str) -> list[str]:
    """Return the files below a folder, relative to it: git's in a repository, without ignored ones.

    Files that usually hold secrets are left out. Git runs without the repository's programs.
    """
    git_files = _git_files(folder)
    names = _walk(folder) if git_files is None else git_files
    return [name for name in names if not is_secret(name)]


def is_secret(name: str) -> bool:
    """Return True if a file usually holds secrets."""
    base = os.path.basename(name).lower()
    return any(fnmatchcase(base, pattern) for pattern in _SECRET)


def _git_files(folder: str) -> list[str] | None:
    git = find_program("git", folder)
    if git is None:
        return None
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    environment = git_environment(folder=folder)
    try:
        done = run(command, cwd=Path(folder), env=environment, seconds=_LIST_SECONDS)
    except (OSError, TimedOut):
        return None
    return done.stdout.split("\0")[:-1][:_MAX_LISTED] if done.code == 0 else None


def _walk(folder: str) -> list[str]:
    names: list[str] = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        relative = os.path.relpath(place, folder)
        names += [os.path.normpath(os.path.join(relative, name)) for name in sorted(files)]
        if len(names) >= _MAX_LISTED:
            break
    return names[:_MAX_LISTED]


def to_mention(name: str) -> str | None:
    """Return what is written after `@` for a file, in quotes if necessary; None if it cannot be mentioned."""
    if re.fullmatch(_PATH, name):
        return name
    return f'"{name}"' if name.isprintable() and '"' not in name else None


def matching(names: list[str], typed: str) -> list[str]:
    """Return the names that contain the typed characters in order, the best first."""
    query = typed.lower()
    ranked = [(rank, len(name), name) for name in names if (rank := _rank(name, query)) is not None]
    return [name for _, _, name in sorted(ranked)[:_MAX_MATCHES]]


def _rank(name: str, query: str) -> int | None:
    lower = name.lower()
    if lower.startswith(query):
        return 0
    if os.path.basename(lower).startswith(query):
        return 1
    if query in lower:
        return 2
    position = 0
    for character in query:
        position = lower.find(character, position) + 1
        if not position:
            return None
    return 3


def with_files(prompt: str, folder: str, quoted: Container[str] = ()) -> Included:
    """Return a prompt followed by the files it mentions: `@path`, `@path:10`, `@path:10-40`, `@"a path"`.

    Of a folder, the names in it are added. Files outside the folder, binary files and those that are too large are
    not added, nor are missing ones. Words that need not mean a file stay as they are: `@alice`, `@types/node`.

    Args:
        prompt: The prompt.
        folder: The working directory.
        quoted: Lines that others have written, without spaces at their ends; they add no files.
    """
    parts, notes, problems = [prompt], list[str](), list[str]()
    images: list[AttachedImage] = []
    written = (line for line in prompt.split("\n") if line.rstrip() not in quoted)
    mentions = {mention[0]: mention for mention in _MENTION.finditer("\n".join(written))}
    for mention in mentions.values():
        path = mention["quoted"] or mention["path"]
        if not os.path.exists(os.path.join(folder, path)):
            path = path.rstrip(".,;?!)")
        try:
            if not os.path.exists(os.path.join(folder, path)):
                if _means_file(folder, path, mention):
                    raise ValueError(_missing(folder, path))
                continue
            if os.path.isdir(os.path.join(folder, path)):
                names = _names_in(folder, path)
                listing = "\n".join(names)
                parts.append(f'<folder path="{path}">\n{listing}\n</folder>')
                size = describe.count(len(names), "name")
            elif _is_image_name(path):
                images.append(image := _image(folder, path))
                size = image.described
            else:
                text, lines = _read_lines(folder, path, mention["first"], mention["last"])
                parts.append(f'<file path="{path}"{lines}>\n{text}\n</file>')
                tokens = describe.tokens(-(-len(text) // 4))
                size = describe.count(text.count("\n") + 1, "line") + f", about {tokens} tokens"
            notes.append(f"added {one_line(path)}: {size}")
        except (OSError, ValueError) as error:
            unreadable = isinstance(error, OSError) and (error.strerror or "it cannot be read")
            problems.append(f"{one_line(path)} was not added: {unreadable or error}")
    return Included("\n\n".join(parts), notes, problems, tuple(images))


def dropped_image(pasted: str) -> str | None:
    """The mention of an image whose path was pasted, as terminals do when a file is dropped; None for other text."""
    if len(pasted) > 4096 or "\n" in pasted.strip():
        return None
    try:
        words = shlex.split(pasted)
    except ValueError:
        return None
    path = words[0].removeprefix("file://") if len(words) == 1 else ""
    if not _is_image_name(path) or not os.path.isabs(path) or not os.path.isfile(path):
        return None
    mention = to_mention(path)
    return None if mention is None else f"@{mention} "


_CLIPBOARD_SECONDS = 5.0
_CLIPBOARD_READERS = (
    ("wl-paste", "--no-newline", "--type", "image/png"),
    ("xclip", "-selection", "clipboard", "-target", "image/png", "-out"),
    ("pngpaste", "-"),
)
"""Programs that print an image in the clipboard: Wayland, X11, macOS."""


def clipboard_image() -> str:
    """The path of a file, private to the user, with the image in the clipboard.

    Raises:
        AppError: There is none, or no program to read it with.
    """
    readers = [
        [program, *rest] for name, *rest in _CLIPBOARD_READERS if (program := find_program(name))
    ]
    if not readers:
        names = ", ".join(name for name, *_ in _CLIPBOARD_READERS)
        raise AppError(f"cannot read the clipboard: none of {names} is installed")
    for command in readers:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_CLIPBOARD_SECONDS,
                check=False,
            )
            to_image("the clipboard", done.stdout)
        except (OSError, subprocess.TimeoutExpired, UsageError):
            continue
        return str(_save_image(done.stdout))
    raise AppError("there is no image in the clipboard")


def _save_image(data: bytes) -> Path:
    folder = paths.cache_dir() / "clipboard"
    file = folder / f"{hashlib.sha256(data).hexdigest()[:16]}.png"
    with system_errors_as(AppError, f"cannot save the image in {folder}"):
        make_private_folder(folder)
        write_atomically(file, data, durable=False)
    return file


def _is_image_name(path: str) -> bool:
    """Return True if a file is an image by its name."""
    return path.lower().endswith((".png", ".jpg", ".jpeg", ".gif", ".webp"))


def _open(folder: str, path: str) -> int:
    try:
        return open_inside(folder, path)
    except ValueError:
        raise ValueError("it is outside the working directory") from None


def _image(folder: str, path: str) -> AttachedImage:
    """
    Raises:
        OSError, ValueError: It cannot be added; the message says why.
    """
    # A path that starts at the root was dropped or pasted by the user, wherever it is.
    root = "/" if os.path.isabs(path) else folder
    with open(_open(root, path), "rb") as file:
        data = file.read(64 * 1024 * 1024)
    try:
        return to_image(path, data)
    except UsageError as error:
        raise ValueError(f"it {error.message.removeprefix(f'{visible(path)} ')}") from None


def _means_file(folder: str, path: str, mention: re.Match[str]) -> bool:
    """Return true if a missing path was meant to be a file."""
    above = os.path.dirname(path)
    return bool(
        _is_image_name(path)
        or mention["quoted"]
        or path.startswith(("./", "../", "/", "~/"))
        or _TEXT_FILE.search(path)
        or (mention["first"] and ("/" in path or "." in path))
        or (above and os.path.isdir(os.path.join(folder, above)))
    )


def _missing(folder: str, path: str) -> str:
    above, name = os.path.split(path)
    try:
        names = os.listdir(os.path.join(folder, above))
    except OSError:
        names = list[str]()
    near = nearest(name, names)
    hint = "" if near is None else f"; did you mean {one_line(os.path.join(above, near))!r}?"
    return f"it does not exist{hint}"


def _names_in(folder: str, path: str) -> list[str]:
    """Return what a folder contains, folders with a slash, without files that usually hold secrets.

    Raises:
        OSError, ValueError: It cannot be listed; the message says why.
    """
    real = os.path.realpath(os.path.join(folder, path))
    if not is_below(real, os.path.realpath(folder)):
        raise ValueError("it is outside the working directory")
    with os.scandir(real) as entries:
        names = sorted(
            f"{entry.name}/" if entry.is_dir() else entry.name
            for entry in entries
            if entry.name != ".git" and not is_secret(entry.name)
        )
    more = len(names) - _MAX_NAMES
    return [*names[:_MAX_NAMES], *([f"… {more:,} more"] if more > 0 else [])]


def _read_lines(folder: str, path: str, first: str | None, last: str | None) -> tuple[str, str]:
    """Return the text of a file or some of its lines, and the attribute that names these.

    Raises:
        OSError, ValueError: It cannot be added; the message says why.
    """
    try:
        with open(_open(folder, path), encoding="utf-8") as file:
            text = file.read(MAX_BYTES * 10 if first else MAX_BYTES + 1)
    except UnicodeDecodeError:
        raise ValueError("it is not a text file") from None
    if "\0" in text:
        raise ValueError("it is not a text file")
    attribute = ""
    if first:
        lines = text.splitlines()
        begin, end = int(first), int(last or first)
        if not 0 < begin <= min(end, len(lines)):
            raise ValueError(f"it has {describe.count(len(lines), 'line')}, not {begin}-{end}")
        end = min(end, len(lines))
        text, attribute = "\n".join(lines[begin - 1 : end]), f' lines="{begin}-{end}"'
    if len(text) > MAX_BYTES:
        hint = f"add some of its lines with @{to_mention(path)}:1-500"
        raise ValueError(f"it is larger than {describe.size(MAX_BYTES)}; {hint}")
    return text.rstrip("\n"), attribute


class PromptFiles:
    """Adds files to prompts.

    Args:
        renderer: Shows what was added.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._typed: dict[str, str] = {}  # prompts with files → as typed
        self._images: dict[str, tuple[AttachedImage, ...]] = {}
        self._quoted: set[str] = set()
        self._refused: str | None = None
        self._latest: tuple[str, Included] | None = None  # read, and not sent yet

    def is_refused(self, text: str) -> bool:
        """Report the files that cannot be added to a prompt, unless it was refused before; return whether there are any."""
        self._latest = None  # files may have changed since
        if text in self._typed or text == self._refused:
            return False
        problems = self._read(text).problems
        if problems:
            self._refused = text
            for problem in problems:
                self._renderer.notice(problem, "warning", "chat")
            hint = "The prompt was not sent. Edit it, or send it again to leave this as text."
            self._renderer.notice(hint, "warning", "chat")
        return bool(problems)

    def add_to(self, text: str) -> str:
        """Return a prompt with the files it mentions, unless it has them already."""
        if text in self._typed:
            return text
        included, self._latest = self._read(text), None
        for note in included.notes:
            self._renderer.notice(note, "info", "chat")
        if text != self._refused:
            for problem in included.problems:
                self._renderer.notice(problem, "warning", "chat")
        if included.notes:
            self._typed[included.text] = text
        if included.images:
            self._images[included.text] = included.images
        return included.text

    def has_images(self, text: str) -> bool:
        """Return True if a prompt mentions images."""
        return bool(self._read(text).images)

    def _read(self, text: str) -> Included:
        """Return a prompt with its files, which are read once until it is sent."""
        if self._latest is None or self._latest[0] != text:
            self._latest = text, with_files(text, os.getcwd(), self._quoted)
        return self._latest[1]

    def take_images(self, text: str) -> tuple[AttachedImage, ...]:
        """Return the images of a prompt that `add_to` returned, the first time."""
        return self._images.pop(text, ())

    def keep(self, text: str) -> None:
        """Note a prompt that has its files already."""
        self._typed[text] = text

    def as_typed(self, text: str) -> str:
        """Return a prompt without the files that were added."""
        return self._typed.get(text, text)

    def ignore_mentions_in(self, output: str | None) -> None:
        """Note the output of a shell command, which others have written: its lines add no files."""
        # Line by line: the user may edit the others.
        self._quoted.update(line.rstrip() for line in (output or "").split("\n"))


MAX_LINES = 10
"""A text with more lines is folded when it is pasted, or comes from the history."""


class Folds:
    """The folded parts of one input line.

    Args:
        labels: Every text folded so far in the chat, with its label.
    """

    def __init__(self, labels: dict[str, str] | None = None) -> None:
        self._texts: dict[str, str] = {}
        self._labels: dict[str, str] = {} if labels is None else labels

    def for_next_line(self) -> Folds:
        """Return the folds of another, empty line of the chat."""
        return Folds(self._labels)

    def fold(self, text: str, label: str, before: str = "") -> str:
        """Return the marker shown instead of `text`, which begins a line if a line is `before` it."""
        before = self.unfold(before)
        text = f"\n{text}" if before and not before.endswith("\n") else text
        marker, number = f"[{label}]", 1
        while marker in self._texts:
            number += 1
            marker = f"[{label}, {number}]"
        self._texts[marker] = text
        self._labels[text] = label
        return marker

    def fold_if_long(self, text: str) -> str:
        """Return pasted text, as a marker if it is long."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.removesuffix("\n").count("\n") + 1
        return self.fold(text, f"pasted {lines} lines") if lines > MAX_LINES else text

    def fold_again(self, line: str) -> str:
        """Return the input line with each text that was folded before replaced by a marker."""
        for text in sorted(self._labels, key=len, reverse=True):
            while text in line:
                line = line.replace(text, self.fold(text, self._labels[text]), 1)
        return line

    def fold_entry(self, entry: str) -> str:
        """Return an entry of the history; a long one of an earlier chat keeps its first line."""
        entry = self.fold_again(entry)
        first, end, rest = entry.partition("\n")
        more = rest.count("\n") + 1
        return (
            f"{first}{end}{self.fold(rest, f'{more} more lines')}" if more >= MAX_LINES else entry
        )

    def unfold(self, line: str) -> str:
        """Return the input line with each marker replaced by its text."""
        for marker, text in self._texts.items():
            line = line.replace(marker, text, 1)
        return line

    def text_after(self, line: str) -> str:
        """Return what follows the markers at the beginning of the input line."""
        while marker := next((text for text in self._texts if line.startswith(text)), None):
            line = line.removeprefix(marker)
        return line

    def forget(self, marker: str) -> None:
        """Drop a text whose marker was deleted."""
        del self._texts[marker]

    def marker_before(self, line: str) -> str | None:
        """Return the marker at the end of `line`, which is deleted as a whole."""
        return next((marker for marker in self._texts if line.endswith(marker)), None)
