"""Fixtures of the kernel's tests."""

from tests.core.module_folders import module_folders
from tests.kit.pytest_projects import project

__all__ = ["module_folders", "project"]
