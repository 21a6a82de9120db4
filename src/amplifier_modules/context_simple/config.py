"""Settings of context-simple."""

from amplifier_modules._shared.context.config import ContextConfig

MODULE_ID = "context-simple"


class SimpleContextConfig(ContextConfig):
    """What a mount plan may set for `context-simple`."""
