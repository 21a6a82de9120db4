"""Settings of provider-local."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasChoices, Field

from amplifier_modules._shared.http.client import IDLE_TIMEOUT
from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_modules._shared.providers.settings import HTTPProviderConfig

MODULE_ID = "provider-local"


class LocalConfig(ModuleConfig):
    """Settings of provider-local.

    Attributes:
        model: An id of the catalogue or the path of a GGUF file (also `default_model`); by
            default the catalogue's first.
        gpu_layers: Layers of the model to run on a GPU.
        temperature: Sampling temperature; 0 is deterministic.
        top_p: Share of the likeliest tokens to sample from.
        tool_calling: How tools are called: ``json`` by constrained output, ``native`` by the
            model's own chat template, ``off`` not at all; ``auto`` uses what is known to work with
            the model.
        max_retries: Retries after a temporary failure; 0 for none.
        debug: Log every request and answer at DEBUG level, without their texts.
    """

    model: str = Field(default="", validation_alias=AliasChoices("model", "default_model"))
    cache_dir: str | None = Field(default=None, description="Folder that holds models/.")
    threads: int | None = Field(default=None, gt=0, description="CPU threads; half the cores.")
    gpu_layers: int | None = Field(default=None, ge=0)
    context_window: int | None = Field(default=None, gt=0, description="In tokens.")
    max_tokens: int | None = Field(default=None, gt=0, description="Longest answer, in tokens.")
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, ge=0, le=1)
    tool_calling: Literal["auto", "json", "native", "off"] = "auto"
    timeout: float | None = Field(default=None, gt=0, description="Limit of a call, in seconds.")
    idle_timeout: float = Field(default=IDLE_TIMEOUT, gt=0, description="In seconds.")
    max_retries: int = Field(default=1, ge=0)
    priority: int = Field(default=100, description="The lowest number is asked first.")
    debug: bool = False

    def for_client(self, model_id: str) -> HTTPProviderConfig:
        """The part of this for the client of the running model."""
        shared = HTTPProviderConfig.model_fields.keys() & LocalConfig.model_fields.keys()
        settings: dict[str, Any] = {name: getattr(self, name) for name in shared}
        settings["model"] = model_id
        return HTTPProviderConfig(**settings)
