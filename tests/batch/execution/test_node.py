"""The rows of a worker on a node, with the driver's side in this process."""

import asyncio
from pathlib import Path
from typing import Any

from amplifier_batch.engines.pool import RowTask
from amplifier_batch.execution.node import Node, NodeRow
from amplifier_batch.record.replica import Replica, apply_changes
from amplifier_batch.workdirs import Workdir


async def test_a_row_that_is_stopped_while_it_sends_loses_no_record(tmp_path: Path) -> None:
    there, log = tmp_path / "there", tmp_path / "here" / "sessions" / "s1" / "transcript.jsonl"
    there.mkdir()
    log.parent.mkdir(parents=True)
    log.write_text("{}\n")
    asked = list[Any]()

    async def ask(**fields: Any) -> dict[str, Any]:
        apply_changes(there, fields["changes"])
        asked.append(fields["changes"])
        return {}

    task = RowTask("r1", "go", {}, "s1", False, Workdir("same", "", ""))
    row = NodeRow(Node.__new__(Node), task, Replica(tmp_path / "here", ["sessions/s1"]), ask)
    sending = asyncio.create_task(row.send_changes())
    await asyncio.sleep(0.0)
    sending.cancel()
    await asyncio.wait([sending])
    with log.open("a") as file:
        file.write('{"role": "assistant"}\n')
    await row.send_changes()
    assert (there / "sessions/s1/transcript.jsonl").read_text() == log.read_text()
    # Much is sent in several messages.
    asked.clear()
    log.with_name("large").write_bytes(bytes(8_000_000))
    await row.send_changes()
    assert len(asked) == 2
