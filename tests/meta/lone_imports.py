"""Import each of the given modules alone; a program that `test_lone_imports` runs.

Each module gets a process that has imported nothing but modules it needs itself, as an interpreter has that was
started to import it. The processes are forked from one another: what many modules need is imported once for all
of them. In a circle of imports, none of its modules is imported before another one.

stdin: a JSON list of two lists, the names of modules that come first, and those to import alone.
stdout: a JSON object with a text for each module to import: the traceback, or nothing if it can be imported.
"""

import builtins
import gc
import importlib
import json
import os
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping
from importlib.util import resolve_name
from typing import Any

BASE = [
    "anthropic",
    "anyio",
    "httpx",
    "jsonschema",
    "prompt_toolkit",
    "pydantic",
    "pytest",
    "rich",
    "typer",
    "yaml",
]


def main() -> None:
    below, names = json.load(sys.stdin)
    for name in [*BASE, *below]:
        importlib.import_module(name)
    gc.disable()
    needs = json.loads(_in_child(lambda: json.dumps(_record_needs(names))))
    following = _plan(names, {name: set(modules) for name, modules in needs.items()})
    lines = _in_child(lambda: _visit("", following)).splitlines()
    print(json.dumps(dict(json.loads(line) for line in lines)))


def _in_child(work: Callable[[], str]) -> str:
    """Return what the function returns in a forked process, and what the processes that it forks write."""
    reader, writer = os.pipe()
    if not os.fork():
        os.dup2(writer, 1)
        os.closerange(3, writer + 1)
        print(work(), end="", flush=True)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.wait()
    return text


def _record_needs(names: list[str]) -> dict[str, list[str]]:
    """Import all modules; return the modules among them that each one needs, directly or not."""
    among = {*names}
    direct = defaultdict[str, set[str]](set)
    load = builtins.__import__

    def record(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        result = load(name, globals, locals, fromlist, level)
        importing = (globals or {}).get("__name__")
        if importing in among:
            full = resolve_name("." * level + name, globals["__package__"]) if level else name
            direct[importing].update({full, *(f"{full}.{part}" for part in fromlist or ())} & among)
        return result

    builtins.__import__ = record
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException:
            pass  # It is reported when it is imported alone.
    needs: dict[str, list[str]] = {}
    for name in names:
        needed, waiting = set[str](), [name]
        while waiting:
            module = waiting.pop()
            packages = {package for package in _packages(module) if package in among}
            new = (direct[module] | packages) - needed
            needed |= new
            waiting += new
        needs[name] = sorted(needed)
    return needs


def _packages(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _plan(names: list[str], needs: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """Return the modules to import after each module: it and what it needs are a part of what they need."""
    following = defaultdict[str, list[str]](list)
    for name in names:
        # All that its process will have imported is needed by the next one, which is not among it.
        before = (
            other
            for other in needs[name]
            if name not in needs[other] and needs[other] | {other} <= needs[name]
        )
        following[max(before, key=lambda other: len(needs[other]), default="")].append(name)
    return dict(following)


def _visit(name: str, following: Mapping[str, list[str]]) -> str:
    """Import the modules that follow in processes forked from this one, the last of them in this one."""
    *others, last = following[name]
    for other in others:
        if not os.fork():
            _import_and_go_on(other, following)
            os._exit(0)
        os.wait()
    _import_and_go_on(last, following)
    return ""


def _import_and_go_on(name: str, following: Mapping[str, list[str]]) -> None:
    failure = ""
    try:
        importlib.import_module(name)
    except BaseException:
        failure = traceback.format_exc()[-2000:]
    os.write(1, (json.dumps([name, failure]) + "\n").encode())
    if name in following:
        _visit(name, following)


if __name__ == "__main__":
    main()
