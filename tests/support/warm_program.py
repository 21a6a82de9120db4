"""`amplifier` in a folder of PATH, for scripts and shells; its processes are cloned from a warm interpreter.

    with warm_program(tmp_path / "bin"):
        ...                                   # run a script with that folder first in PATH

The script that replaces the program costs a tenth of a start. It passes its arguments, directory,
environment and standard streams to the test, and ends like the process that the test has cloned for it.
Only what it is started with reaches that process: signals to the script do not.
"""

import contextlib
import marshal
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.support.cli import amplifier_command, child_environment
from tests.support.warm_interpreter import WarmInterpreter, WarmProcess, is_available

_SCRIPT = """\
#!{interpreter} -IS
import _socket, marshal, os, sys
asked = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
asked.connect({address!r})
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
message = marshal.dumps((sys.argv, os.getcwd(), dict(os.environ)))
asked.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
code = int(asked.recv(16))
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code)
"""
_LIMIT = 1 << 20


def script_command(script: Path, *arguments: str) -> list[str]:
    """The command line of a Python script which reads its input to the end, such as a server
    made with the MCP SDK. It cannot be started in a sandbox.

    Its process finds imported what the program imports, and what `warm_up` lists.
    """
    command = [sys.executable, str(script), *arguments]
    interpreter = WarmInterpreter.suited_to(child_environment(Path(os.devnull)))
    if interpreter is None:
        return command
    relay = Path(__file__).with_name("warm_script.py")
    return [sys.executable, "-IS", str(relay), interpreter.address, *command]


@contextlib.contextmanager
def warm_program(folder: Path) -> Generator[None]:
    """Put the program into a folder, while this runs."""
    folder.mkdir(exist_ok=True)
    program = folder / "amplifier"
    if not is_available():
        program.symlink_to(amplifier_command()[0])
        yield
        return
    address = f"\0amplifier-{uuid.uuid4()}".encode()
    program.write_text(_SCRIPT.format(interpreter=sys.executable, address=address))
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen()
        threading.Thread(target=_accept, args=(listening,), daemon=True).start()
        yield
        # Ends the call of accept(), which closing does not.
        listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket) -> None:
    while True:
        try:
            asked, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(asked,), daemon=True).start()


def _answer(asked: socket.socket) -> None:
    with asked:
        message, streams, _, _ = socket.recv_fds(asked, _LIMIT, 3)
        try:
            arguments, cwd, environment = marshal.loads(message)
            process = _start(arguments, cwd, environment, streams)
        finally:
            for descriptor in streams:
                os.close(descriptor)
        asked.send(str(process.wait()).encode())


def _start(
    arguments: list[str], cwd: str, environment: dict[str, str], streams: list[int]
) -> subprocess.Popen[Any]:
    options: dict[str, Any] = dict(zip(("stdin", "stdout", "stderr"), streams, strict=True))
    command = [*amplifier_command(), *arguments[1:]]
    interpreter = WarmInterpreter.suited_to(environment)
    if interpreter is None:
        return subprocess.Popen(command, cwd=cwd, env=environment, **options)
    return WarmProcess(interpreter, command, cwd=cwd, env=environment, **options)
