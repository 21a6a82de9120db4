"""Fixtures of the tests of tools for authors."""

from tests.core.module_folders import module_folders
from tests.kit.pytest_projects import project

__all__ = ["module_folders", "project"]
