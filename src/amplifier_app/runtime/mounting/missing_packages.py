"""Suggest a `requires` line for a module whose import fails because a package is missing.

The error names the import package. Its distribution is known for those listed below; for others
the hint says "probably", as it assumes the same name.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from amplifier_app.base.installed import normalised
from amplifier_app.sources.requirements.fixed_versions import fixed_by

_FOUNDATION = "amplifier-foundation @ git+https://github.com/microsoft/amplifier-foundation"
_PUBLISHED = "git+https://github.com/microsoft/"

_DISTRIBUTIONS = {
    "amplifier_foundation": _FOUNDATION,
    "Crypto": "pycryptodome",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "git": "gitpython",
    "google.genai": "google-genai",
    "google.generativeai": "google-generativeai",
    "jwt": "pyjwt",
    "sklearn": "scikit-learn",
    "websocket": "websocket-client",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""Import name → the requirement that provides it, where the names differ."""

_OURS = ("amplifier_app", "amplifier_core", "amplifier_modules")
_NO_MODULE = r"No module named '([A-Za-z_][\w.]*)'"
_NO_NAME = r"cannot import name '(\w+)' from (?:partially initialized module )?'([\w.]+)'"
_NO_ATTRIBUTE = r"module '([\w.]+)' has no attribute '(\w+)'"
_FILE = r"\((/[^()]+|[A-Za-z]:\\[^()]+)\)"


class _Provider(NamedTuple):
    name: str
    version: str


def requires_hint(error: str, entry: str = "this entry") -> str | None:
    """Suggest an addition to a module's entry that fixes its import; None if there is none.

    Args:
        error: The error raised by the import.
        entry: How to refer to the module's entry in the plan.
    """
    missing = re.search(_NO_MODULE, error)
    if missing:
        top = missing[1].partition(".")[0]
        provider = _provider(top) if "." in missing[1] else None
        if provider is not None:
            return _version_hint(provider, entry)
        if top in _OURS or top in sys.stdlib_module_names:
            return None
        known = _known(missing[1])
        if known is not None:
            return f"add the missing package to {entry}: {_line(known)}"
        line = _line(_assumed_requirement(top))
        return f"add the missing package to {entry}, probably {line}"
    name = re.search(_NO_NAME, error)
    attribute = None if name else re.search(_NO_ATTRIBUTE, error)
    found = name or attribute
    if found is None:
        return None
    top = (name[2] if name else found[1]).partition(".")[0]
    file = re.search(_FILE, error)
    provider = None if top in _OURS else _provider(top, Path(file[1]) if file else None)
    return _version_hint(provider, entry) if provider is not None else None


def _known(imported: str) -> str | None:
    parts = imported.split(".")
    prefixes = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next((_DISTRIBUTIONS[one] for one in prefixes if one in _DISTRIBUTIONS), None)


def _assumed_requirement(top: str) -> str:
    name = top.replace("_", "-")
    return f"{name} @ {_PUBLISHED}{name}" if name.startswith("amplifier-module-") else name


def _version_hint(provider: _Provider, entry: str) -> str:
    numbers = provider.version.split(".")
    limit = ".".join(numbers[:2]) if numbers[0] == "0" else numbers[0]
    installed = f"the version in use is {provider.name} {provider.version}"
    if normalised(provider.name) in fixed_by({}):
        return f"{installed}, which Amplifier itself requires; use a version of the module that supports it"
    return f"{installed}; for an older version add to {entry}: {_line(f'{provider.name}<{limit}')}"


def _line(requirement: str) -> str:
    return f"requires: {json.dumps([requirement])}"


def _provider(top: str, file: Path | None = None) -> _Provider | None:
    """Return the installed distribution of a top-level package; None if there is none."""
    if file is None:
        try:
            spec = find_spec(top)
        except (ImportError, ValueError):
            # Partially imported, or without a spec: its distribution is unknown.
            return None
        if spec is None or spec.origin is None:
            # Missing, or a namespace shared by several distributions.
            return None
        file = Path(spec.origin)
    folder = next((one for one in (file, *file.parents) if one.stem == top), file).parent
    for found in metadata.distributions(path=[str(folder)]):
        if any(one.parts[0].partition(".")[0] == top for one in found.files or ()):
            return _Provider(found.name, found.version)
    return None
