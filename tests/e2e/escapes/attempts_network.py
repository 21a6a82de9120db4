"""Sending something to a listener outside, or to the world."""

import array
import os
import socket

from catalogue import Refused, Situation, any_of, attempt

_TEXT = b"escaped"


@attempt(82, "kernel", "connect over TCP")
def tcp(at: Situation) -> None:
    with socket.create_connection(("127.0.0.1", at.ports["tcp"]), 1) as one:
        one.send(_TEXT)


@attempt(83, "kernel", "connect over TCP and IPv6")
def tcp6(at: Situation) -> None:
    with socket.create_connection(("::1", at.ports["tcp6"]), 1) as one:
        one.send(_TEXT)


@attempt(84, "kernel", "send data with the first packet of a connection")
def fast_open(at: Situation) -> None:
    with socket.socket() as one:
        one.sendto(_TEXT, socket.MSG_FASTOPEN, ("127.0.0.1", at.ports["tcp"]))


@attempt(85, "kernel", "connect over multipath TCP")
def multipath(at: Situation) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as one:
        one.settimeout(1)
        one.connect(("127.0.0.1", at.ports["tcp"]))
        one.send(_TEXT)


@attempt(86, "kernel", "send over UDP")
def udp(at: Situation) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(_TEXT, ("127.0.0.1", at.ports["udp"]))
    if os.stat("/proc/self/ns/net").st_ino != at.network:
        raise Refused("it is sent, but in another network")


@attempt(87, "kernel", "send over UDP and IPv6, or UDP Lite")
def udp6(at: Situation) -> None:
    def send(family: int, protocol: int, to: tuple[str, int]) -> None:
        with socket.socket(family, socket.SOCK_DGRAM, protocol) as one:
            one.connect(to)
            one.send(_TEXT)

    if os.stat("/proc/self/ns/net").st_ino != at.network:
        raise Refused("it would be sent, but in another network")
    any_of(
        [
            lambda: send(socket.AF_INET6, 0, ("::1", at.ports["udp6"])),
            lambda: send(socket.AF_INET, 136, ("127.0.0.1", at.ports["udp"])),
        ]
    )


@attempt(88, "kernel", "connect to an abstract UNIX socket")
def abstract(at: Situation) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("\0" + at.sockets["abstract"])


@attempt(89, "kernel", "send to an abstract UNIX socket")
def abstract_datagram(at: Situation) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.sendto(_TEXT, "\0" + at.sockets["abstract-datagram"])


@attempt(90, "kernel", "connect to a UNIX socket outside")
def unix(at: Situation) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(at.sockets["path"])


@attempt(91, "kernel", "send to a UNIX socket outside")
def unix_datagram(at: Situation) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.sendto(_TEXT, at.sockets["path-datagram"])


@attempt(92, "kernel", "take descriptors from a server outside")
def descriptors(at: Situation) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(1)
        one.connect(at.sockets["path"])
        _, ancillary, _, _ = one.recvmsg(1, socket.CMSG_SPACE(4))
    taken = array.array("i", ancillary[0][2])
    os.write(taken[0], b"escaped\n")


@attempt(93, "kernel", "control a system service")
def services(at: Situation) -> None:
    def connect(path: str) -> None:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(path)

    names = ("docker.sock", "podman/podman.sock", "containerd/containerd.sock", "systemd/private")
    buses = ("dbus/system_bus_socket", f"user/{os.getuid()}/bus", f"user/{os.getuid()}/docker.sock")
    any_of([lambda n=n: connect(f"/run/{n}") for n in (*names, *buses)])


@attempt(94, "kernel", "send packets by hand")
def raw(at: Situation) -> None:
    def send(family: int, kind: int, protocol: int) -> None:
        with socket.socket(family, kind, protocol) as one:
            one.sendto(b"\x08\0\xf7\xff\0\0\0\0", ("127.0.0.1", 0))

    any_of(
        [
            lambda: send(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
            lambda: send(socket.AF_INET, socket.SOCK_RAW, 255),
        ]
    )


@attempt(95, "kernel", "see and send frames of an interface")
def frames(at: Situation) -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)).close()


@attempt(96, "kernel", "talk to the kernel over netlink")
def netlink(at: Situation) -> None:
    # Routes and interfaces may be listed in a network of its own; all else is for administrators.
    any_of(
        [
            lambda n=n: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, n).close()
            for n in (4, 5, 6, 9, 12, 15, 16)
        ]
    )


@attempt(97, "kernel", "talk to the host of a virtual machine")
def vsock(at: Situation) -> None:
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as one:
        one.settimeout(0.2)
        one.connect((2, 22))


@attempt(98, "kernel", "use rare kinds of sockets")
def rare(at: Situation) -> None:
    def open_one(family: int, kind: int) -> None:
        socket.socket(family, kind, 0).close()

    families = (38, 44, 31, 29, 30, 21, 40)  # crypto, XDP, Bluetooth, CAN, TIPC, RDS, VSOCK
    kinds = (socket.SOCK_SEQPACKET, socket.SOCK_DGRAM, socket.SOCK_RAW)
    any_of([lambda f=f, k=k: open_one(f, k) for f in families for k in kinds])


@attempt(99, "kernel", "serve on a port of the machine")
def serve(at: Situation) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        if os.stat("/proc/self/ns/net").st_ino != at.network:
            raise Refused("it serves, but in another network")


@attempt(100, "kernel", "ask a name server")
def names(at: Situation) -> None:
    import select

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07escaped\x07example\x03com\0\0\x01\0\x01"
        for server in ("127.0.0.53", "127.0.0.1"):
            one.sendto(query, (server, 53 if server.endswith("53") else at.ports["udp"]))
        if os.stat("/proc/self/ns/net").st_ino != at.network:
            raise Refused("it is sent, but in another network")
        select.select([one], [], [], 0.1)
