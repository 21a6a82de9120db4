"""The engine that runs workers on a Ray cluster, or on a local Ray started for the batch.

An actor on a node runs a worker process like the local engine's and passes its lines on. The progress of the batch
is in its folder, so Ray restarts and retries nothing: a dead actor is reported as a dead worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping
from pathlib import Path
from typing import Any

from amplifier_app import __version__
from amplifier_app.base.errors import AppError, ConfigError
from amplifier_batch.engines.pool import PREEMPTED, RAY_WORKER_DIED, WorkerPool, WorkerProcess
from amplifier_support.installation import install_command

LOCAL = "local"
"""The address of a Ray that is started for the batch."""

_MODE, _TOKEN, _TOKEN_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Otherwise Ray sends the working directory to the cluster.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

_OBJECT_STORE_BYTES = 100_000_000
_CPUS_OF_A_WORKER = 0.01
"""Workers wait for the network most of the time. With none at all, they would also run on a head node
that is reserved for Ray."""

_START_SECONDS = 600.0
_ANSWER_SECONDS = 10.0
_WATCH_SECONDS = 3.0
_MISSES = 2


class RayWorker:
    """An actor: a worker process on a node, for a `RayLink`.

    Args:
        folder: The folder of the batch.
        environment: Further environment variables of the worker.
    """

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        self._folder = Path(folder)
        self._more = environment
        self._process: WorkerProcess | None = None

    async def start(self, version: str, batch: str) -> tuple[str, str] | None:
        """Start the process, or return why it cannot be started, and a hint.

        Args:
            version: The version of Amplifier that runs the batch.
            batch: The id of the batch in batch.json.
        """
        problem = self._problem(version, batch)
        if problem is None:
            # Ray blocks it for its workers, and a child inherits that.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            log = os.open(self._folder / "log.txt", os.O_WRONLY | os.O_APPEND)
            self._process = WorkerProcess(log, self._environment())
            await self._process.start()
            os.close(log)
        return problem

    async def send(self, line: bytes) -> None:
        """Pass a line to the process."""
        assert self._process is not None
        await self._process.send(line)

    async def receive(self) -> bytes | str:
        """Wait for the next line of the process, or how it died."""
        assert self._process is not None
        line = await self._process.receive()
        return await self._process.wait_for_end() if line is None else line

    async def close(self) -> None:
        """End the process."""
        if self._process is not None:
            await self._process.close()

    def _problem(self, version: str, batch: str) -> tuple[str, str] | None:
        node = socket.gethostname()
        if os.environ.get(_MODE, "").lower() != "token":
            hint = f"Start every node of the cluster with {_MODE}=token and {_TOKEN}."
            return f"the Ray cluster does not require a token (node {node})", hint
        if version != __version__:
            hint = "Install the same version on all nodes."
            return f"Amplifier is {__version__} on the Ray node {node}, but {version} here", hint
        try:
            found = json.loads((self._folder / "batch.json").read_bytes())
        except (OSError, ValueError):
            found = {}
        if found.get("batch") != batch:
            hint = "Put the folder, the plan and its files on a file system that all nodes share."
            return f"the Ray node {node} does not have the folder {self._folder}", hint
        return None

    def _environment(self) -> dict[str, str]:
        """The environment of the worker, without what Ray has added and without the token."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        kept.pop("LD_PRELOAD", None)
        return {**kept, **self._more}


