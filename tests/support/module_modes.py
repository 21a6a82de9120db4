"""A module with modes, kept in `session_state` as the published hooks-mode keeps them: `MODES_MODULE` is its code.

Its config has `modes`: name → summary. A mode tells the model its name, and denies all tools.
"""

MODES_MODULE = """
from amplifier_core import HookResult


class Modes:
    def __init__(self, modes):
        self.modes = modes

    def list_modes(self):
        return [(name, summary, "kit") for name, summary in sorted(self.modes.items())]

    def get_shortcuts(self):
        return {name: name for name in self.modes}

    def find(self, name):
        return self.modes.get(name)


async def mount(coordinator, config=None):
    state = coordinator.session_state
    state["active_mode"] = None
    state["mode_discovery"] = Modes(dict((config or {}).get("modes", {})))

    async def guide(event, data):
        mode = state["active_mode"]
        if mode is None:
            return HookResult()
        text = f"MODE ACTIVE: {mode}"
        return HookResult(action="inject_context", context_injection=text, ephemeral=True)

    async def guard(event, data):
        mode = state["active_mode"]
        return HookResult() if mode is None else HookResult(action="deny", reason=f"mode {mode}")

    coordinator.hooks.register("provider:request", guide, name="guide")
    coordinator.hooks.register("tool:pre", guard, name="guard")
"""
