"""What holds for the project as a whole."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from amplifier_app.base.own_packages import MODULE_PACKAGES

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = PROJECT["entry-points"]["amplifier.modules"]


def tracked() -> list[Path]:
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=30
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def test_nothing_points_outside_the_repository_or_names_a_registry() -> None:
    hosts = ["pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".", "debian" + ".org"]
    outside = ["/work" + "/", "../" + "shared/seeds", "../" + "shared/spec"]
    for path in tracked():
        if path.is_file():
            text = path.read_bytes().decode("utf-8", "replace")
            # `../work` is a folder of a test.
            found = [w for w in (*hosts, *outside) if re.search(rf"(?<!\.){re.escape(w)}", text)]
            assert found == [], path


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python 3.11.0 to 3.11.4 match such patterns wrongly; an atomic group `(?>(…)+)` is right."""
    on_a_group = re.compile(r"[^\\]\)(?:[+*?]|\{[\d,{} ]+\})\+")
    # The same in source code, where a pattern may continue in the next string.
    candidate = re.compile(r"\)[\s\"'rbf]*(?:[+*?]|\{[\d,{} ]+\})[\s\"'rbf]*\+")
    for file in SOURCES.rglob("*.py"):
        code = file.read_text()
        for node in ast.walk(ast.parse(code)) if candidate.search(code) else ():
            text = node.value if isinstance(node, ast.Constant) else ""
            text = text.decode("latin-1") if isinstance(text, bytes) else text
            assert not isinstance(text, str) or not on_a_group.search(text), (file, text)


@pytest.mark.parametrize("module_id", sorted(MODULES))
def test_every_bundled_module_is_what_its_entry_point_says(module_id: str) -> None:
    package, _, function = MODULES[module_id].partition(":")
    assert package in {f"{home}.{module_id.replace('-', '_')}" for home in MODULE_PACKAGES}
    module = importlib.import_module(package)
    assert callable(getattr(module, function))
    kinds = {"loop": "orchestrator", "hooks": "hook"}
    prefix = module_id.partition("-")[0]
    assert module.__amplifier_module_type__ == kinds.get(prefix, prefix)


def test_every_package_of_modules_has_an_entry_point() -> None:
    folders = {
        path.parent.name
        for package in MODULE_PACKAGES
        for path in (ROOT / "src" / package).glob("*/__init__.py")
        if not path.parent.name.startswith("_")
    }
    assert folders == {module_id.replace("-", "_") for module_id in MODULES}


def test_every_bundled_module_is_listed_and_profile_modules_exist() -> None:
    page = (ROOT / "src" / "amplifier_modules" / "README.md").read_text()
    listed = re.findall(r"\[`([\w-]+)`\]\((?:\.\./amplifier_extras/)?(\w+)/README\.md\)", page)
    assert listed
    assert dict(listed) == {module_id: module_id.replace("-", "_") for module_id in MODULES}
    for profile in (ROOT / "profiles").glob("*.yaml"):
        data = yaml.safe_load(profile.read_text())
        named = [
            entry["module"]
            for section in ("providers", "tools", "hooks")
            for entry in data.get(section, [])
        ]
        assert set(named) <= set(MODULES), profile


def test_the_readme_has_the_two_lines_ci_runs() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in ("run", "test"):
        (block,) = re.findall(rf"<!-- {name} -->\n```sh\n(.*?)\n```", readme, re.DOTALL)
        assert "\n" not in block
    for extra in ("dev", "local"):
        for requirement in PROJECT["optional-dependencies"][extra]:
            name = re.split(r"[\[>=<]", requirement)[0]
            assert re.search(rf"^{name}==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)


def test_the_changelog_has_an_unreleased_part() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_files_that_contributing_lists_to_read_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    part = text[text.index("## Reading the code") : text.index("## Rules")]
    named = re.findall(r"`([\w/]+\.py|[\w/]+/)`", part)
    assert len(named) > 50
    existing = [f"/{path.relative_to(SOURCES)}" for path in SOURCES.rglob("*")]
    for name in named:
        assert any(path.endswith(f"/{name.rstrip('/')}") for path in existing), name


def test_relative_links_of_pages_lead_to_files() -> None:
    for page in tracked():
        if page.suffix == ".md" and page.is_file():
            text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
            links = re.findall(r"\]\(([^)#\s:]+)[)#]", text)
            assert [link for link in links if not (page.parent / link).exists()] == [], page


def test_files_listed_for_imports_inside_functions_have_some() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    listed = [name for name in settings["per-file-ignores"] if name.startswith("src/")]
    assert listed
    for name in listed:
        functions = [
            node
            for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8")))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        assert any(
            isinstance(node, (ast.Import, ast.ImportFrom))
            for function in functions
            for node in ast.walk(function)
        ), f"{name} no longer needs its entry under per-file-ignores in pyproject.toml"


PUBLISHED = ("cli.py", "pytest_plugin.py", "testing.py", "validation/")
"""Files of the kernel that lead to `amplifier_kit` under their published names."""


@pytest.mark.parametrize(
    ("package", "others"),
    [("amplifier_core", {"amplifier_support", "pydantic"}), ("amplifier_support", set[str]())],
)
def test_the_kernel_needs_pydantic_and_support_only_the_standard_library(
    package: str, others: set[str]
) -> None:
    folder = ROOT / "src" / package
    for path in folder.rglob("*.py"):
        name = path.relative_to(folder).as_posix()
        is_published = package == "amplifier_core" and name.startswith(PUBLISHED)
        allowed = {package, *others, *({"amplifier_kit"} if is_published else ())}
        assert roots_imported_by(path) - sys.stdlib_module_names <= allowed, name


def roots_imported_by(path: Path) -> set[str]:
    """The top-level packages that a file imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


def test_the_page_of_the_test_machinery_names_files_that_exist() -> None:
    page = (ROOT / "tests" / "README.md").read_text()
    named = re.findall(r"`((?:support|app|modules|fuzz|bench)/[\w/.*]+)`", page)
    assert named
    for name in named:
        assert any((ROOT / "tests").glob(name)), name
    helpers = {path.stem for path in (ROOT / "tests" / "support").iterdir()}
    listed = set(re.findall(r"\w+", page))
    assert {name for name in helpers if not name.startswith("__")} - {"tls"} <= listed


def test_the_folders_of_tests_are_those_of_the_source() -> None:
    for name in ("app", "core", "modules", "amplifier_support"):
        tests = ROOT / "tests" / name
        source = ROOT / "src" / f"amplifier_{name.removeprefix('amplifier_')}"
        for file in tests.rglob("test_*.py"):
            folder = file.parent.relative_to(tests)
            part = source / folder
            is_there = part.is_dir() or part.with_suffix(".py").is_file()
            assert is_there, f"{file}: {source} has no {folder}"
    loose = {file.stem.removeprefix("test_") for file in (ROOT / "tests/app").glob("test_*.py")}
    assert loose <= {path.stem for path in (ROOT / "src/amplifier_app").iterdir()}
