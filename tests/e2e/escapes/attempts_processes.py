"""Reaching processes outside: their memory, descriptors, limits and signals."""

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from catalogue import Refused, Situation, any_of, attempt, checked, libc, syscall

_PTRACE_ATTACH, _PTRACE_SEIZE = 16, 0x4206
_PIDFD_GETFD = 438
_F_SETOWN, _F_SETSIG = 8, 10


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _pieces(at: Situation, buffer: ctypes.Array[ctypes.c_char]) -> tuple[object, object]:
    size = len(buffer)
    own = _Piece(ctypes.cast(buffer, ctypes.c_void_p), size)
    return ctypes.byref(own), ctypes.byref(_Piece(at.address, size))


@attempt(45, "kernel", "attach to a process as its debugger")
def debug(at: Situation) -> None:
    def attach(pid: int) -> None:
        checked(libc.ptrace(_PTRACE_SEIZE, pid, None, None))

    any_of([lambda p=p: attach(p) for p in (at.victim, *at.launchers())])


@attempt(46, "kernel", "write to the memory of a process with process_vm_writev")
def write_memory(at: Situation) -> None:
    own, remote = _pieces(at, ctypes.create_string_buffer(b"escaped", 7))
    checked(libc.process_vm_writev(at.victim, own, 1, remote, 1, 0))


@attempt(47, "kernel", "read the memory of a process with process_vm_readv")
def read_memory(at: Situation) -> bytes:
    buffer = ctypes.create_string_buffer(7)
    own, remote = _pieces(at, buffer)
    checked(libc.process_vm_readv(at.victim, own, 1, remote, 1, 0))
    return buffer.raw


@attempt(48, "kernel", "write to /proc/PID/mem")
def memory_file(at: Situation) -> None:
    with open(f"/proc/{at.victim}/mem", "r+b", buffering=0) as file:
        file.seek(at.address)
        file.write(b"escaped")


@attempt(49, "kernel", "take a descriptor of a process")
def take_descriptor(at: Situation) -> None:
    process = os.pidfd_open(at.victim)
    taken = syscall(_PIDFD_GETFD, process, at.descriptor, 0)
    os.write(taken, b"escaped\n")


@attempt(50, "kernel", "read the environment of a process outside")
def environment(at: Situation) -> None:
    def read(pid: int) -> None:
        if not Path(f"/proc/{pid}/environ").read_bytes():
            raise Refused("it is empty")

    any_of([lambda p=p: read(p) for p in (at.victim, *at.launchers())])


@attempt(51, "kernel", "send a signal to a process outside")
def signal_it(at: Situation) -> None:
    os.kill(at.victim, signal.SIGUSR1)


@attempt(52, "kernel", "stop the program that runs the session")
def stop_program(at: Situation) -> None:
    found = at.launchers()
    if not found:
        raise Refused("it cannot be seen")
    # In order not to end the session where this succeeds.
    any_of([lambda p=p: os.kill(p, signal.SIGCONT) for p in found])


@attempt(53, "kernel", "send a signal to every process")
def signal_all(at: Situation) -> None:
    # SIGWINCH is ignored by default; the victim notes it.
    os.kill(-1, signal.SIGWINCH)
    time.sleep(0.1)
    raise Refused("only the victim can tell")


@attempt(54, "kernel", "send a signal through a descriptor of the process")
def signal_by_descriptor(at: Situation) -> None:
    signal.pidfd_send_signal(os.pidfd_open(at.victim), signal.SIGUSR1)


@attempt(55, "kernel", "have the kernel send a signal when a pipe has data")
def signal_by_owner(at: Situation) -> None:
    ours, theirs = socket.socketpair()
    import fcntl

    fcntl.fcntl(ours, _F_SETOWN, at.victim)
    fcntl.fcntl(ours, _F_SETSIG, signal.SIGUSR1)
    fcntl.fcntl(ours, fcntl.F_SETFL, fcntl.fcntl(ours, fcntl.F_GETFL) | os.O_ASYNC)
    theirs.send(b"x")
    time.sleep(0.1)
    raise Refused("only the victim can tell")


@attempt(56, "kernel", "limit the resources of a process outside")
def limit(at: Situation) -> None:
    # The limit it has, so that only the power to set it counts.
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.prlimit(at.victim, resource.RLIMIT_CORE, (soft, hard))


@attempt(57, "namespaces", "bind a process outside to one processor")
def bind_processor(at: Situation) -> None:
    os.sched_setaffinity(at.victim, os.sched_getaffinity(0))


@attempt(58, "namespaces", "change the priority of a process outside")
def priority(at: Situation) -> None:
    os.setpriority(os.PRIO_PROCESS, at.victim, 1)


@attempt(59, "kernel", "leave a process that outlives the session")
def outlive(at: Situation) -> None:
    heart = """
import os, sys, time
os.setsid()
if os.fork(): os._exit(0)
os.setsid()
while True:
    open("heartbeat", "w").write(str(time.time()))
    time.sleep(0.05)
"""
    if os.fork() == 0:
        # Whatever fails here, only the attempt itself may answer.
        try:
            os.setsid()
            if os.fork() == 0:
                null = os.open(os.devnull, os.O_RDWR)
                for descriptor in range(3):
                    os.dup2(null, descriptor)
                os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", heart])
        finally:
            os._exit(0)
    raise Refused("only what is left at the end can tell")


@attempt(60, "kernel", "run a program from memory and write outside with it")
def from_memory(at: Situation) -> None:
    descriptor = os.memfd_create("escape")
    with open("/bin/sh", "rb") as file:
        os.write(descriptor, file.read())
    line = f"echo escaped > '{at.outside}/escape-60'"
    done = subprocess.run(
        [f"/proc/self/fd/{descriptor}", "-c", line], pass_fds=[descriptor], stderr=-1, check=False
    )
    if done.returncode:
        raise Refused(done.stderr.decode())


@attempt(61, "kernel", "gain rights with a setuid program")
def setuid(at: Situation) -> None:
    if "NoNewPrivs:\t1" in Path("/proc/self/status").read_text():
        raise Refused("no_new_privs is set")


@attempt(62, "kernel", "use a descriptor that was left open")
def inherited(at: Situation) -> dict[int, str]:
    listing = os.open("/proc/self/fd", os.O_RDONLY)
    # Standard streams, the pipe of this attempt and the listing itself.
    found = [int(name) for name in os.listdir(listing) if int(name) > 2]
    kinds = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in found if _is_open(fd)}
    # The shell's note of its folder is in a file without a name.
    known = ("/proc/", "pipe:", "/dev/null")
    left = {fd: to for fd, to in kinds.items() if not to.startswith(known) and "deleted" not in to}
    if not left:
        raise Refused("nothing is left open")
    return left


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
