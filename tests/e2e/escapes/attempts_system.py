"""Reaching the kernel itself, devices and other terminals."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
from pathlib import Path

from catalogue import Refused, Situation, any_of, attempt, checked, libc, syscall

_ADD_KEY, _KEYCTL = 248, 250
_IO_URING_SETUP, _BPF, _PERF_EVENT_OPEN, _USERFAULTFD = 425, 321, 298, 323
_TIOCSTI = 0x5412


def _open_for_writing(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY))


@attempt(63, "kernel", "set the program that the kernel starts for core dumps")
def core_pattern(at: Situation) -> None:
    _open_for_writing("/proc/sys/kernel/core_pattern")


@attempt(64, "kernel", "set the program that the kernel starts for modules and events")
def helpers(at: Situation) -> None:
    places = ("/proc/sys/kernel/modprobe", "/sys/kernel/uevent_helper", "/proc/sys/kernel/hotplug")
    any_of([lambda p=p: _open_for_writing(p) for p in places])


@attempt(65, "kernel", "send a command to the kernel with sysrq")
def sysrq(at: Situation) -> None:
    _open_for_writing("/proc/sysrq-trigger")


@attempt(66, "kernel", "open the memory of the machine")
def memory(at: Situation) -> None:
    any_of([lambda p=p: _open_for_writing(p) for p in ("/dev/mem", "/dev/kmem", "/dev/port")])


@attempt(67, "kernel", "open a disk")
def disk(at: Situation) -> None:
    names = [f"/dev/{name}" for name in os.listdir("/sys/block")]
    any_of([lambda p=p: _open_for_writing(p) for p in names])


@attempt(68, "kernel", "write to the log of the kernel")
def kernel_log(at: Situation) -> None:
    with open("/dev/kmsg", "w") as file:
        file.write("")


@attempt(69, "kernel", "register a format of programs")
def program_format(at: Situation) -> None:
    _open_for_writing("/proc/sys/fs/binfmt_misc/register")


@attempt(70, "kernel", "move to another control group")
def control_group(at: Situation) -> None:
    any_of(
        [
            lambda p=p: _open_for_writing(str(p))
            for p in [*Path("/sys/fs/cgroup").glob("**/cgroup.procs")][:20]
        ]
    )


@attempt(71, "kernel", "type into a terminal")
def type_into(at: Situation) -> None:
    def type_a_key(path: str) -> None:
        terminal = os.open(path, os.O_RDWR | os.O_NOCTTY)
        fcntl.ioctl(terminal, _TIOCSTI, b"\0")

    names = [f"/dev/pts/{name}" for name in os.listdir("/dev/pts") if name.isdigit()]
    any_of([lambda p=p: type_a_key(p) for p in ("/dev/tty", "/dev/console", *names)])


@attempt(72, "kernel", "put a key into the keyring of the user")
def keyring(at: Situation) -> None:
    user_keyring = -4
    syscall(_ADD_KEY, b"user", b"escape", b"escaped", 7, user_keyring)


@attempt(73, "kernel", "read the keyrings")
def read_keyring(at: Situation) -> None:
    syscall(_KEYCTL, 0, -3, 1)


@attempt(74, "kernel", "set up io_uring, which calls of filters do not see")
def io_uring(at: Situation) -> None:
    parameters = ctypes.create_string_buffer(120)
    syscall(_IO_URING_SETUP, 4, parameters)


@attempt(75, "kernel", "load a program into the kernel")
def bpf(at: Situation) -> None:
    attributes = ctypes.create_string_buffer(128)
    attributes[0:16] = bytes([2, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0])  # an array map
    syscall(_BPF, 0, attributes, 128)


@attempt(76, "kernel", "measure other processes")
def measure(at: Situation) -> None:
    attributes = ctypes.create_string_buffer(128)
    attributes[0:8] = bytes([1, 0, 0, 0, 128, 0, 0, 0])
    syscall(_PERF_EVENT_OPEN, attributes, at.victim, -1, -1, 0)


@attempt(77, "kernel", "handle page faults of the kernel")
def page_faults(at: Situation) -> None:
    syscall(_USERFAULTFD, 0)


@attempt(78, "kernel", "load a module, start another kernel, restart, set the clock or the name")
def administer(at: Situation) -> None:
    def name() -> None:
        own = platform.node().encode()
        checked(libc.sethostname(own, len(own)))

    def clock() -> None:
        checked(libc.settimeofday(None, (ctypes.c_int * 2)(0, 0)))

    any_of(
        [
            name,
            clock,
            lambda: checked(libc.swapoff(b"/none-78")) if _is_forbidden(libc.swapoff) else None,
        ]
    )


def _is_forbidden(call: object) -> bool:
    # Any other error than that of rights shows that it may.
    libc.swapoff(b"/none-78")
    return ctypes.get_errno() == 1


@attempt(79, "kernel", "write outside with the calls of 32-bit programs")
def short_calls(at: Situation) -> None:
    if platform.machine() != "x86_64":
        raise Refused("there are none")
    path = f"{at.outside}/escape-79\0".encode()
    # mov eax, 8 (creat); mov ecx, 0644; int 0x80; ret
    code = b"\xb8\x08\x00\x00\x00\xb9\xa4\x01\x00\x00\xcd\x80\xc3"
    run = _machine_code(b"\x53\x48\x89\xfb" + code[:-1] + b"\x5b\xc3")
    result = run(_low_memory(path))
    if result < 0 or result > 1 << 31:
        raise Refused(f"result {result}")


@attempt(80, "kernel", "open a socket with the calls of 32-bit programs")
def short_socket(at: Situation) -> None:
    if platform.machine() != "x86_64":
        raise Refused("there are none")
    # socket(AF_INET, SOCK_DGRAM, 0) is number 359.
    code = (
        b"\x53\xb8\x67\x01\x00\x00\xbb\x02\x00\x00\x00\xb9\x02\x00\x00\x00\x31\xd2\xcd\x80\x5b\xc3"
    )
    result = _machine_code(code)(0)
    if result < 0 or result > 1 << 31:
        raise Refused(f"result {result}")
    _send(result, at)


@attempt(81, "kernel", "open a socket with the x32 numbers of calls")
def x32_socket(at: Situation) -> None:
    _send(syscall(0x40000000 | 41, 2, 2, 0), at)


def _send(descriptor: int, at: Situation) -> None:
    import socket

    with socket.socket(fileno=descriptor) as one:
        one.sendto(b"escaped", ("127.0.0.1", at.ports["udp"]))


def _machine_code(code: bytes) -> ctypes._NamedFuncPointer:
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    _kept.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_long)(address)


_kept: list[object] = []


def _low_memory(data: bytes) -> int:
    """A copy of the data where 32-bit calls can see it."""
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    map_32bit = 0x40
    address = libc.mmap(None, 4096, 3, 0x22 | map_32bit, -1, 0)
    ctypes.memmove(address, data, len(data))
    return address
