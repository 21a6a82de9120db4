"""What a sandbox must protect, with the means to see whether it did.

    with Outside(folder) as outside:
        ...                      # run what tries to get out; `outside.facts()` says where all is
        assert outside.changes() == []

`Outside` has a folder with canaries, listeners for every kind of socket, and a victim: a process
that keeps a text in its memory and notes the signals it gets.
"""

import contextlib
import json
import os
import select
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

_VICTIM = """
import ctypes, json, os, signal, sys
kept = ctypes.create_string_buffer(b"unharmed", 9)
canary = open(sys.argv[1], "a")
os.set_inheritable(canary.fileno(), True)
got = []
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGIO, signal.SIGHUP):
    signal.signal(number, lambda number, frame: got.append(number))
print(json.dumps([os.getpid(), ctypes.addressof(kept), canary.fileno()]), flush=True)
while sys.stdin.readline():
    limits = open("/proc/self/limits").read()
    print(json.dumps([kept.value.decode(), got, os.sched_getscheduler(0), os.nice(0), limits]), flush=True)
"""


class Outside:
    """The world outside a sandbox.

    Args:
        folder: An empty folder; gets the folders `outside`, `work` and `home`.
        user: Who everything belongs to, if not the user of this process; needs root.
        python: The interpreter of the victim.
        sockets: A folder for the UNIX sockets, outside of `/tmp`; by default in `folder`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        user: int | None = None,
        python: str = sys.executable,
        sockets: Path | None = None,
    ) -> None:
        self.folder = folder / "outside"
        self.work = folder / "work"
        self.home = folder / "home"
        self._user = user
        self._python = python
        self._sockets = sockets or self.folder
        self._heard: list[str] = []
        self._listeners: dict[str, socket.socket] = {}
        self._stop = os.pipe()

    def __enter__(self) -> Self:
        for path in (self.folder, self.work, self.home):
            path.mkdir(parents=True)
        (self.folder / "empty").mkdir()
        for name in ("canary", "movable", "removable"):
            (self.folder / name).write_text("untouched\n")
        os.utime(self.folder / "canary", (10**9, 10**9))
        self._listen()
        self._give_away()
        self._start_victim()
        self.remember()
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.write(self._stop[1], b"x")
        self._thread.join()
        self._victim.kill()
        self._victim.communicate()
        for one in self._listeners.values():
            one.close()
        for name in ("path", "path-datagram"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(name))
        for descriptor in self._stop:
            os.close(descriptor)

    def remember(self) -> None:
        """Take the files that are there now for unchanged."""
        self._before = self._look()

    def facts(self) -> dict[str, Any]:
        """Where everything is, for what tries to reach it."""
        ports = {
            name: self._listeners[name].getsockname()[1]
            for name in _INTERNET
            if name in self._listeners
        }
        return {
            "outside": str(self.folder),
            "workspace": str(self.work),
            "home": str(self.home),
            "victim": self._facts[0],
            "address": self._facts[1],
            "descriptor": self._facts[2],
            "ports": ports,
            "network": os.stat("/proc/self/ns/net").st_ino,
            "sockets": {
                name: self._path(name) if name.startswith("path") else self._abstract(name)
                for name in _UNIX
            },
        }

    def changes(self) -> list[str]:
        """What has changed outside: files, the victim, and what listeners have heard."""
        after = self._look()
        found = [f"file {name}" for name in self._before.keys() ^ after.keys()]
        found += [
            f"file {name}" for name in self._before.keys() & after.keys()
            if self._before[name] != after[name]
        ]  # fmt: skip
        state = self._ask_victim()
        if state != self._state:
            found.append(f"victim {state[:4]}")
        return [*found, *self._heard]

    # -- files -------------------------------------------------------------------------

    def _look(self) -> dict[str, tuple[Any, ...]]:
        """Every file below the folders that must not change, with what matters of it."""
        found: dict[str, tuple[Any, ...]] = {}
        for top in (self.folder, self.home):
            for path in (top, *top.rglob("*")):
                facts = path.lstat()
                kind = stat.S_ISREG(facts.st_mode)
                # The program itself writes below the home directory.
                if top == self.home and ".amplifier" in path.parts:
                    continue
                modified = facts.st_mtime_ns if kind else 0
                content = path.read_bytes() if kind else b""
                attributes = os.listxattr(path, follow_symlinks=False)
                found[str(path)] = (facts.st_mode, facts.st_uid, modified, content, attributes)
        return found

    def _give_away(self) -> None:
        if self._user is not None:
            for top in (self.folder, self.work, self.home):
                for path in (top, *top.rglob("*")):
                    os.chown(path, self._user, self._user)
            for name in ("path", "path-datagram"):
                os.chown(self._path(name), self._user, self._user)

    # -- the victim --------------------------------------------------------------------

    def _start_victim(self) -> None:
        options: dict[str, Any] = {}
        if self._user is not None:
            options = {"user": self._user, "group": self._user, "extra_groups": []}
        self._victim = subprocess.Popen(
            [self._python, "-I", "-c", _VICTIM, str(self.folder / "canary")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"SECRET": "of the victim"},
            **options,
        )
        self._facts = json.loads(self._read())
        self._state = self._ask_victim()

    def _ask_victim(self) -> list[Any]:
        if self._victim.poll() is not None:
            return [f"ended with {self._victim.returncode}"]
        assert self._victim.stdin is not None
        self._victim.stdin.write(b"\n")
        self._victim.stdin.flush()
        return json.loads(self._read())

    def _read(self) -> bytes:
        assert self._victim.stdout is not None
        readable = select.select([self._victim.stdout], [], [], 10)[0]
        return self._victim.stdout.readline() if readable else b'["does not answer"]'

    # -- listeners ---------------------------------------------------------------------

    def _listen(self) -> None:
        for name, (family, kind, address) in _INTERNET.items():
            one = socket.socket(family, kind)
            try:
                one.bind((address, 0))
            except OSError:
                one.close()  # no IPv6 here
                continue
            self._add(name, one)
        for name, kind in _UNIX.items():
            one = socket.socket(socket.AF_UNIX, kind)
            path = self._path(name) if name.startswith("path") else "\0" + self._abstract(name)
            one.bind(path)
            self._add(name, one)
        self._canary = os.open(self.folder / "canary", os.O_WRONLY | os.O_APPEND)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _add(self, name: str, one: socket.socket) -> None:
        if one.type == socket.SOCK_STREAM:
            one.listen()
        one.setblocking(False)
        self._listeners[name] = one

    def _serve(self) -> None:
        while True:
            readable = select.select([self._stop[0], *self._listeners.values()], [], [])[0]
            if self._stop[0] in readable:
                os.close(self._canary)
                return
            for name, one in self._listeners.items():
                if one in readable:
                    self._heard.append(f"heard on {name}")
                    self._take(one)

    def _take(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if one.type != socket.SOCK_STREAM:
                one.recv(100)
                return
            connection = one.accept()[0]
            with connection:
                if one.family == socket.AF_UNIX:
                    socket.send_fds(connection, [b"x"], [self._canary])

    def _path(self, name: str) -> str:
        return str(self._sockets / f"{name}-{os.getpid()}.sock")

    def _abstract(self, name: str) -> str:
        return f"amplifier-test-{name}-{id(self)}"


_INTERNET = {
    "tcp": (socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1"),
    "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, "::1"),
    "udp": (socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"),
    "udp6": (socket.AF_INET6, socket.SOCK_DGRAM, "::1"),
}
_UNIX = {
    "abstract": socket.SOCK_STREAM,
    "abstract-datagram": socket.SOCK_DGRAM,
    "path": socket.SOCK_STREAM,
    "path-datagram": socket.SOCK_DGRAM,
}
