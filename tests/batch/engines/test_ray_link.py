"""A link to an actor, with a Ray of a few lines."""

import asyncio
import json
import os
from types import SimpleNamespace
from typing import Any

from amplifier_batch.engines.ray import RayLink, Started


class Ray:
    """The part of Ray that a link uses; its actor takes lines until one of them is too much.

    Attributes:
        lines: What the actor was sent.
    """

    class RayError(Exception):
        pass

    class RayActorError(RayError):
        pass

    class ActorUnavailableError(RayActorError):
        pass

    class ObjectStoreFullError(RayError):
        pass

    class RayTaskError(RayError):
        pass

    def __init__(self) -> None:
        self.exceptions = self
        self.lines: list[bytes] = []
        self._dead = asyncio.Event()
        self.actor = SimpleNamespace(
            **{
                name: SimpleNamespace(remote=getattr(self, f"_{name}"))
                for name in ("start", "send", "receive", "close")
            }
        )

    def kill(self, actor: Any) -> None:
        assert actor is self.actor
        self._dead.set()

    async def _start(self) -> Started:
        return Started()

    async def _send(self, line: bytes) -> None:
        if b"large" in line:
            raise self.ObjectStoreFullError("the object store is full")
        self.lines.append(line)

    async def _receive(self) -> bytes:
        await self._dead.wait()
        raise self.RayActorError("killed")

    async def _close(self) -> bytes:
        return b""


async def test_a_worker_that_cannot_get_its_lines_is_ended_and_keys_are_sent_apart() -> None:
    ray = Ray()
    log = os.open(os.devnull, os.O_WRONLY)
    link = RayLink(ray, ray.actor, lambda send: None, log, set(), {"KEY": "secret"})  # type: ignore[arg-type]
    await link.send(b'{"working_dir": "/"}\n')
    await link.send(b'{"row": "large"}\n')
    async with asyncio.timeout(30):
        assert await link.receive() is None
        assert await link.wait_for_end() == "its Ray worker died"
    assert [json.loads(line) for line in ray.lines] == [
        {"keys": {"KEY": "secret"}},
        {"working_dir": "/"},
    ]
    os.close(log)
