"""Finding the module under test by folder names, and loading a new copy of it."""

import sys
from pathlib import Path

import pytest

from amplifier_kit.pytest_plugins.module_under_test import (
    find_kind,
    fresh_module,
    locate_around,
    locate_given,
    locate_in,
)
from tests.core.module_folders import ModuleFolders


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("amplifier_module_provider_x", "provider"),
        ("amplifier_module_tool_x_y", "tool"),
        ("amplifier_module_hook_x", "hook"),
        ("amplifier_module_hooks_x", "hook"),
        ("amplifier_module_loop_x", "orchestrator"),
        ("amplifier_module_orchestrator_x", "orchestrator"),
        ("amplifier_module_context_x", "context"),
        ("amplifier_module_tool", "tool"),
        ("amplifier_module_tools_x", None),
        ("amplifier_modules_tool_x", None),
        ("my_tool", None),
    ],
)
def test_kind_by_name(name: str, kind: str | None, module_folders: ModuleFolders) -> None:
    assert find_kind(module_folders.package("", name=name)) == kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ('__amplifier_module_type__ = "hook"', "hook"),
        ("import x\n__amplifier_module_type__: str = 'context'\n", "context"),
        ('__amplifier_module_type__ = "spaceship"', None),
        ('  # __amplifier_module_type__ = "hook"', None),
    ],
)
def test_kind_by_declaration(code: str, kind: str | None, module_folders: ModuleFolders) -> None:
    assert find_kind(module_folders.package(code, name="plain")) == kind


def test_kind_precedence_is_name_then_declaration_then_parent_folders(
    module_folders: ModuleFolders,
) -> None:
    declared = '__amplifier_module_type__ = "hook"'
    inside = "amplifier-module-context-x"
    named = module_folders.package(declared, name=f"{inside}/amplifier_module_tool_x")
    plain = module_folders.package(declared, name=f"{inside}/plain")
    bare = module_folders.package("", name=f"{inside}/bare")
    assert [find_kind(path) for path in (named, plain, bare)] == ["tool", "hook", "context"]


def test_kind_of_a_file_and_of_a_missing_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text('__amplifier_module_type__ = "tool"')
    assert find_kind(file) == "tool"
    assert find_kind(tmp_path / "missing") is None


def test_a_given_package_or_file_is_used_as_is(module_folders: ModuleFolders) -> None:
    package = module_folders.package("")
    (package / "part").mkdir()
    (package / "part" / "__init__.py").touch()
    assert locate_given(package).path == package
    assert locate_given(package / "__init__.py").path == package / "__init__.py"


def test_a_given_project_folder_resolves_to_its_package(module_folders: ModuleFolders) -> None:
    package = module_folders.package("", name="one/amplifier_module_tool_x")
    module_folders.package("", name="one/another")
    assert locate_given(module_folders.root / "one") == (package, "tool")
    package = module_folders.package("", name="two/src/my_tool")
    module_folders.package("", name="two/tests")
    assert locate_given(module_folders.root / "two").path == package
    module_folders.package("", name="three/first")
    module_folders.package("", name="three/second")
    assert locate_given(module_folders.root / "three").path == module_folders.root / "three"


def test_around_a_test_file(module_folders: ModuleFolders) -> None:
    project = module_folders.root / "amplifier-module-tool-x"
    test_file = project / "tests" / "unit" / "test_it.py"
    assert locate_around(test_file) is None
    package = module_folders.package("", name="amplifier-module-tool-x/amplifier_module_tool_x")
    module_folders.package("", name="amplifier-module-tool-x/zebra")
    assert locate_around(test_file) == (package, "tool")
    assert locate_around(module_folders.root / "test_it.py") is None


def test_the_modules_package_takes_precedence_over_others_in_the_project(
    module_folders: ModuleFolders,
) -> None:
    project = module_folders.root / "amplifier-module-tool-x"
    module_folders.package("", name=f"{project.name}/amplifier_helpers")
    package = module_folders.package("", name=f"{project.name}/amplifier_module_tool_x")
    assert locate_around(project / "tests" / "test_it.py") == (package, "tool")
    assert locate_given(project) == (package, "tool")


