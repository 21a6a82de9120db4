"""Find and read test files: each test with its settings and where it is written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from amplifier_app.base.errors import Location, UsageError
from amplifier_app.base.paths import project_dir
from amplifier_app.plan.documents.document import read_root
from amplifier_app.plan.documents.profile_paths import find_profile, profile_names
from amplifier_app.plan.schema.config_check import config_problems
from amplifier_app.plan.schema.module_schemas import schema_of_installed
from amplifier_app.plan.schema.rules import Schema, normalise
from amplifier_app.plan.traffic import SCRIPT_MODULE, Script
from amplifier_app.plan.tree.nodes import (
    Budget,
    ListNode,
    MapNode,
    Node,
    Scalar,
    literal,
    read_text,
    to_node,
    with_items,
)
from amplifier_app.plan.tree.problems import Problems, suggest
from amplifier_app.plan.tree.yaml_reader import read_bytes
from amplifier_kit.plan_tests.grammar import RECORDED, TEST_FILE
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import did_you_mean

SUFFIXES = (".test.yaml", ".test.yml")
SEPARATOR = "::"

_SKIPPED = ("node_modules", "__pycache__", "venv")
_MERGED = ("files", "tools", "agents", "expect")
"""Mappings of a test that are merged with those of its file."""


class Case(NamedTuple):
    """One test.

    Attributes:
        file: The name of its file, as the user writes it.
        path: Its file, absolute.
        name: Its name.
        at: Where it is written.
        settings: Its settings merged with those of the file, without `tests` and `name`.
        own_agents: The agents it has scripts for itself; those of the file are for all of its tests.
    """

    file: str
    path: Path
    name: str
    at: Location
    settings: MapNode
    own_agents: frozenset[str]

    @property
    def id(self) -> str:
        """The text that selects it: `FILE::NAME`."""
        return f"{self.file}{SEPARATOR}{self.name}"

    def text(self, key: str) -> str | None:
        """The value of a setting that is a text."""
        return read_text(self.settings.items.get(key))

    def number(self, key: str, default: float) -> float:
        """The value of a setting that is a number."""
        node = self.settings.items.get(key)
        value = node.value if isinstance(node, Scalar) else None
        return float(value) if isinstance(value, (int, float)) else default

    def mapping(self, key: str) -> Mapping[str, Node]:
        """The items of a setting that is a mapping; empty if it is missing."""
        return read_items(self.settings, key)

    @property
    def expected_agents(self) -> Mapping[str, MapNode]:
        """The expectations of each agent."""
        agents = read_items(self.settings.items.get("expect"), "agents").items()
        return {name: node for name, node in agents if isinstance(node, MapNode)}

    def read_path(self, key: str) -> Path | None:
        """The path in a setting; relative ones start at the folder of the file."""
        text = self.text(key)
        return None if text is None else self.path.parent / Path(text).expanduser()

    @property
    def replies(self) -> int:
        """The number of replies in its script."""
        node = self.settings.items.get("script")
        return len(node.items) if isinstance(node, ListNode) else 0

    @property
    def agent_replies(self) -> Mapping[str, int]:
        """The number of replies in the script of each agent."""
        agents = self.mapping("agents").items()
        return {name: len(node.items) for name, node in agents if isinstance(node, ListNode)}

    @property
    def script(self) -> Script | None:
        """The replies of the models; None if a recording is replayed."""
        replies = self.settings.items.get("script")
        if not isinstance(replies, ListNode):
            return None
        agents = self.mapping("agents").items()
        return Script(
            _replies(replies),
            {name: _replies(node) for name, node in agents if isinstance(node, ListNode)},
        )


def read_items(node: Node | None, key: str) -> Mapping[str, Node]:
    """The items of a mapping within a mapping; empty if it is missing."""
    inner = node.items.get(key) if isinstance(node, MapNode) else None
    return inner.items if isinstance(inner, MapNode) else {}


# -- which tests -------------------------------------------------------------------------


def find_cases(targets: Sequence[str], keyword: str | None = None) -> list[Case]:
    """The selected tests, by file and in the order of the files.

    Args:
        targets: Files, folders, or `FILE::NAME`; the current folder if there are none.
        keyword: A text that the name of the test or of its file contains.

    Raises:
        UsageError: A path or a test does not exist, or no test is selected.
        PlanError: Files are invalid; with all problems.
    """
    selection: dict[Path, set[str] | None] = {}
    for target in targets or ["."]:
        place, separator, name = (
            (target, "", "") if os.path.exists(target) else target.partition(SEPARATOR)
        )
        for file in _files(Path(place)):
            names = selection.setdefault(file, set())
            if not separator:
                selection[file] = None
            elif names is not None:
                names.add(name)
    problems = Problems()
    cases: list[Case] = []
    for file, names in selection.items():
        cases += _selected(file, names, problems)
    problems.raise_if_any()
    if keyword is not None:
        cases = [case for case in cases if keyword.casefold() in case.id.casefold()]
    if not cases:
        places = [f"the folder {path}" if os.path.isdir(path) else path for path in targets]
        what = f" in {' or '.join(places)}" if places else ""
        what += f" whose name contains {keyword!r}" if keyword is not None else ""
        hint = f"Test files end with {SUFFIXES[0]}; see: amplifier docs testing"
        raise UsageError(f"there are no tests{what}", hint=hint)
    return cases


def _files(place: Path) -> Iterator[Path]:
    """The test files at a path.

    Raises:
        UsageError: It does not exist, or is not a test file.
    """
    if place.is_dir():
        for folder, folders, names in os.walk(place):
            folders[:] = sorted(name for name in folders if name[0] != "." and name not in _SKIPPED)
            yield from (Path(folder, name) for name in sorted(names) if _is_test_file(name))
    elif not place.exists():
        raise UsageError(f"{place} does not exist")
    elif not _is_test_file(place.name):
        raise UsageError(
            f"{place} is not a test file", hint=f"Its name must end with {SUFFIXES[0]}"
        )
    else:
        yield place


def _is_test_file(name: str) -> bool:
    """Return True for the name of a test file."""
    return name.endswith(SUFFIXES)


def _selected(file: Path, names: set[str] | None, problems: Problems) -> list[Case]:
    before = len(problems)
    cases = read_cases(file, problems)
    if names is None or len(problems) > before:
        return cases
    known = {case.name for case in cases}
    for name in names - known:
        listed = f"Its tests: {', '.join(sorted(known))}"
        raise UsageError(f"{file} has no test {name!r}", hint=did_you_mean(name, known) or listed)
    return [case for case in cases if case.name in names]


# -- one file ----------------------------------------------------------------------------


def read_cases(file: Path, problems: Problems, label: str | None = None) -> list[Case]:
    """The tests of a file; those of a file with problems must not run.

    Args:
        file: The file.
        problems: Collects the problems.
        label: Its name in problems and ids; by default its path.

    Raises:
        ConfigError: It cannot be read.
    """
    label = label or str(file)
    before = len(problems)
    # Its limits are those of one document with what it refers to.
    problems.budget = Budget()
    data = read_bytes(file, label, TEST_FILE.what)
    root = read_root(label, data, TEST_FILE, problems)
    whole = normalise(root, label, problems, TEST_FILE)
    shared = {key: value for key, value in whole.items.items() if key != "tests"}
    tests = whole.items.get("tests")
    cases: list[Case] = []
    for node in tests.items if isinstance(tests, ListNode) else [whole]:
        if not isinstance(node, MapNode):
            continue
        name = read_text(node.items.get("name"))
        if isinstance(tests, ListNode) and name is None:
            problems.add("the test has no name", node.at, "set 'name'")
        own = {key: value for key, value in node.items.items() if key not in ("name", "tests")}
        settings = MapNode(_merged(shared, own), node.at)
        name = name or file.name.partition(".")[0]
        agents = frozenset(read_items(node, "agents"))
        cases.append(Case(label, file.absolute(), name, node.at, settings, agents))
    if len(problems) == before:
        if not cases:
            problems.add("the file has no tests", whole.key_at("tests"), "add one to 'tests'")
        _check(cases, problems)
    return cases


def _merged(shared: Mapping[str, Node], own: Mapping[str, Node]) -> dict[str, Node]:
    merged = {**shared, **own}
    for first, second in (("plan", "profile"), ("script", "recording")):
        for key, other in ((first, second), (second, first)):
            if key in own and other not in own:
                merged.pop(other, None)
    for key in _MERGED:
        below, above = shared.get(key), own.get(key)
        if isinstance(below, MapNode) and isinstance(above, MapNode):
            merged[key] = with_items(above, {**below.items, **above.items})
    return merged


def _check(cases: Iterable[Case], problems: Problems) -> None:
    """Check what a rule for one value cannot see."""
    seen: dict[str, Location] = {}
    for case in cases:
        if case.name in seen:
            hint = f"the other one is on line {seen[case.name].line}"
            problems.add(f"two tests are named {case.name!r}", case.at, hint)
        seen.setdefault(case.name, case.at)
        _check_one(case, problems)


def _check_one(case: Case, problems: Problems) -> None:
    items, what = case.settings.items, f"the test {case.name!r}"
    for first, second, use in (("plan", "profile", ""), ("script", "recording", "")):
        if first in items and second in items:
            problems.add(f"{what} has both {first!r} and {second!r}", items[second].at, "keep one")
        elif first not in items and second not in items:
            problems.add(f"{what} has no {first}", case.at, f"set {first!r} or {second!r}{use}")
    plan, profile = case.read_path("plan"), case.text("profile")
    if plan is not None and not plan.exists():
        problems.add(f"the plan {case.text('plan')!r} does not exist", items["plan"].at)
    # Trusted or not, the project may have it.
    if profile is not None and find_profile(profile, project := project_dir()) is None:
        known = profile_names(project)
        problems.add(f"unknown profile {profile!r}", items["profile"].at, suggest(profile, known))
    if "prompt" not in items:
        problems.add(f"{what} has no prompt", case.at, "set 'prompt'")
    if "recording" not in items:
        stubs = case.mapping("tools").items()
        nodes = [node for _, node in stubs if read_text(node) == RECORDED]
        nodes += [items[key] for key in ("match",) if key in items]
        for node in nodes:
            problems.add(f"{what} has no recording to use here", node.at, "set 'recording'")
    for files in (case.settings, items.get("expect")):
        for path, node in read_items(files, "files").items():
            if not _is_path(path):
                hint = "paths start in it, such as 'src/app.py'"
                problems.add(f"{path!r} is not a file in the working directory", node.at, hint)
    if case.script is not None:
        _check_script(case.script, problems)


def _is_path(text: str) -> bool:
    """Return True if a text is the path of a file in a folder, written in the only form of it."""
    path = PurePosixPath(text)
    is_inside = bool(path.parts) and path.parts[0] != "/" and ".." not in path.parts
    return is_inside and str(path) == text and "\0" not in text


def _check_script(script: Script, problems: Problems) -> None:
    # The grammar of tests leaves these to the module that plays the script.
    schema = _script_schema()
    for replies in (script.replies, *script.agents.values()):
        entry = MapNode({"config": MapNode({"replies": replies}, replies.at)}, replies.at)
        problems.extend(config_problems(entry, "the script", schema))


@cache
def _script_schema() -> Schema:
    return schema_of_installed(SCRIPT_MODULE) or {}


# -- scripts -----------------------------------------------------------------------------


def _replies(node: ListNode) -> ListNode:
    """Replies as `provider-mock` reads them, and an error after the last one."""
    message = f"the script has no reply to request {len(node.items) + 1}; add one"
    end = {"error": {"type": "InvalidRequestError", "message": message}}
    replies: list[Node] = [_reply(item) for item in node.items]
    return ListNode([*replies, to_node(end, node.at, literal=True)], node.at)


def _reply(node: Node) -> MapNode:
    fields = node.items if isinstance(node, MapNode) else {"text": node}
    reply = {key: literal(value) for key, value in fields.items() if key != "calls"}
    calls = fields.get("calls")
    if isinstance(calls, ListNode):
        tool_calls = [_call(item) for item in calls.items if isinstance(item, MapNode)]
        reply["tool_calls"] = ListNode(tool_calls, calls.at)
    # A made-up model has no price, and an unknown one ends a plan with a limit of its cost.
    free: dict[str, Node] = {"cost_usd": Scalar("0", node.at, literal=True)}
    reply["usage"] = MapNode({**free, **read_items(node, "usage")}, node.at)
    return MapNode(reply, node.at)


def _call(node: MapNode) -> MapNode:
    ((name, value),) = node.items.items()
    return MapNode({"name": Scalar(name, node.at, literal=True), "input": literal(value)}, node.at)