class RayLink:
    """A `Link` to the worker process of an actor.

    Args:
        ray: The package.
        actor: The handle of a `RayWorker`.
        batch: The id of the batch.
    """

    def __init__(self, ray: Any, actor: Any, batch: str) -> None:
        self._ray = ray
        self._actor = actor
        self._starting = actor.start.remote(__version__, batch)
        self._started = asyncio.Event()
        self._to_send: asyncio.Queue[bytes] = asyncio.Queue()
        self._sending = asyncio.create_task(self._send())
        self._how = f"Ray did not start it: is {_MODE}=token set on all nodes of the cluster?"

    async def send(self, line: bytes) -> None:
        """See `Link`. Does not wait: the actor may start later."""
        self._to_send.put_nowait(line)

    async def receive(self) -> bytes | None:
        """See `Link`."""
        try:
            if not self._started.is_set():
                await self._start()
            found = await self._actor.receive.remote()
        except self._ray.exceptions.RayActorError as error:
            logging.getLogger("ray").warning("%s", error)
            self._how = PREEMPTED if getattr(error, "preempted", False) else self._how
            return None
        if isinstance(found, str):
            self._how = found
            return None
        return found

    async def wait_for_end(self) -> str:
        """See `Link`."""
        await self.close()
        return self._how

    async def close(self) -> None:
        """See `Link`."""
        self._sending.cancel()
        # An actor that has died cannot be closed.
        with contextlib.suppress(self._ray.exceptions.RayError, TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._actor.close.remote()
        self._ray.kill(self._actor)

    async def _start(self) -> None:
        try:
            async with asyncio.timeout(_START_SECONDS):
                problem = await self._starting
        except TimeoutError:
            raise AppError(
                f"Ray started no worker within {_START_SECONDS / 60:.0f} min",
                hint="See whether the cluster has free CPUs: ray status",
            ) from None
        except self._ray.exceptions.RayTaskError as error:
            raise AppError(
                f"a worker on the Ray cluster cannot be started: {error.cause}",
                hint="Install the same versions of Python, Ray and Amplifier on all nodes.",
            ) from error
        if problem is not None:
            raise ConfigError(problem[0], hint=problem[1])
        self._how = RAY_WORKER_DIED
        self._started.set()

    async def _send(self) -> None:
        # The calls of an actor may overtake each other.
        await self._started.wait()
        # One that has died is reported by the receiving side.
        with contextlib.suppress(self._ray.exceptions.RayActorError):
            while True:
                await self._actor.send.remote(await self._to_send.get())


@contextlib.asynccontextmanager
async def ray_engine(
    setup: Mapping[str, Any],
    folder: Path,
    batch: str,
    environment: Mapping[str, str],
    *,
    address: str | None,
    rows_share: bool,
) -> AsyncGenerator[WorkerPool]:
    """Run rows in workers on a Ray cluster.

    Args:
        setup: What each worker needs to know; see `amplifier_batch.execution.worker`.
        folder: The folder of the batch, which all nodes must have.
        batch: The id of the batch in its batch.json.
        environment: Further environment variables of the workers.
        address: The `HOST:PORT` of the cluster, which this machine is a node of, or `auto` or `local`. None for the
            environment variable `RAY_ADDRESS`, or else `local`.
        rows_share: Whether a process can run several rows at a time; otherwise each row has its own.

    Raises:
        ConfigError: Ray is not installed, or there is no token for the cluster.
        AppError: The cluster cannot be reached.
    """
    with contextlib.ExitStack() as stack:
        ray = _connect(address or os.environ.get("RAY_ADDRESS") or LOCAL, folder, stack)
        options = {"num_cpus": _CPUS_OF_A_WORKER, "scheduling_strategy": "SPREAD"}
        actors = ray.remote(max_restarts=0, max_task_retries=0, **options)(RayWorker)

        async def connect() -> RayLink:
            return RayLink(ray, actors.remote(str(folder), dict(environment)), batch)

        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        pool = WorkerPool(cores if rows_share else sys.maxsize, setup, connect)
        watching = asyncio.create_task(_watch(ray, pool))
        try:
            yield pool
        finally:
            # No call to a cluster that has stopped returns.
            if not watching.done():
                watching.cancel()
                await pool.close()


async def _watch(ray: Any, pool: WorkerPool) -> None:
    """Report that the cluster has stopped; Ray itself would wait without a message."""
    context = ray.get_runtime_context()
    here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    host, _, port = context.gcs_address.rpartition(":")
    addresses = (host.strip("[]"), int(port)), (here["NodeManagerAddress"], here["NodeManagerPort"])
    misses = 0
    while misses < _MISSES:
        await asyncio.sleep(_WATCH_SECONDS)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                for address in addresses:
                    _, writer = await asyncio.open_connection(*address)
                    writer.close()
            misses = 0
        except (OSError, TimeoutError):
            misses += 1
    hint = "Start it, then continue with: amplifier batch resume FOLDER"
    pool.fail(AppError("the Ray cluster stopped", hint=hint))


def _connect(address: str, folder: Path, stack: contextlib.ExitStack) -> Any:
    """The package, connected to a cluster until the stack is closed."""
    options: dict[str, Any]
    if "://" in address:
        raise ConfigError(
            f"cannot run a batch through Ray Client ({address})",
            hint="Run it on a node of the cluster with HOST:PORT or auto, or with: ray job submit",
        )
    if address == LOCAL:
        token = secrets.token_hex(32)
        options = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        # Ray opens its folder to everyone, and the paths of its sockets must be short.
        place = "/tmp" if os.name == "posix" else None
        private = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="amplifier-ray-", dir=place)
        )
        options["_temp_dir"] = os.path.join(private, "r")
    else:
        token = os.environ.get(_TOKEN)
        options = {}
        _require_token(address)
        _require_answer(address)
    try:
        os.environ.update({**_SETTINGS, _MODE: "token"} | ({_TOKEN: token} if token else {}))
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(
            f"--engine ray needs the package ray ({error})",
            hint=f"Install it with: {install_command('ray')}",
        ) from error
    stack.enter_context(_output_to(folder / "log.txt"))
    stack.callback(ray.shutdown)
    try:
        with _keep_signals_and_imports():
            ray.init(address=address, log_to_driver=False, logging_level="warning", **options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise AppError(
            f"cannot use Ray at {address}: {reason}",
            hint=f"Check the address, whether this machine is a node of the cluster, and {_TOKEN}.",
        ) from error
    return ray


def _require_token(address: str) -> None:
    """Raise ConfigError if a cluster would be used without authentication."""
    hint = f"Start the cluster with {_MODE}=token, and set {_TOKEN} or {_TOKEN_FILE} here as well."
    if os.environ.get(_MODE, "token").lower() != "token":
        raise ConfigError(f"refusing to use Ray at {address} with {_MODE} disabled", hint=hint)
    saved = Path.home() / ".ray" / "auth_token"
    if not (os.environ.get(_TOKEN) or os.environ.get(_TOKEN_FILE) or saved.is_file()):
        raise ConfigError(f"no token for the Ray cluster at {address}", hint=hint)


def _require_answer(address: str) -> None:
    """Raise AppError if nothing answers at the address; Ray would report it after minutes."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "Check the address, and whether the cluster runs: ray status"
        raise AppError(f"cannot reach Ray at {address}: {reason.lower()}", hint=hint) from error


@contextlib.contextmanager
def _keep_signals_and_imports() -> Generator[None]:
    """Keep the handlers of signals, and keep Ray from importing code from the working directory."""
    handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    folder = os.getcwd()
    os.chdir("/")
    try:
        yield
    finally:
        os.chdir(folder)
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def _output_to(log: Path) -> Generator[None]:
    """Write what Ray prints and logs in this process to a file."""
    logger = logging.getLogger("ray")
    with open(log, "a", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        # Its own handlers write to stderr.
        handlers: list[logging.Handler] = [logging.StreamHandler(file)]
        before, logger.handlers = logger.handlers, handlers
        propagates, logger.propagate = logger.propagate, False
        try:
            yield
        finally:
            logger.handlers, logger.propagate = before, propagates