def test_a_project_of_any_name_that_declares_its_module(module_folders: ModuleFolders) -> None:
    package = module_folders.package('__amplifier_module_type__ = "tool"', name="mine/src/deploy")
    module_folders.package("", name="mine/helpers")
    test_file = module_folders.root / "mine" / "tests" / "test_it.py"
    assert locate_around(test_file) is None
    declaration = '[project.entry-points."amplifier.modules"]\n'
    project_file = module_folders.root / "mine" / "pyproject.toml"
    project_file.write_text(f'{declaration}tool-deploy = "deploy.module:mount"\n')
    assert locate_around(test_file) == locate_in(test_file.parent) == (package, "tool")
    project_file.write_text(f'{declaration}a = "deploy:mount"\nb = "helpers:mount"\n')
    assert locate_around(test_file) is None
    project_file.write_text("[project\n")
    assert locate_around(test_file) is None


def test_in_a_folder(module_folders: ModuleFolders) -> None:
    module_folders.package("", name="checkout/amplifier_core_like")
    assert locate_in(module_folders.root / "checkout") is None
    package = module_folders.package("", name="checkout/amplifier_module_loop_x")
    assert locate_in(module_folders.root / "checkout") == (package, "orchestrator")
    named = module_folders.package("", name="amplifier-module-hooks-x/amplifier_hooks_x")
    assert locate_in(module_folders.root / "amplifier-module-hooks-x") == (named, "hook")
    assert locate_in(module_folders.root / "amplifier-module-hooks-x" / "tests") == (named, "hook")
    assert locate_in(module_folders.root / "missing") is None


CODE = """
    from __future__ import annotations

    from dataclasses import dataclass

    from .part import Shared

    @dataclass
    class Settings:
        limit: int = 3

    counter = []

    def later():
        from .late import VALUE
        return VALUE
"""


def test_each_load_is_a_new_module_not_kept_in_sys_modules(module_folders: ModuleFolders) -> None:
    folder = module_folders.package(
        CODE, name="sample_fresh", part="class Shared: ...", late="VALUE = 5"
    )
    before, path = set(sys.modules), list(sys.path)
    with fresh_module(folder) as first:
        first.counter.append(1)
        assert "sample_fresh" not in sys.modules
        assert str(folder.parent) in sys.path
        assert first.Settings().limit == 3
        assert first.later() == 5
    with fresh_module(folder) as second:
        assert second is not first
        assert second.counter == []
        assert second.Shared is not first.Shared
    assert set(sys.modules) - before == set()
    assert sys.path == path


def test_modules_imported_by_the_tests_are_kept_and_shared(
    module_folders: ModuleFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = module_folders.package(
        CODE, name="sample_shared", part="class Shared: ...", late="VALUE = 5"
    )
    monkeypatch.syspath_prepend(str(folder.parent))
    import sample_shared  # pyright: ignore[reportMissingImports]

    with fresh_module(folder) as module:
        assert sys.modules["sample_shared"] is sample_shared
        assert module is not sample_shared
        assert module.Shared is sample_shared.Shared
    assert sys.modules["sample_shared"] is sample_shared


def test_a_single_file_can_be_loaded(tmp_path: Path) -> None:
    file = tmp_path / "sample_alone.py"
    file.write_text("VALUE = 1")
    with fresh_module(file) as module:
        assert (module.__name__, module.VALUE) == ("sample_alone", 1)


def test_a_failing_module_is_not_kept_in_sys_modules(module_folders: ModuleFolders) -> None:
    folder = module_folders.package("from . import part\n1 / 0", name="sample_fails", part="")
    before, path = set(sys.modules), list(sys.path)
    with pytest.raises(ZeroDivisionError), fresh_module(folder):
        pytest.fail("the block must not run")
    assert set(sys.modules) - before == set()
    assert sys.path == path


@pytest.mark.parametrize("name", ["missing", "missing.py", "notes.txt"])
def test_a_path_that_is_not_python_is_rejected(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ImportError, match=name), fresh_module(tmp_path / name):
        pytest.fail("the block must not run")
