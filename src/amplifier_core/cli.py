"""The published name of the command ``amplifier-core``, see `amplifier_kit.core_cli`."""

from amplifier_kit.core_cli import main

__all__ = ["main"]
