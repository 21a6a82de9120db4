"""Which installed packages keep their version, against what the code really imports."""

import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import amplifier_app
from amplifier_app.base import own_packages
from amplifier_app.base.installed import bundled_modules, normalised
from amplifier_app.sources.requirements.fixed_versions import (
    AMPLIFIER,
    MODULE_PACKAGES,
    fixed_by,
    own_requirements,
)

SOURCE = Path(amplifier_app.__file__).parent.parent
OURS = {*own_packages.OWN_PACKAGES}
TESTS_ONLY = {"pytest", "_pytest", "pytest_asyncio"}
NAMESPACES = {"google"}
"""Shared by many distributions, of which the code imports one."""


# Parsing all files would take seconds. A line of a text that looks like an import adds a name.
_IMPORT = re.compile(r"^[ \t]*(?:import|from)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)


def imported_below(folder: Path) -> set[str]:
    """The top-level packages that the files below a folder import, at the top or later."""
    files = folder.rglob("*.py")
    found = {name for file in files for name in _IMPORT.findall(file.read_text(encoding="utf-8"))}
    return found - set(sys.stdlib_module_names) - OURS - TESTS_ONLY - NAMESPACES


distributions_of_packages = cache(metadata.packages_distributions)


def providers(packages: set[str]) -> set[str]:
    """The installed distributions that have these top-level packages."""
    by_package = distributions_of_packages()
    return {normalised(name) for one in packages for name in by_package.get(one, ())}


def test_everything_that_the_app_and_shared_code_import_is_held() -> None:
    held = fixed_by({})
    shared = SOURCE / "amplifier_modules" / "_shared"
    for folder in (SOURCE / "amplifier_app", SOURCE / "amplifier_core", shared):
        names = providers(imported_below(folder))
        assert names
        assert {held.get(name) for name in names} == {AMPLIFIER}, names - held.keys()


def test_everything_that_a_mounted_bundled_module_imports_is_held() -> None:
    always = fixed_by({}).keys()
    for module_id in bundled_modules():
        name = module_id.replace("-", "_")
        (folder,) = (
            SOURCE / home / name
            for home in own_packages.MODULE_PACKAGES
            if (SOURCE / home / name).exists()
        )
        names = providers(imported_below(folder)) - always
        assert not names or names <= fixed_by({module_id: "amplifier"}).keys(), module_id


def test_packages_of_an_unused_module_are_not_held() -> None:
    free = {name for names in MODULE_PACKAGES.values() for name in names}
    assert not free & fixed_by({}).keys()
    assert fixed_by({"provider-anthropic": "amplifier"})["anthropic"] == "provider-anthropic"
    assert {"httpx", "pydantic", "anyio", "typing-extensions"} <= fixed_by({}).keys()


def test_requirements_of_a_mounted_installed_module_are_held() -> None:
    held = fixed_by({"my-tool": "pytest"})
    assert (held["pytest"], held["pluggy"]) == ("my-tool", "my-tool")
    assert "pytest" not in fixed_by({})


def test_a_vendored_copy_leaves_out_only_what_every_installation_here_has() -> None:
    installed = {normalised(each.name) for each in metadata.distributions()}
    assert set(own_requirements()) <= installed
    assert {"pydantic", "pydantic-core", "httpx", "anthropic"} <= set(own_requirements())
