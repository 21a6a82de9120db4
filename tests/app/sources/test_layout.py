"""Where a module is in a folder."""

import sys
from pathlib import Path

import pytest

from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.requirements.layout import find_layout
from tests.support.module_repositories import SEED_TOOL, Files, write_files

MOUNT = "async def mount(coordinator, config):\n    return None\n"
HELPER = "X = 1\n"


def project(*points: str, extra: str = "") -> str:
    table = "\n".join(points)
    return (
        f'[project]\nname = "x"\nversion = "1"\n{extra}\n'
        f'[project.entry-points."amplifier.modules"]\n{table}\n'
    )


@pytest.mark.parametrize(
    ("files", "folder", "entry_point"),
    [
        (SEED_TOOL, ".", "my_tool:mount"),
        (
            {"pyproject.toml": project('my-tool = "my_tool:mount"'), "src/my_tool/__init__.py": ""},
            "src",
            "my_tool:mount",
        ),
        (
            {"pyproject.toml": project('my-tool = "my_tool:mount"'), "my_tool.py": MOUNT},
            ".",
            "my_tool:mount",
        ),
        (
            {"pyproject.toml": project('my-tool = "pkg.deep.plugin:setup"'), "pkg/x.py": ""},
            ".",
            "pkg.deep.plugin:setup",
        ),
        (
            {"pyproject.toml": project('my-tool = "my_tool"'), "my_tool/__init__.py": MOUNT},
            ".",
            "my_tool:mount",
        ),
        (
            {"pyproject.toml": project('other-name = "my_tool:mount"'), "my_tool.py": MOUNT},
            ".",
            "my_tool:mount",
        ),
        (
            {
                "pyproject.toml": project('a = "pkg.a:mount"', 'my-tool = "pkg.b:mount"'),
                "pkg/__init__.py": "",
            },
            ".",
            "pkg.b:mount",
        ),
        ({"__init__.py": MOUNT, "pyproject.toml": project('my-tool = "x:mount"')}, ".", None),
        ({"__init__.py": MOUNT, "other.py": HELPER}, ".", None),
        ({"amplifier_module_my_tool/__init__.py": MOUNT}, ".", "amplifier_module_my_tool:mount"),
        (
            {"src/amplifier_module_other/__init__.py": MOUNT, "helpers/__init__.py": MOUNT},
            "src",
            "amplifier_module_other:mount",
        ),
        ({"my_tool/__init__.py": HELPER, "b.py": MOUNT}, ".", "my_tool:mount"),
        (
            {"my_tool.py": MOUNT, "helper.py": HELPER, "tests/test_x.py": MOUNT},
            ".",
            "my_tool:mount",
        ),
        ({"thing.py": MOUNT, "helper.py": HELPER, "setup.py": MOUNT}, ".", "thing:mount"),
        (
            {"src/thing/__init__.py": "from thing.core import mount\n", "src/thing/core.py": MOUNT},
            "src",
            "thing:mount",
        ),
        ({"pyproject.toml": "[tool.ruff]\n", "thing.py": MOUNT}, ".", "thing:mount"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_layouts(files: Files, folder: str, entry_point: str | None, tmp_path: Path) -> None:
    # The folder that is itself a package is called as its entry point says.
    root = write_files(tmp_path / "x", files)
    layout = find_layout(root, "my-tool")
    assert layout.folder == (root / folder)
    assert layout.entry_point == entry_point


def test_a_single_file_is_a_module(tmp_path: Path) -> None:
    write_files(tmp_path, {"my_tool.py": MOUNT})
    layout = find_layout(tmp_path / "my_tool.py", "my-tool")
    assert (layout.folder, layout.entry_point) == (tmp_path, "my_tool:mount")


def test_dependencies_are_read_from_the_project(tmp_path: Path) -> None:
    extra = 'dependencies = ["amplifier-core", "httpx>=0.27"]\n'
    text = project('a = "a:mount"', extra=extra)
    layout = find_layout(write_files(tmp_path, {"pyproject.toml": text, "a.py": MOUNT}), "a")
    assert layout.dependencies == ("amplifier-core", "httpx>=0.27")
    assert layout.project_file == tmp_path / "pyproject.toml"
    assert not layout.dynamic


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"README.md": "x"},
            "no module in .*: none of its packages and files has a mount function",
        ),
        (
            {"my-tool/pyproject.toml": project('a = "a:mount"'), "my-tool/a.py": MOUNT},
            r"folders with modules: my-tool\n  Add '#subdirectory=my-tool' to a git source",
        ),
        ({"a.py": MOUNT, "b.py": MOUNT}, r"has several modules .*: a\.py, b\.py"),
        ({"pyproject.toml": "x = ["}, r"pyproject\.toml is not valid TOML"),
        ({"pyproject.toml": "project = 3\n"}, "'project' in .* is not a table"),
        (
            {"pyproject.toml": project('a = "a:mount"', 'b = "b:mount"')},
            "declares several modules, none named 'my-tool': a, b",
        ),
        (
            {"pyproject.toml": project('my-tool = "my_tol:mount"'), "my_tool.py": MOUNT},
            r"refers to 'my_tol:mount', but neither .* nor its src/ has my_tol/ or my_tol\.py",
        ),
        (
            {"pyproject.toml": project('my-tool = "os; id"')},
            "the entry point 'os; id' .* is not of the form 'package:mount'",
        ),
        (
            {"pyproject.toml": project('a = "a:mount"', extra='requires-python = ">=3.99"')},
            r"requires Python >=3\.99, but this is 3\.",
        ),
        (
            {"pyproject.toml": project('a = "a:mount"', extra='requires-python = "<3,>=2.7"')},
            "requires Python <3,>=2.7",
        ),
        (
            {"pyproject.toml": project('a = "a:mount"', extra='requires-python = "yes"')},
            "'requires-python' .* is not valid",
        ),
    ],
)
def test_a_folder_without_a_module_is_reported(files: Files, message: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=message):
        find_layout(write_files(tmp_path / "m", files), "my-tool")


def test_without_an_id_one_of_several_modules_is_given_by_its_folder(tmp_path: Path) -> None:
    points = project('a = "a:mount"', 'b = "b:mount"')
    write_files(tmp_path, {"pyproject.toml": points, "b/__init__.py": MOUNT})
    with pytest.raises(SourceError, match=r"none was selected: a, b\n  Give the folder .*: a, b"):
        find_layout(tmp_path)
    assert find_layout(tmp_path / "b").package == tmp_path / "b"


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"folder .* does not exist"):
        find_layout(tmp_path / "gone", "my-tool")
    write_files(tmp_path, {"x.txt": ""})
    with pytest.raises(SourceError, match="neither a folder nor a Python file"):
        find_layout(tmp_path / "x.txt", "my-tool")


def test_the_running_python_satisfies_its_own_version(tmp_path: Path) -> None:
    wanted = f'requires-python = "~={sys.version_info[0]}.{sys.version_info[1]}"'
    text = project('a = "a:mount"', extra=wanted)
    find_layout(write_files(tmp_path, {"pyproject.toml": text, "a.py": MOUNT}), "a")
