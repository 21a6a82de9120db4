"""The page of capabilities lists each one, with all code that registers or reads it."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import amplifier_core
from amplifier_app.base.own_packages import MODULE_PACKAGES
from amplifier_support import session_capabilities
from amplifier_support.session_capabilities import Capability

SRC = Path(amplifier_core.__file__).parent.parent
PAGE = Path(amplifier_core.__file__).parent / "contracts" / "capabilities.md"
COMMON = {
    key: value.name
    for key, value in vars(session_capabilities).items()
    if isinstance(value, Capability)
}

SHARED = (
    "session.budget",
    "provider.pace",
    "secrets.variables",
    "redaction.event",
    "approval.remembered",
    "approval.mode",
    "backup.session",
)
"""What `runtime/capabilities.py` registers in a loop."""

_OF_TOOLS = {f"tool_{name}": name for name in ("working_dir", "sandbox", "check", "delegates")}

Uses = dict[str, tuple[set[str], set[str]]]


def unit(file: Path) -> str:
    """Owner of a file, as named on the page."""
    package, *rest = file.relative_to(SRC).parts
    if package not in MODULE_PACKAGES:
        return package.removeprefix("amplifier_").replace("core", "kernel")
    if rest[0] == "_shared":
        return {"loop": "loops", "context": "contexts"}.get(rest[1], "modules")
    return rest[0].replace("_", "-")


def build_key(node: ast.expr, known: dict[str, str]) -> str | None:
    """The name of the capability that an expression is the key of."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    word = _OF_TOOLS.get(ast.unparse(node.func)) if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Call) and word is not None:
        tool = node.args[0]
        return f"{tool.value if isinstance(tool, ast.Constant) else '*'}.{word}"
    return None


def uses_in(file: Path, private: dict[str, str]) -> Iterator[tuple[str, bool]]:
    """Capabilities that a file registers or reads, and whether it reads them.

    A key that is only passed on is read by the function that gets it.
    """
    tree = ast.parse(file.read_text())
    imported = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    known = {name: key for name, key in COMMON.items() if name in imported} | private
    called: set[ast.expr] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            key = build_key(node.func.value, known)
            if key is not None:
                called.add(node.func.value)
                yield key, node.func.attr == "of"
        elif isinstance(node, ast.Attribute):
            called.add(node.value)  # a name in a message
        elif isinstance(node, ast.Name) and node.id in known and node not in called:
            yield known[node.id], True


def private_keys(package: Path) -> dict[str, str]:
    """Keys that a module declares for itself."""
    texts = [file.read_text() for file in package.rglob("*.py")]
    declared = (node for text in texts if "Capability[" in text for node in ast.parse(text).body)
    return {
        node.targets[0].id: str(node.value.args[0].value)
        for node in declared
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Subscript)
        and ast.unparse(node.value.func.value) == "Capability"
        and isinstance(node.value.args[0], ast.Constant)
    }


def in_code() -> Uses:
    uses: Uses = defaultdict(lambda: (set(), set()))
    modules = [folder for name in MODULE_PACKAGES for folder in (SRC / name).iterdir()]
    others = [folder for folder in SRC.glob("amplifier_*") if folder.name not in MODULE_PACKAGES]
    for package in (*others, *modules):
        private = private_keys(package) if package.parent != SRC else {}
        for file in package.rglob("*.py"):
            if "apabilit" in file.read_text() or private:
                for name, reads in uses_in(file, private):
                    uses[name][reads].add(unit(file))
    for name in SHARED:
        uses[name][False].add("app")
    return dict(uses)


def on_the_page() -> Uses:
    rows = re.findall(r"^\| `([^`]+)` \|.*\|([^|]*)\|([^|]*)\|$", PAGE.read_text(), re.MULTILINE)
    return {name: (listed(registers), listed(reads)) for name, registers, reads in rows}


def listed(cell: str) -> set[str]:
    return {one.strip() for one in cell.split(",") if one.strip() not in ("", "-")}


def test_the_page_lists_who_registers_and_reads_each_capability() -> None:
    code, page = in_code(), on_the_page()
    assert sorted(page) == sorted(code)
    assert {name: page[name] for name in sorted(page)} == {n: code[n] for n in sorted(code)}


def test_code_reaches_capabilities_through_their_keys() -> None:
    by_name = re.compile(r"\.(get|register)_capability\(")
    assert sorted(
        str(file.relative_to(SRC)) for file in SRC.rglob("*.py") if by_name.search(file.read_text())
    ) == ["amplifier_support/session_capabilities.py"]
