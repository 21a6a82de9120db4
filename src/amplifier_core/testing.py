"""The published name of `amplifier_kit.testing`: test doubles for module authors."""

from amplifier_kit.testing import *  # noqa: F403
from amplifier_kit.testing import __all__  # noqa: F401
