"""The published name of the structural test suites, see `amplifier_kit.validation.structural`."""

from amplifier_kit.validation.structural import *  # noqa: F403
from amplifier_kit.validation.structural import __all__  # noqa: F401
