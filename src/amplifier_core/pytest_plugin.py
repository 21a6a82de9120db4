"""The published name of the pytest plugin for module authors, see `amplifier_kit.pytest_plugins`."""

from amplifier_kit.pytest_plugins.module_fixtures import *  # noqa: F403
