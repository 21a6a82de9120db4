"""llama.cpp inside this process: a model served on loopback.

`xllamacpp` runs the server on its own threads. It is bound to 127.0.0.1 on a free port, requires a
random key that only this process knows, and offers only the API: no web page, no cross-origin
access, no introspection. It writes nothing to stdout or stderr.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from amplifier_core.llm_errors import ConfigurationError
from amplifier_modules.provider_local.store import check_gguf

_SILENT = -1
_LOOPBACK = "127.0.0.1"
_HTTP_THREADS = 4
# Comments on a quiet stream, so that reading a long prompt on a slow machine is not silence; they
# also limit how long a stop waits for a client that has left.
_PING_SECONDS = 5
# Earlier prompts kept for alternating conversations, such as a sub-agent's and its parent's.
_PROMPT_CACHE_MIB = 512


class Engine:
    """A running model.

    Attributes:
        base_url: Address of its API.
        api_key: The key for its API.
    """

    def __init__(
        self,
        name: str,
        model: Path,
        *,
        context_window: int,
        threads: int | None = None,
        gpu_layers: int | None = None,
        fit_memory: bool = False,
    ) -> None:
        """Start it; takes a fraction of a second, mostly for memory setup.

        Args:
            name: The model's name in responses.
            model: A GGUF file.
            context_window: Tokens of prompt and answer together.
            threads: CPU threads; None for half the cores.
            gpu_layers: Layers to put on a GPU; None lets llama.cpp decide.
            fit_memory: Check the free memory first and use less if necessary.

        Raises:
            ConfigurationError: xllamacpp is not installed, or the file is unusable.
        """
        check_gguf(model)
        library = require_library()
        self.api_key = secrets.token_urlsafe(32)
        try:
            params = library.CommonParams()
            params.model.path = str(model)
            params.model_alias = {name}
            params.n_ctx = context_window
            for cpu in (params.cpuparams, params.cpuparams_batch):
                cpu.n_threads = threads or default_threads()
            if gpu_layers is not None:
                params.n_gpu_layers = gpu_layers
            params.fit_params = fit_memory
            _start_at_once(params)
            _close_doors(params, self.api_key)
            self._server: Any = library.Server(params)
        except AttributeError as error:
            raise ConfigurationError(
                f"provider-local: the installed xllamacpp is too old ({error}); "
                "update it with: pip install -U 'amplifier[local]'",
                provider="local",
            ) from error
        except RuntimeError as error:
            raise ConfigurationError(
                f"provider-local: llama.cpp cannot run {model}: {error}. The file may be damaged, "
                "of a kind this version does not know, or too large for the free memory",
                provider="local",
                model=str(model),
            ) from error
        self.base_url = f"{self._server.listening_address}/v1"

    def stop(self) -> None:
        """Stop it and free its memory. Clients must close their connections first."""
        self._server = None


def default_threads() -> int:
    """Half the cores this process may use, at least one."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every platform
        cores = os.cpu_count() or 1
    return max(1, cores // 2)


def require_library() -> Any:
    """The package that runs models. Raises `ConfigurationError` if it is not installed."""
    try:
        import xllamacpp  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise ConfigurationError(
            "provider-local: cannot import the package xllamacpp, which runs local models "
            f"({error}); install it with: pip install 'amplifier[local]'",
            provider="local",
        ) from error
    return xllamacpp


def _start_at_once(params: Any) -> None:
    # Map weights from the file instead of repacking them into memory; no trial run.
    params.no_extra_bufts = True
    params.warmup = False
    params.cache_ram_mib = _PROMPT_CACHE_MIB


def _close_doors(params: Any, key: str) -> None:
    params.verbosity = _SILENT
    params.hostnames = [_LOOPBACK]
    params.port = 0
    params.api_keys = [key]
    params.ui = False
    params.cors_origins = ""
    params.cors_methods = ""
    params.cors_headers = ""
    params.cors_credentials = False
    params.endpoint_slots = False
    params.n_threads_http = _HTTP_THREADS
    params.sse_ping_interval = _PING_SECONDS
