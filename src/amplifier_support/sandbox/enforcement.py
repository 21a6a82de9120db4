"""Enforces one policy on its commands, with what this machine offers. Loaded for the first command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from amplifier_support.files import is_below
from amplifier_support.sandbox import available, namespaces
from amplifier_support.sandbox.forwarder import proxy_variables
from amplifier_support.sandbox.kernel_layer import KernelLayer, Places
from amplifier_support.sandbox.policy import Confined, Confinement, SandboxPolicy
from amplifier_support.sandbox.proxy import Proxy
from amplifier_support.sandbox.session_state import PrivateFolder, SessionState

_DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/tty",
    "/dev/dtracehelper",
    "/dev/random",
    "/dev/urandom",
)


def profile(
    *, write: Sequence[str], read: Sequence[str], hidden: Sequence[str], internet: bool
) -> str:
    """The text of a profile.

    Args:
        write: Folders that may be changed, links resolved.
        read: Folders that may be read as well.
        hidden: Files and folders that may not be read or changed.
        internet: Whether the network may be used.
    """
    lines = [
        "(version 1)",
        "(deny default)",
        "(allow process-exec process-fork process-info* sysctl-read mach-lookup signal)",
        "(allow ipc-posix-sem ipc-posix-shm pseudo-tty)",
        "(allow file-read-metadata)",
        *_rule("allow file-read*", [*read, *write]),
        *_rule("allow file-write*", write),
        *_rule("allow file-read* file-write* file-ioctl", _DEVICES, kind="literal"),
        *_rule("deny file-read* file-write*", hidden),
        *(["(allow network* system-socket)"] if internet else []),
    ]
    return "\n".join(lines) + "\n"


def _rule(start: str, paths: Iterable[str], *, kind: str = "subpath") -> list[str]:
    places = [f"({kind} {_quoted(path)})" for path in paths]
    return [f"({start} {' '.join(places)})"] if places else []


def _quoted(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_SYSTEM = (
    "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/opt", "/proc", "/sys",
    "/dev", "/run/systemd/resolve", "/var/lib/dpkg", "/nix/store", "/gnu/store", "/snap",
    "/System", "/Library", "/private/etc", "/private/var/db",
)  # fmt: skip
_CACHES = {
    "XDG_CACHE_HOME": "cache",
    "PIP_CACHE_DIR": "cache/pip",
    "UV_CACHE_DIR": "cache/uv",
    "npm_config_cache": "cache/npm",
}


class Enforcement:
    """Enforces one policy on its commands.

    Args:
        policy: What they may do; this machine can enforce it.
        written: The folders that they may change, links resolved.
        shared: What the sandboxes of the session have in common.
        number: The policy's number among those of the session.
    """

    def __init__(
        self, policy: SandboxPolicy, written: tuple[str, ...], shared: SessionState, number: int
    ) -> None:
        self._policy = policy
        self._written = written
        self._shared = shared
        self._number = number
        self._kernel: KernelLayer | None = None
        self._proxy: Proxy | None = None
        self._proxy_starts: asyncio.Future[None] | None = None
        self._must_not_appear: list[str] | None = None
        self._missing: list[str] = []

    @property
    def temporary_folder(self) -> str:
        """The folder for temporary files of commands, created when it is first needed.

        Raises:
            OSError: It cannot be created.
        """
        if self._shared.private is None:
            self._shared.private = PrivateFolder()
        return self._shared.private.path

    def confine(self, argv: Sequence[str], environment: Mapping[str, str]) -> Confined:
        """Return the way to start a command.

        Raises:
            OSError: The temporary folder or the rules cannot be created.
        """
        environment = {**environment, **self._variables()}
        if sys.platform == "darwin":
            argv = [available.SEATBELT, "-p", self._profile(), *argv]
            return Confined(argv, environment, None)
        needed = frozenset[str]()
        if self._has_namespaces:
            needed = namespaces.paths_needed(argv, environment)
        return Confined(argv, environment, self._restrictions(), needed)

    def view(self, needed: frozenset[str]) -> bytes:
        """See `Sandbox.view`."""
        view = namespaces.View(
            folder=self._shared.folder,
            write=self._written,
            needed=needed | namespaces.folders_needed(self._shared.plan_files),
            shown=self._shown(),
            hidden=self._shared.hidden,
            fixed=self._shared.plan_files,
            private=self.temporary_folder,
            network=self._policy.network == "all",
            proxy="" if self.hosts is None else self._proxy_socket(),
        )
        if self._must_not_appear is None:
            self._must_not_appear = namespaces.must_not_appear((*view.write, view.folder))
            self._missing = namespaces.missing_names(view.write)
        return namespaces.pack(view)

    def tidy(self) -> list[str]:
        """Remove what commands made although it could run code outside; returns its paths."""
        appeared = [path for path in self._must_not_appear or () if os.path.lexists(path)]
        for path in appeared:
            with contextlib.suppress(OSError):
                os.unlink(path)
        return appeared

    def take_made(self) -> list[str]:
        """Return the files made by commands since the last call that run later, as paths."""
        made = [path for path in self._missing if os.path.lexists(path)]
        self._missing = [path for path in self._missing if path not in made]
        return made

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """The hosts that the proxy lets commands reach; None if they have no proxy."""
        network = self._policy.network
        if isinstance(network, tuple):
            return network
        asks = self._shared.hosts_file is not None and self._has_namespaces
        return () if network == "none" and asks else None

    async def open_network(self) -> None:
        """Start the proxy if commands have one.

        Raises:
            OSError: It cannot be started.
        """
        if self.hosts is None:
            return
        if self._proxy is None:
            self._proxy = Proxy(self.hosts)
            self._proxy_starts = asyncio.ensure_future(self._proxy.start(self._proxy_socket()))
        if self._proxy_starts is not None:
            await asyncio.shield(self._proxy_starts)

    def take_refusals(self) -> list[str]:
        """Why hosts were refused since the last call, each as a sentence."""
        return [] if self._proxy is None else self._proxy.take_refusals()

    def take_unlisted(self) -> list[str]:
        """See `Proxy.take_unlisted`."""
        return [] if self._proxy is None else self._proxy.take_unlisted()

    def close(self) -> None:
        """End the proxy and forget the rules."""
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    @property
    def _has_namespaces(self) -> bool:
        return available.namespace_layer().works

    def _own_folders(self) -> dict[str, str]:
        return namespaces.own_folders(self.temporary_folder)

    def _proxy_socket(self) -> str:
        return os.path.join(self._own_folders()[namespaces.PROXIES], str(self._number))

    def _variables(self) -> dict[str, str]:
        private = self.temporary_folder
        caches = {name: os.path.join(private, path) for name, path in _CACHES.items()}
        proxy = {} if self.hosts is None else proxy_variables()
        return {"TMPDIR": private, **caches, **proxy}

    def _write_roots(self) -> tuple[str, ...]:
        return (*self._written, self.temporary_folder)

    def _read_roots(self) -> tuple[str, ...]:
        if self._policy.read == "host":
            return ("/",)
        needed = (*namespaces.interpreter(), *map(os.path.dirname, self._shared.plan_files))
        return tuple(map(os.path.realpath, (*_SYSTEM, self._shared.folder, *needed)))

    def _shown(self) -> tuple[str, ...]:
        """Return the readable parts of hidden folders, such as a working directory there."""
        folder = self._shared.folder
        hides = any(is_below(folder, path) for path in self._shared.hidden)
        return (*self._shared.readable, *([folder] if hides else []))

    def _profile(self) -> str:
        return profile(
            write=self._write_roots(),
            read=self._read_roots(),
            hidden=self._shared.hidden,
            internet=self._policy.network != "none",
        )

    def _restrictions(self) -> Confinement:
        if self._kernel is None:
            write = self._write_roots()
            if self._has_namespaces:
                # Seen by commands as folders of the system, where the rule for this one does not apply.
                write += tuple(self._own_folders().values())
            places = Places(
                write,
                self._read_roots(),
                self._shown(),
                self._shared.hidden,
                are_covered=self._has_namespaces,
            )
            # In namespaces without the machine's network there is nothing but a loopback interface.
            internet = self._policy.network != "none" or self._has_namespaces
            self._kernel = KernelLayer(
                places, internet=internet, asks=not internet, shares=self._has_namespaces
            )
        return self._kernel.confinement()
