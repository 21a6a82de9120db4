"""A Ray cluster of real processes whose nodes have file systems of their own, as far as a test needs them.

    with Cluster.started(folder) as cluster:      # the head, on the disk of the test
        node = cluster.add_node(cpus=1)           # no disk in common: its own HOME, nothing in `folder`
        cluster.kill(node)                        # as when the machine fails

A node has Python and Ray only: its interpreter is a virtual environment with the packages that Ray requires. It runs
in a mount namespace, which needs root or user namespaces (`tests.support.small_disk.can_mount`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Generator, Mapping
from importlib import metadata
from pathlib import Path

from amplifier_app.sources.requirements.fixed_versions import requirement_names
from tests.support.waiting import wait_until

TOKEN = "0123456789abcdef" * 4
AUTHENTICATED = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": TOKEN,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "100",
}
_OPTIONS = ("--object-store-memory=80000000", "--block", "--disable-usage-stats")
_MARK = "TEST_CLUSTER"

# Without the program `mount`, which not every machine has.
_HIDE = """
import ctypes, json, os, sys
mount = ctypes.CDLL(None, use_errno=True).mount
for folder in json.loads(sys.argv[1]):
    if mount(b"none", os.fsencode(folder), b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "cannot mount", folder)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class Cluster:
    """A running cluster.

    Args:
        place: A folder for its files.
        hidden: The folder that nodes do not have.

    Attributes:
        address: Its `HOST:PORT`.
        shared: A folder that all nodes have, for what a test wants to see.
    """

    def __init__(self, place: Path, hidden: Path) -> None:
        self.place = place
        self.shared = place / "shared"
        self.shared.mkdir()
        self._hidden = hidden
        self._nodes: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"

    @classmethod
    @contextlib.contextmanager
    def started(
        cls, hidden: Path, *, cpus: int = 0, env: dict[str, str] | None = None
    ) -> Generator[Cluster]:
        """Start the head, and kill everything at the end.

        Args:
            hidden: The folder that nodes added later do not have.
            cpus: Those of the head.
            env: Further variables of the head.
        """
        # The paths of its sockets must be short.
        with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as name:
            cluster = cls(Path(name), hidden)
            port = cluster.address.partition(":")[2]
            try:
                cluster._start(
                    sys.executable,
                    ("--head", f"--port={port}", f"--num-cpus={cpus}", "--include-dashboard=false"),
                    {**os.environ, **(env or {})},
                )
                yield cluster
            finally:
                cluster.kill_all()

    def add_node(self, cpus: int = 1, resources: Mapping[str, float] | None = None) -> int:
        """Start a node and return its number, with which the name of its HOME ends."""
        home = self.place / f"node{len(self._nodes)}"
        (home / "tmp").mkdir(parents=True)
        environment = {
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "PATH": os.environ["PATH"],
        }
        return self._start(
            str(self._interpreter()),
            (
                f"--address={self.address}",
                f"--num-cpus={cpus}",
                f"--resources={json.dumps(resources or {})}",
            ),
            environment,
            without=(self._hidden, self.place / "r"),
        )

    def kill(self, node: int) -> None:
        """Kill all processes of a node."""
        _kill_all(self._nodes[node].pid, f"{self.place}/{node}")
        self._nodes[node].wait()

    def kill_all(self) -> None:
        """Kill all nodes."""
        for node in range(len(self._nodes)):
            self.kill(node)

    def environments(self) -> bytes:
        """The environments that the processes of the cluster were started with."""
        found = b""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (process / "environ").read_bytes()
                found += environment if f"{_MARK}={self.place}/".encode() in environment else b""
        return found

    def _start(
        self,
        interpreter: str,
        options: tuple[str, ...],
        environment: dict[str, str],
        without: tuple[Path, ...] = (),
    ) -> int:
        number = len(self._nodes)
        log = self.place / f"log{number}"
        argv = [interpreter, "-m", "ray.scripts.scripts", "start", *options, *_OPTIONS]
        if not without:
            argv.append(f"--temp-dir={self.place}/r")
        else:
            user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
            hide = [sys.executable, "-c", _HIDE, json.dumps([*map(str, without)])]
            argv = ["unshare", *user, "--mount", *hide, *argv]
        with open(log, "wb") as output:
            process = subprocess.Popen(
                argv,
                env={**environment, **AUTHENTICATED, _MARK: f"{self.place}/{number}"},
                cwd="/",
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._nodes.append(process)
        until = time.monotonic() + 120
        while b"Ray runtime started" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        return number

    def _interpreter(self) -> Path:
        """The interpreter of an environment that has Ray and what it requires."""
        folder = self.place / "python"
        if not folder.exists():
            venv.create(folder)
            target = next(folder.glob("lib/*/site-packages"))
            names, known = ["ray"], set[str]()
            while names:
                name = names.pop()
                if name in known:
                    continue
                known.add(name)
                with contextlib.suppress(metadata.PackageNotFoundError):
                    distribution = metadata.distribution(name)
                    names += requirement_names(name)
                    for top in {file.parts[0] for file in distribution.files or ()} - {".."}:
                        with contextlib.suppress(FileExistsError):
                            (target / top).symlink_to(Path(str(distribution.locate_file(top))))
        return folder / "bin" / "python"


def _kill_all(session: int, value: str) -> None:
    """Kill the processes of a session, and those that the environment marks as those of a node: some overwrite theirs."""
    mark = f"{_MARK}={value}".encode()

    def find() -> list[int]:
        found: list[int] = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                pid = int(process.name)
                is_marked = mark in (process / "environ").read_bytes().split(b"\0")
                if is_marked or (os.getsid(pid) == session and not _is_zombie(process)):
                    found.append(pid)
        return found

    def is_dead() -> bool:
        pids = find()
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_until(is_dead)


def _is_zombie(process: Path) -> bool:
    return (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
