"""Be a Python script: one that runs in a clone of the warm interpreter; see `warm_program.script_command`.

Signals end this process and not the clone, which must end at the end of its input.
"""

import _socket
import json
import os
import select
import sys

address, *command = sys.argv[1:]
asked = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
asked.connect(f"\0{address}")
request = {
    "program": "script",
    "arguments": command,
    "cwd": os.getcwd(),
    "environment": dict(os.environ),
    "has_terminal": False,
    "conditions": None,
}
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)]
asked.sendmsg([json.dumps(request).encode()], rights)
process = asked.recv(16)
os.closerange(0, 3)
select.select([os.pidfd_open(int(process))], [], [])
asked.send(process)
os._exit(os.waitstatus_to_exitcode(int(asked.recv(16))) & 0xFF)
