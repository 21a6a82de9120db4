"""Connects a command's UNIX sockets on its behalf, if the path leads to where it may write.

Landlock does not know about connecting to a socket in the file system, and a seccomp filter cannot read
a path. The filter has the kernel ask this process instead. What was checked here is what is connected
to: the address is a copy, and the socket of the command is connected from here.

The launcher of commands imports this: nothing here may cost as much as starting a command.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import select
import struct
import sys

from amplifier_support.sandbox.system_calls import connect, copy_descriptor

_RECEIVE, _SEND, _IS_WAITING = 0xC0502100, 0xC0182101, 0x40082102
_REQUEST_BYTES = 80
_MAX_ADDRESS = 110
_HIGHEST_ADDRESS = (1 << 63) - 1
_MAX_WAIT = 1.0
"""Maximum number of seconds that a server's queue may be full; the launcher waits with the command.
"""


class Connections:
    """Answers the requests of one command and of everything it started.

    Args:
        listener: Descriptor on which the kernel asks; closed by `close`.
        folders: Where the sockets may be that it may connect to, links resolved.
        hidden: Where they may not be, below these folders.
    """

    def __init__(self, listener: int, folders: list[bytes], hidden: list[bytes]) -> None:
        self._listener = listener
        self._folders = tuple(folder.rstrip(b"/") + b"/" for folder in folders)
        self._hidden = tuple(path + b"/" for path in hidden)
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def fileno(self) -> int:
        return self._listener

    def answer(self) -> bool:
        """Answer one request; False if there will be none."""
        events = dict(self._poll.poll(0)).get(self._listener, 0)
        if not events & select.POLLIN:
            return not events & (select.POLLHUP | select.POLLERR)
        request = bytearray(_REQUEST_BYTES)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, request, True)
            identity, task = struct.unpack_from("=QI", request)
            descriptor, at, length = struct.unpack_from("=QQQ", request, 32)
            number = self._connect(identity, task, descriptor, at, length & 0xFFFFFFFF)
            fcntl.ioctl(self._listener, _SEND, struct.pack("=QqiI", identity, 0, -number, 0))
        except OSError:
            pass  # The process that asked has ended, or was interrupted.
        return True

    def close(self) -> None:
        os.close(self._listener)

    def _connect(self, identity: int, task: int, descriptor: int, at: int, length: int) -> int:
        """Connect a socket of a task; 0, or the number of an error."""
        opened: list[int] = []
        try:
            memory = os.open(f"/proc/{task}/mem", os.O_RDONLY)
            opened.append(memory)
            if not 2 < length <= _MAX_ADDRESS:
                return errno.EINVAL
            if at > _HIGHEST_ADDRESS:
                return errno.EFAULT
            address = os.pread(memory, length, at)
            folder = os.open(f"/proc/{task}/cwd", os.O_PATH)
            opened.append(folder)
            copied = copy_descriptor(_find_process(task), descriptor & 0xFFFFFFFF)
            opened.append(copied)
            # The number of the task was not reused meanwhile.
            fcntl.ioctl(self._listener, _IS_WAITING, struct.pack("=Q", identity))
            return self._connect_to(copied, address, folder)
        except OSError as error:
            return error.errno or errno.EACCES
        finally:
            for each in opened:
                os.close(each)

    def _connect_to(self, copied: int, address: bytes, folder: int) -> int:
        family, path = int.from_bytes(address[:2], sys.byteorder), address[2:]
        if family != _socket.AF_UNIX or path.startswith(b"\0"):
            return errno.EACCES
        target = os.open(path.partition(b"\0")[0], os.O_PATH, dir_fd=folder)
        try:
            place = os.readlink(b"/proc/self/fd/%d" % target)
            if not place.startswith(self._folders) or (place + b"/").startswith(self._hidden):
                return errno.EACCES
            end = b"/proc/self/fd/%d\0" % target
            return connect(copied, address[:2] + end, _MAX_WAIT)
        finally:
            os.close(target)


def _find_process(task: int) -> int:
    """The process a thread belongs to."""
    with open(f"/proc/{task}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Tgid:"):
                return int(line.split()[1])
    raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
