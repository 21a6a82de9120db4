"""The published name of the behavioural test suites, see `amplifier_kit.validation.behavioral`."""

from amplifier_kit.validation.behavioral import *  # noqa: F403
from amplifier_kit.validation.behavioral import __all__  # noqa: F401
