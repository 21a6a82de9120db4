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

from amplifier_modules.provider_local.store import check_gguf, configuration_error
from amplifier_support.installation import install_command

_SETTINGS: dict[str, Any] = {
    # Map weights from the file instead of repacking them into memory; no trial run.
    "no_extra_bufts": True,
    "warmup": False,
    # Earlier prompts kept for alternating conversations, such as a sub-agent's and its parent's.
    "cache_ram_mib": 512,
    "verbosity": -1,
    "hostnames": ["127.0.0.1"],
    "port": 0,
    "ui": False,
    "cors_origins": "",
    "cors_methods": "",
    "cors_headers": "",
    "cors_credentials": False,
    "endpoint_slots": False,
    "n_threads_http": 4,
    # Comments on a quiet stream, so that reading a long prompt on a slow machine is not silence;
    # they also limit how long a stop waits for a client that has left.
    "sse_ping_interval": 5,
}
"""The parameters of the server: it starts at once, is silent, and offers only what is needed."""


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
                cpu.n_threads = threads or _default_threads()
            if gpu_layers is not None:
                params.n_gpu_layers = gpu_layers
            params.fit_params = fit_memory
            for setting, value in {**_SETTINGS, "api_keys": [self.api_key]}.items():
                setattr(params, setting, value)
            self._server: Any = library.Server(params)
        except AttributeError as error:
            raise configuration_error(
                f"the installed xllamacpp is too old ({error}); "
                f"install it with: {install_command('local')}"
            ) from error
        except RuntimeError as error:
            raise configuration_error(
                f"llama.cpp cannot run {model}: {error}. The file may be damaged, "
                "of a kind this version does not know, or too large for the free memory",
                str(model),
            ) from error
        self.base_url = f"{self._server.listening_address}/v1"

    def stop(self) -> None:
        """Stop it and free its memory. Clients must close their connections first."""
        self._server = None


def _default_threads() -> int:
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
        raise configuration_error(
            f"cannot import the package xllamacpp, which runs local models ({error}); "
            f"install it with: {install_command('local')}"
        ) from error
    return xllamacpp
