"""The engine that runs workers on a Ray cluster, or on a local Ray started for the batch.

An actor on a node runs a worker process like the local engine's and passes its lines on. The progress of the batch
is in its folder, so Ray restarts and retries nothing: a dead actor is reported as a dead worker. Nodes get the
program and the plan as a `runtime_env`; those that share the disk of the batch use its folder, others have copies of
what their rows need, see `amplifier_batch.engines.services`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import math
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from amplifier_app.base import paths
from amplifier_app.base.errors import AppError, ConfigError, SessionError
from amplifier_app.base.stdio import Output
from amplifier_app.commands.run.choose import choose
from amplifier_app.commands.run.request import Request
from amplifier_batch.engines.package import pack
from amplifier_batch.engines.pool import NODE_LOST, RAY_WORKER_DIED, WorkerPool, WorkerProcess
from amplifier_batch.engines.services import NodeServices, require_portable
from amplifier_batch.options import parse_resources
from amplifier_batch.record.writer import BatchWriter
from amplifier_batch.workdirs import Workdirs
from amplifier_support.installation import install_command
from amplifier_support.named_tuple import NamedTuple

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
_ROWS_PER_CPU = 8
"""Rows wait for the network most of the time."""

_START_SECONDS = 600.0
_ANSWER_SECONDS = 10.0
_WATCH_SECONDS = 3.0
_MISSES = 2
_NODE_DIED = "its node has died"
_STDERR = 2
_MAX_LOG = 1_000_000
"""Bytes of the log of a worker that are kept when it ends."""

Serve: TypeAlias = Callable[[Callable[[bytes], Awaitable[None]]], NodeServices]


class Started(NamedTuple):
    """The result of the start of a worker.

    Attributes:
        problem: Why it cannot be started.
        hint: What to do about it.
        place: The folders `root` and `package` of a node that does not share the disk of the batch.
    """

    problem: str | None = None
    hint: str | None = None
    place: Mapping[str, str] | None = None


class RayWorker:
    """An actor: a worker process on a node, for a `RayLink`.

    Args:
        folder: The folder of the batch.
        batch: The id of the batch in batch.json.
        environment: Further environment variables of a worker that shares the folder.
    """

    def __init__(self, folder: str, batch: str, environment: Mapping[str, str]) -> None:
        self._folder = Path(folder)
        self._batch = batch
        self._more = environment
        self._process: WorkerProcess | None = None
        self._log: int | None = None

    async def start(self) -> Started:
        """Start the process."""
        node = socket.gethostname()
        if os.environ.get(_MODE, "").lower() != "token":
            hint = f"Start every node of the cluster with {_MODE}=token and {_TOKEN}."
            return Started(f"the Ray cluster does not require a token (node {node})", hint)
        # Ray blocks it for its workers, and a child inherits that.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if self._has_folder():
            place, log = None, os.open(self._folder / "log.txt", os.O_WRONLY | os.O_APPEND)
        else:
            package = str(Path(__file__).parents[2])
            root = paths.cache_dir() / "batches" / self._batch
            place, self._more = {"root": str(root), "package": package}, {"PYTHONPATH": package}
            log, name = tempfile.mkstemp()
            os.unlink(name)
            self._log = os.dup(log)
        self._process = await WorkerProcess.start(log, self._environment())
        os.close(log)
        return Started(place=place)

    async def send(self, line: bytes) -> None:
        """Pass a line to the process."""
        assert self._process is not None
        await self._process.send(line)

    async def receive(self) -> bytes | str:
        """Wait for the next line of the process, or how it died."""
        assert self._process is not None
        line = await self._process.receive()
        return await self._process.wait_for_end() if line is None else line

    async def close(self) -> bytes:
        """End the process and return the end of what it wrote to a log of its own."""
        if self._process is not None:
            await self._process.close()
        if self._log is None:
            return b""
        size = os.fstat(self._log).st_size
        return os.pread(self._log, _MAX_LOG, max(0, size - _MAX_LOG))

    def _has_folder(self) -> bool:
        """Return True if this node shares the disk of the batch."""
        try:
            return json.loads((self._folder / "batch.json").read_bytes())["batch"] == self._batch
        except (OSError, ValueError, LookupError, TypeError):
            return False

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
        serve: Makes the services for a worker on a node that does not share the disk.
        log: Descriptor of the batch's log.
        running: The links whose workers have started.
        keys: The variables with the plan's secrets, for a node that does not share the disk.
    """

    def __init__(
        self,
        ray: Any,
        actor: Any,
        serve: Serve,
        log: int,
        running: set[RayLink],
        keys: Mapping[str, str | None] | None = None,
    ) -> None:
        self._ray = ray
        self._actor = actor
        self._serve = serve
        self._log = log
        self._place: Mapping[str, str] | None = None
        self._services: NodeServices | None = None
        self._running = running
        self._starting = asyncio.ensure_future(actor.start.remote())
        self._started = asyncio.Event()
        self._to_send: asyncio.Queue[bytes] = asyncio.Queue()
        if keys is not None:
            # Apart from other lines: Ray keeps long ones in its object store, which may be on disk.
            self._to_send.put_nowait(json.dumps({"keys": dict(keys)}).encode() + b"\n")
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
            while isinstance(message := await self._actor.receive.remote(), bytes):
                if self._services is None or not self._services.takes(json.loads(message)):
                    return message
            self._how = message
        except self._ray.exceptions.RayActorError as error:
            logging.getLogger("ray").warning("%s", error)
            if self._has_lost_node(error):
                self._how = NODE_LOST
        return None

    async def wait_for_end(self) -> str:
        """See `Link`."""
        await self.close()
        return self._how

    async def close(self) -> None:
        """See `Link`."""
        self._sending.cancel()
        self._starting.cancel()
        self._running.discard(self)
        if self._services is not None:
            await self._services.close()
        # An actor that has died cannot be closed.
        with contextlib.suppress(self._ray.exceptions.RayError, TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                os.write(self._log, await self._actor.close.remote())
        self._ray.kill(self._actor)

    def _has_lost_node(self, error: Exception) -> bool:
        """Return True if a node was pre-empted, has died or cannot be reached; the rows are not the cause."""
        # Ray must not be asked about its nodes: it ends this process if the cluster has stopped.
        is_unreachable = isinstance(error, self._ray.exceptions.ActorUnavailableError)
        return is_unreachable or getattr(error, "preempted", False) or _NODE_DIED in str(error)

    async def _start(self) -> None:
        try:
            while not (await asyncio.wait([self._starting], timeout=_START_SECONDS))[0]:
                # Rows of others may need the CPUs for hours.
                if not self._running:
                    raise AppError(
                        f"Ray started no worker within {_START_SECONDS / 60:.0f} min",
                        hint="See whether the cluster has free CPUs: ray status",
                    )
            started = Started(*self._starting.result())
        except self._ray.exceptions.RayTaskError as error:
            raise AppError(
                f"a worker on the Ray cluster cannot be started: {error.cause}",
                hint="Install the same versions of Python, Ray and Amplifier on all nodes.",
            ) from error
        if started.problem is not None:
            raise ConfigError(started.problem, hint=started.hint)
        if started.place is not None:
            self._services, self._place = self._serve(self.send), started.place
        self._how = RAY_WORKER_DIED
        self._running.add(self)
        self._started.set()

    async def _send(self) -> None:
        # The calls of an actor may overtake each other.
        await self._started.wait()
        try:
            while True:
                line = await self._to_send.get()
                if self._services is not None and self._place is not None:
                    line = await self._services.translate(line, self._place)
                await self._actor.send.remote(line)
        # A row whose lines cannot be sent would wait for ever; a dead worker is reported by the receiving side.
        except Exception as error:
            if not isinstance(error, self._ray.exceptions.RayActorError):
                logging.getLogger("ray").warning("cannot send to a worker: %r", error)
                self._ray.kill(self._actor)


@contextlib.asynccontextmanager
async def ray_engine(
    setup: Mapping[str, Any],
    writer: BatchWriter,
    environment: Mapping[str, str],
    workdirs: Workdirs,
) -> AsyncGenerator[WorkerPool]:
    """Run rows in workers on a Ray cluster.

    Args:
        setup: What each worker needs to know; see `amplifier_batch.execution.worker`.
        writer: The batch. The `address` of its facts is the `HOST:PORT` of the cluster, which this machine is a node
            of, or `auto` or `local`. None for the environment variable `RAY_ADDRESS`, or else `local`.
        environment: Further environment variables of the workers that share the disk of the batch.
        workdirs: Where the rows run.

    Raises:
        ConfigError: Ray is not installed, the token of the cluster is missing, or the plan cannot be packed.
        AppError: The cluster cannot be reached.
    """
    folder, facts = writer.folder.path, writer.folder.facts
    address = facts.get("address") or os.environ.get("RAY_ADDRESS") or LOCAL
    with contextlib.ExitStack() as stack:
        package, archive = None, None
        if address != LOCAL:
            _check_address(address)
            archive = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "batch.zip"
            request = Request.from_data(setup["request"])
            chosen = choose(request, Output(_STDERR))
            package = await pack(archive, request, chosen, workdirs.shared, folder)
        ray = _connect(address, folder, archive, stack)
        rows_share = workdirs.is_shared
        cpus = facts.get("cpus") or (1.0 if rows_share else 1 / _ROWS_PER_CPU)
        needs = {"CPU": cpus, **parse_resources(facts.get("resources"))}
        options = {
            "num_cpus": cpus,
            "resources": {name: amount for name, amount in needs.items() if name != "CPU"},
            "scheduling_strategy": "SPREAD",
        }
        actors = ray.remote(max_restarts=0, max_task_retries=0, **options)(RayWorker)

        def serve(send: Callable[[bytes], Awaitable[None]]) -> NodeServices:
            if package is None:
                raise SessionError(f"cannot read {folder / 'batch.json'}")
            require_portable(facts)
            return NodeServices(folder, package, send, pool.fail, writer.folder.sealer)

        running = set[RayLink]()

        async def connect() -> RayLink:
            actor = actors.remote(str(folder), facts["batch"], dict(environment))
            keys = None if package is None else package.keys
            return RayLink(ray, actor, serve, writer.log, running, keys)

        def count_places() -> int:
            nodes = (node["Resources"] for node in ray.nodes() if node["Alive"])
            return sum(
                min(int(node.get(name, 0) / amount) for name, amount in needs.items())
                for node in nodes
            )

        async def adjust() -> None:
            nonlocal places
            places = count_places()
            await pool.adjust()
            workers = math.ceil(pool.rows / _ROWS_PER_CPU) if rows_share else pool.rows
            # An autoscaler makes room for so many; without one, nothing happens.
            ray.autoscaler.sdk.request_resources(bundles=[needs] * workers)

        places = count_places()
        sealer = writer.folder.sealer
        pool = WorkerPool(lambda: places, setup, connect, rows_share=rows_share, sealer=sealer)
        watching = asyncio.create_task(watch(ray, pool, adjust))
        try:
            yield pool
        finally:
            # No call to a cluster that has stopped returns.
            if not watching.done():
                watching.cancel()
                await pool.close()
                ray.autoscaler.sdk.request_resources(bundles=[])


async def watch(ray: Any, pool: WorkerPool, adjust: Callable[[], Awaitable[None]]) -> None:
    """Follow the size of the cluster, and report that it has stopped; Ray itself would wait without a message."""
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
            await adjust()
            misses = 0
        except (OSError, TimeoutError, ray.exceptions.RayError):
            misses += 1
    hint = "Start it, then continue with: amplifier batch resume FOLDER"
    pool.fail(AppError("the Ray cluster stopped", hint=hint))


def _check_address(address: str) -> None:
    """Raise AppError for a cluster that cannot be used, before the plan is packed."""
    if "://" in address:
        raise ConfigError(
            f"cannot run a batch through Ray Client ({address})",
            hint="Run it on a node of the cluster with HOST:PORT or auto, or with: ray job submit",
        )
    _require_token(address)
    _require_answer(address)


def _connect(address: str, folder: Path, archive: Path | None, stack: contextlib.ExitStack) -> Any:
    """The package, connected to a cluster until the stack is closed; `archive` is what nodes get."""
    options: dict[str, Any]
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
        options = {"runtime_env": {"working_dir": str(archive)}}
    try:
        os.environ.update({**_SETTINGS, _MODE: "token"} | ({_TOKEN: token} if token else {}))
        ray = importlib.import_module("ray")
        importlib.import_module("ray.autoscaler.sdk")
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
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
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
