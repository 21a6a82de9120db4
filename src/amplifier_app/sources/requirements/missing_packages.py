"""Suggest a `requires` line for a module that misses a package, or needs another version of one.

The error of an import names the import package. Its distribution is known for those listed below; for
others the hint says "probably", as it assumes the same name.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from amplifier_app.base.installed import normalised
from amplifier_app.base.own_packages import OWN_PACKAGES
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

_NO_MODULE = r"No module named '([A-Za-z_][\w.]*)'"
_NO_NAME = r"cannot import name '(\w+)' from (?:partially initialized module )?'([\w.]+)'"
_NO_ATTRIBUTE = r"module '([\w.]+)' has no attribute '(\w+)'"
_FILE = r"\((/[^()]+|[A-Za-z]:\\[^()]+)\)"
_CALL = r"(?:(\w+)\.)?(\w+)\(\) "  # how Python names the function that was called wrongly


def missing_package(error: str) -> str | None:
    """Return the requirement that provides what an import lacks; None if no package is missing."""
    missing = re.search(_NO_MODULE, error)
    top = missing[1].partition(".")[0] if missing else ""
    if missing is None or top in OWN_PACKAGES or top in sys.stdlib_module_names:
        return None
    if "." in missing[1] and _provider(top) is not None:
        return None  # another version of an installed package
    return _known(missing[1]) or _assumed_requirement(top)


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
        requirement = missing_package(error)
        if requirement is None:
            return None
        sure = ":" if _known(missing[1]) is not None else ", probably"
        return f"add the missing package to {entry}{sure} {_line(requirement)}"
    name = re.search(_NO_NAME, error)
    attribute = None if name else re.search(_NO_ATTRIBUTE, error)
    match = name or attribute
    if match is None:
        return None
    top = (name[2] if name else match[1]).partition(".")[0]
    file = re.search(_FILE, error)
    provider = None if top in OWN_PACKAGES else _provider(top, Path(file[1]) if file else None)
    return _version_hint(provider, entry) if provider is not None else None


def incompatibility_hint(
    error: Exception, root: Path, entry: str = "its entry in the plan"
) -> str | None:
    """Suggest a limit for the version of a package that a module uses wrongly; None if it uses none.

    Args:
        error: A `TypeError` or the like.
        root: The folder of the module's code, or its single file.
        entry: How to refer to the module's entry in the plan.
    """
    top = _misused_package(error, root)
    if top is None:
        return requires_hint(str(error), entry) if isinstance(error, ImportError) else None
    file = getattr(sys.modules.get(top), "__file__", None)
    provider = _provider(top, Path(file)) if file else None
    return _version_hint(provider, entry, _declared(root)) if provider is not None else None


def _misused_package(error: Exception, root: Path) -> str | None:
    """The third-party package whose code raised the error, or whose function or object it names."""
    trace, frames = error.__traceback__, list[FrameType]()
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        top = _top_package(frame.f_globals.get("__name__"))
        if top is not None:
            file = Path(frame.f_code.co_filename).resolve()
            if file != root and root not in file.parents:
                return top
            return _named_package(error, frame)
    return None


def _named_package(error: Exception, frame: FrameType) -> str | None:
    """The package of the object or the function that an error in a module's own code names."""
    if isinstance(error, AttributeError):
        owner = error.obj if isinstance(error.obj, type) else type(error.obj)
        return _top_package(getattr(error.obj, "__name__", None)) or _top_package(owner.__module__)
    call = re.search(_CALL, str(error))
    if call is None:
        return None
    values = (*frame.f_globals.values(), *frame.f_locals.values())
    used = {_top_package(_module_name(value)) for value in values} - {None}
    for name, module in list(sys.modules.items()):
        top = _top_package(name)
        owner: Any = vars(module).get(call[1] or call[2]) if top in used and module else None
        if owner is not None and _top_package(_module_name(owner)) == top:
            return top
    return None


def _module_name(value: Any) -> Any:
    return value.__name__ if isinstance(value, type(sys)) else getattr(value, "__module__", None)


def _top_package(name: Any) -> str | None:
    """The top-level package of a dotted name; None if it is part of Python or of Amplifier."""
    top = name.partition(".")[0] if isinstance(name, str) else ""
    ours = top in OWN_PACKAGES
    return None if not top or ours or top in sys.stdlib_module_names else top


def _declared(root: Path) -> Iterable[str]:
    """The requirements of the distribution of a module's code, as written."""
    installed = _provider(root.stem, root)
    if installed is not None:
        return installed.requires or ()
    for folder in (root.parent, root.parent.parent):
        try:
            project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
            return [str(text) for text in project["project"]["dependencies"]]
        # The file of a module: missing, or anything in it.
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return ()


def _known(imported: str) -> str | None:
    parts = imported.split(".")
    prefixes = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next((_DISTRIBUTIONS[prefix] for prefix in prefixes if prefix in _DISTRIBUTIONS), None)


def _assumed_requirement(top: str) -> str:
    name = top.replace("_", "-")
    return f"{name} @ {_PUBLISHED}{name}" if name.startswith("amplifier-module-") else name


def _version_hint(provider: metadata.Distribution, entry: str, declared: Iterable[str] = ()) -> str:
    installed = f"the version in use is {provider.name} {provider.version}"
    if normalised(provider.name) in fixed_by({}):
        return f"{installed}, which Amplifier itself requires; use a version of the module that supports it"
    limit = _written_for(provider, declared)
    if limit is None:
        numbers = provider.version.split(".")
        limit = ".".join(numbers[:2]) if numbers[0] == "0" else numbers[0]
    return f"{installed}; for an older version add to {entry}: {_line(f'{provider.name}<{limit}')}"


def _written_for(provider: metadata.Distribution, declared: Iterable[str]) -> str | None:
    """The major version after the one that a module was written for, if it is in use or older."""
    for text in declared:
        try:
            requirement = Requirement(text)
            bounds = [
                Version(bound.version.removesuffix(".*")).major
                for bound in requirement.specifier
                if bound.operator in (">=", ">", "~=", "==")
            ]
            if normalised(requirement.name) == normalised(provider.name) and bounds:
                following = max(bounds) + 1
                return str(following) if following <= Version(provider.version).major else None
        except (InvalidRequirement, InvalidVersion):
            continue
    return None


def _line(requirement: str) -> str:
    return f"requires: {json.dumps([requirement])}"


def _provider(top: str, file: Path | None = None) -> metadata.Distribution | None:
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
    folder = next((path for path in (file, *file.parents) if path.stem == top), file).parent
    for distribution in metadata.distributions(path=[str(folder)]):
        if any(
            installed.parts[0].partition(".")[0] == top for installed in distribution.files or ()
        ):
            return distribution
    return None
