"""The kernel: mechanisms only. Modules provide behaviour, an app provides policy.

Start with `contracts/README.md`. Then follow a prompt through the files, in this order:

session                  initialize, execute, clean up
coordinator              what modules are given: mount points, capabilities, cleanup; carry out a hook's result
hooks                    emit an event, call its handlers with copies of its data, merge their results
cancellation             stop a turn after its step, or at once
interfaces, events       the protocols of the five kinds of module; event names
models                   data of hooks and tools
mounting                 mount a plan's modules and check what they mounted

What modules exchange: message_models, content_models and llm_errors (requests to a model, its answers
and errors), capabilities (names of what providers can do), utils, approval. How modules get here:
module_sources says which there are and where they come from, loader imports them, module_checks checks
them. _foreign describes failures of their code.

For module authors, under published names and taken from `amplifier_kit`: testing, validation,
pytest_plugin, cli. display and correlation are published names of parts of approval and hooks.

Files with a leading underscore are internal to this project; all others are public.

`__init__.pyi` lists the exported names. They are loaded on first use, so that importing the package
is fast and never imports testing helpers or validators.
"""

import importlib
import os
from typing import Any

__version__ = "2.0.2"
"""Version of the published kernel that this one is compatible with."""

RUST_AVAILABLE = False


def _exports() -> dict[str, tuple[str, str]]:
    """For each exported name its module and its name there; submodules come from the package itself."""
    exports: dict[str, tuple[str, str]] = {}
    with open(os.path.join(os.path.dirname(__file__), "__init__.pyi"), encoding="utf-8") as stub:
        for line in stub:
            match line.split():
                case ["from", module, "import", attribute, "as", name]:
                    exports[name] = (module, attribute)
                case [alias, "=", name]:
                    exports[alias] = exports[name]
                case _:
                    continue
    return exports


_EXPORTS = _exports()
_SUBMODULES = {name for name, (module, _) in _EXPORTS.items() if module == __name__}

__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    {"RUST_AVAILABLE", "__version__", "capabilities"} | (_EXPORTS.keys() - _SUBMODULES)
)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'amplifier_core' has no attribute {name!r}")
    module, attribute = _EXPORTS[name]
    if name in _SUBMODULES:
        return importlib.import_module(f"{module}.{name}")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
