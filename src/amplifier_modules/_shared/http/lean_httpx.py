"""httpx without its command line.

`import httpx` also imports httpx's own terminal client when click, rich and pygments happen to be
installed, which triples the cost of the import. Its package treats that client as optional, so it is
marked as absent during the import. Import `httpx` from here on start-up paths:

    from amplifier_modules._shared.http.lean_httpx import httpx
"""

from __future__ import annotations

import sys
from typing import Any, cast

_CLI = "httpx._main"

if "httpx" in sys.modules:
    import httpx
else:
    modules = cast("dict[str, Any]", sys.modules)
    modules[_CLI] = None  # None makes `from ._main import main` an ImportError, which httpx expects
    try:
        import httpx
    finally:
        del modules[_CLI]

__all__ = ["httpx"]
