"""Complete a word of the command line, for the scripts that `--show-completion` prints.

A word can become a command, an option or a value. Nothing here mounts a module, uses the network or
runs code of a project. Typer's own completion is not used: it knows no values, and each answer takes as
long as a run.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer._completion_shared import _completion_scripts  # pyright: ignore[reportPrivateUsage]

from amplifier_app import __version__, trust
from amplifier_app.base import paths
from amplifier_app.base.errors import AppError
from amplifier_app.base.installed import bundled_modules
from amplifier_app.commands.docs import pages
from amplifier_app.commands.group import amplifier_command
from amplifier_app.plan.documents.profile_paths import profile_names
from amplifier_app.plan.tree.entries import ENTRY_SECTIONS
from amplifier_app.plan.tree.nodes import plain_data
from amplifier_app.sources.loading import Fetching, load
from amplifier_support.files import write_atomically
from amplifier_support.named_tuple import NamedTuple

_PROVIDER = "provider-"
_MAX_SESSIONS = 200


def _providers() -> list[str]:
    """The bundled providers, and those of the plan."""
    own = [entry.get("instance_id") or entry["module"] for entry in _plan().get("providers") or []]
    bundled = [name for name in bundled_modules() if name.startswith(_PROVIDER)]
    return list(dict.fromkeys(name.removeprefix(_PROVIDER) for name in (*bundled, *own)))


def _models(provider: str | None) -> list[str]:
    """The models in the catalogues of the bundled providers.

    Args:
        provider: The provider to use; None for any.
    """
    module = None if provider is None else _PROVIDER + provider.removeprefix(_PROVIDER)
    names = [name for name in bundled_modules() if name.startswith(_PROVIDER)]
    return [model for name in names if module in (None, name) for model in _catalogue(name)]


def _modules() -> list[str]:
    """The bundled modules, and those of the plan."""
    plan = _plan()
    own = [entry["module"] for section in ENTRY_SECTIONS for entry in plan.get(section) or []]
    return sorted({*bundled_modules(), *own})


def _tools() -> list[str]:
    """The tools of the bundled modules in the plan."""
    bundled = bundled_modules()
    listed = [entry["module"] for entry in _plan().get("tools") or []]
    packages = [_import(bundled[name].entry_point) for name in listed if name in bundled]
    return [tool for package in packages for tool in getattr(package, "tool_names", ())]


def _import(entry_point: str) -> Any:
    return import_module(entry_point.partition(":")[0])


def _sessions() -> list[str]:
    """The ids of the newest saved sessions."""
    try:
        names = os.listdir(paths.sessions_dir())
    except OSError:
        return []
    return sorted((name for name in names if name[0] != "."), reverse=True)[:_MAX_SESSIONS]


def _addresses(begun: str, profile: str | None = None) -> list[str]:
    """The addresses of the values in the plan.

    Args:
        begun: The beginning of one. If it names a bundled module, the keys of its config are included.
        profile: The profile; by default that of a run here.
    """
    return list(_below(_plan(profile), "", begun))


def _below(data: Any, at: str, begun: str) -> Iterator[str]:
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from _below(value, f"{at}.{key}" if at else str(key), begun)
    elif isinstance(data, list) and at in ENTRY_SECTIONS:
        for entry in data:
            fields = entry if isinstance(entry, dict) else {"module": entry}
            module = str(fields.get("module"))
            place = f"{at}.{fields.get('instance_id') or module}"
            own = {key: value for key, value in fields.items() if key != "module"}
            yield from _below({"config": {}, **own}, place, begun)
            if begun.startswith(f"{place}."):
                yield from (f"{place}.config.{key}" for key in _config_keys(module))
    elif at:
        yield at


def _config_keys(module_id: str) -> list[str]:
    """The keys of a bundled module's config; kept in the cache, because its model takes long to load."""
    module = bundled_modules().get(module_id)
    if module is None:
        return []
    cache = paths.cache_dir() / "completion" / f"{module_id}.json"
    version = [__version__, *(file.stat().st_mtime_ns for file in _files(module_id, "*.py"))]
    try:
        kept = json.loads(cache.read_text("utf-8"))
        if kept["version"] == version:
            return [str(key) for key in kept["keys"]]
    except (OSError, ValueError, LookupError, TypeError):
        pass
    keys = list(_import(module.entry_point).config_schema()["properties"])
    # If it cannot be cached, it is read again next time.
    with suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            cache, json.dumps({"version": version, "keys": keys}).encode(), durable=False
        )
    return keys


def _plan(profile: str | None = None) -> dict[str, Any]:
    """The plan of a run here, as far as it is known without the network; empty if it is invalid."""
    try:
        plan = load(
            profile=profile,
            project=trust.folder_if_trusted(quiet=True),
            keep_unset=True,
            fetching=Fetching(offline=True),
        )
        return plain_data(plan.tree)
    except AppError:
        return {}


def _catalogue(module_id: str) -> list[str]:
    for path in _files(module_id, "models.json", "catalogue.json"):
        return [model["id"] for model in json.loads(path.read_text("utf-8"))["models"]]
    return []


def _files(module_id: str, *names: str) -> Iterator[Path]:
    """The files of a bundled module whose names match, without importing it."""
    package = bundled_modules()[module_id].entry_point.partition(":")[0]
    parent, _, folder_name = package.rpartition(".")
    spec = PathFinder.find_spec(parent)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for name in names:
            yield from sorted(Path(folder, folder_name).glob(name))


class _Place(NamedTuple):
    """The position of a word in a command line.

    Attributes:
        path: The names of the commands before it.
        command: The innermost of them.
        option: The option whose value it is; None if it is none.
        position: How many arguments of the command are before it.
    """

    path: tuple[str, ...]
    command: Any
    option: Any
    position: int


def complete(words: Sequence[str], incomplete: str) -> list[str]:
    """Return the completions of `incomplete` after `words`; empty if unknown, for example for file
    names.
    """
    root = amplifier_command()
    # `amplifier` with options and without a command is `amplifier run`.
    if words and words[0].startswith("-"):
        words = ["run", *words]
    place = _place(root, words)
    if place is None:
        return []
    if place.option is not None:
        return _starting(_values(place, place.option, words, incomplete), incomplete)
    name, equals, begun = incomplete.partition("=")
    if name.startswith("--") and equals:
        option = _option(place.command, name)
        values = _values(place, option, words, begun) if option is not None else ()
        return [f"{name}={value}" for value in _starting(values, begun)]
    if incomplete.startswith("-"):
        options = _options(place.command)
        if not words:
            options += _options(root.get_command(None, "run"))
        return _starting(dict.fromkeys(options), incomplete)
    if _is_group(place.command):
        return _starting(place.command.list_commands(None), incomplete)
    arguments = [param for param in place.command.params if param.param_type_name == "argument"]
    if not arguments:
        return []
    argument = arguments[min(place.position, len(arguments) - 1)]
    if place.position >= len(arguments) and argument.nargs == 1:
        return []
    return _starting(_values(place, argument, words, incomplete), incomplete)


def _place(root: Any, words: Sequence[str]) -> _Place | None:
    """The position of the word after `words`; None if the command is unknown."""
    path: tuple[str, ...] = ()
    command, option, position = root, None, 0
    for word in words:
        if option is not None:
            option = None
        elif word.startswith("-") and word != "-":
            known = _option(command, word)
            option = known if known is not None and not known.is_flag else None
        elif _is_group(command):
            command = command.get_command(None, word)
            if command is None:
                return None
            path = (*path, word)
        else:
            position += 1
    return _Place(path, command, option, position)


def _is_group(command: Any) -> bool:
    return hasattr(command, "list_commands")


def _option(command: Any, flag: str) -> Any:
    return next((p for p in command.params if flag in (*p.opts, *p.secondary_opts)), None)


def _options(command: Any) -> list[str]:
    params = [param for param in command.params if not getattr(param, "hidden", False)]
    flags = [flag for parameter in params for flag in (*parameter.opts, *parameter.secondary_opts)]
    return [*(flag for flag in flags if flag.startswith("--")), "--help"]


def _values(place: _Place, parameter: Any, words: Sequence[str], begun: str) -> Iterable[str]:
    choices = _choices(parameter.type_descriptor.annotation)
    if choices:
        return choices
    flags, metavar, group = parameter.opts, parameter.metavar or "", place.path[:1]
    is_compared = place.path == ("plan", "diff") and metavar in ("A", "B")
    is_named = group == ("profile",) and metavar == "NAME"
    if "--profile" in flags or is_named or is_compared or metavar == "PLAN":
        return profile_names(trust.folder_if_trusted(quiet=True))
    if "--provider" in flags or (group == ("provider",) and metavar == "NAME"):
        return _providers()
    if "--model" in flags:
        return _models(_option_value(place.command, words, "--provider"))
    if "--set" in flags:
        profile = _option_value(place.command, words, "--profile")
        return (f"{address}=" for address in _addresses(begun, profile))
    if metavar == "PATH.TO.KEY":
        return _addresses(begun)
    if "--mode" in flags:
        return [mode for mode in metavar.split("|") if mode.islower()]
    if place.path == ("docs",) and metavar == "TOPIC":
        return [page.topic for page in pages()]
    is_session = group in (("session",), ("resume",)) and metavar.startswith("ID")
    if is_session or {"--resume", "--fork"} & {*flags}:
        return _sessions()
    if group == ("tool",) and metavar == "TOOL":
        return _tools()
    if group == ("module",) and (metavar == "ID" or "|ID" in metavar):
        return _modules()
    return ()


def _choices(annotation: Any) -> list[str]:
    """The values of a parameter's type, if it lists them."""
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def _option_value(command: Any, words: Sequence[str], flag: str) -> str | None:
    """The value of an option among the words before."""
    option = _option(command, flag)
    flags = option.opts if option is not None else [flag]
    for word, following in itertools.pairwise(words):
        if word in flags:
            return following
    return None


def _starting(values: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in values if word.startswith(incomplete)]


_SAFE = re.compile(r"[\w.@/+=,-]+")
"""Characters that no shell interprets. zsh evaluates an answer, and names come from files of
others.
"""


_BASH = """
%(complete_func)s() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" \\
                   COMP_CWORD=$COMP_CWORD \\
                   %(autocomplete_var)s=complete_bash $1 ) )
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=.] ]]; then
        compopt -o nospace 2>/dev/null
    fi
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""
"""Typer's script for bash, but without a space after a value that ends with a separator."""


def use_own_script() -> None:
    """Print and install our script for bash in place of Typer's."""
    _completion_scripts["bash"] = _BASH


def answer(instruction: str) -> int | None:
    """Print the answer to a script and return the exit code; None for a shell not known here.

    Args:
        instruction: The value of `_AMPLIFIER_COMPLETE`, such as "complete_bash".
    """
    if instruction not in ("complete_bash", "complete_zsh", "complete_fish"):
        return None
    values = _completions(*(_words_of_bash() if instruction == "complete_bash" else _words_typed()))
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return 0 if values else 1
    print(_for_zsh(values) if instruction == "complete_zsh" else "\n".join(values))
    return 0


def _completions(words: Sequence[str], incomplete: str) -> list[str]:
    try:
        return [word for word in complete(words, incomplete) if _SAFE.fullmatch(word)]
    # A message would end up in the line that is being typed.
    except Exception:
        if os.environ.get("AMPLIFIER_DEBUG"):
            raise
        return []


def _words_of_bash() -> tuple[list[str], str]:
    words = os.environ.get("COMP_WORDS", "").splitlines()
    number = os.environ.get("COMP_CWORD", "")
    position = int(number) if number.isdecimal() else 1
    incomplete = words[position] if position < len(words) else ""
    before = words[1:position]
    # bash makes words of `--option=value` as of `--option = value`.
    if incomplete == "=" and before and before[-1].startswith("--"):
        return before, ""
    if len(before) > 1 and before[-1] == "=" and before[-2].startswith("--"):
        before.pop()
    return before, incomplete


def _words_typed() -> tuple[list[str], str]:
    typed = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    try:
        words = shlex.split(typed)[1:]
    except ValueError:  # a quote that is still open
        words = typed.split()[1:]
    if words and not typed.endswith(" "):
        return words[:-1], words[-1]
    return words, ""


def _for_zsh(values: list[str]) -> str:
    """Code for zsh: values that end in a separator get no space after them."""
    if not values:
        return "_files"
    whole = [word for word in values if not word.endswith(("=", "."))]
    parts = [word for word in values if word.endswith(("=", "."))]
    commands = [f"compadd -- {' '.join(whole)}"] if whole else []
    commands += [f"compadd -S '' -- {' '.join(parts)}"] if parts else []
    return "; ".join(commands)
