"""Where requests wait for their turn: one state for all processes of this machine that use a key.

The state is a small file, read and written under a lock that ends with its holder. A state that a crash left
incomplete is replaced. If the file cannot be used, requests are not slowed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import random
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from amplifier_modules._shared.http.client import Enter, Turn, enter_at_once
from amplifier_modules._shared.http.errors import retry_after
from amplifier_modules._shared.pacing.headers import reported_limits
from amplifier_modules._shared.pacing.pace import Pace, Ticket
from amplifier_support.private_files import make_private_folder, open_private, try_lock
from amplifier_support.session_capabilities import PACE_DIR

logger = logging.getLogger(__name__)

_OK, _TOO_MANY = 200, 429
_LOCK_TRIES, _LOCK_SECONDS = 1000, 0.002
_STUCK_SECONDS = 30.0
"""How long a state is not used whose lock was not released, as by a process that is stopped."""

_LONGEST_SLEEP = 1.0
_SPREAD = 0.05
_LARGEST = 64 * 1024
_BYTES_PER_TOKEN = 4

_T = TypeVar("_T")
_limiters: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, RateLimiter]] = (
    weakref.WeakKeyDictionary()
)


def rate_limiter_of(folder: str, account: str) -> RateLimiter:
    """The limiter of an account and a model.

    Args:
        folder: Where the states are.
        account: What identifies both; only a hash of it is stored.
    """
    digest = hashlib.sha256(account.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    limiters = _limiters.setdefault(asyncio.get_running_loop(), {})
    path = os.path.join(folder, f"{digest}.json")
    return limiters.setdefault(path, RateLimiter(Path(path)))


def pacing_of(coordinator: Any) -> Enter:
    """How the endpoint of a provider waits: by the capability of its session, otherwise not at all."""

    async def enter(account: str, size: int) -> Turn:
        folder = None if coordinator is None else PACE_DIR.of(coordinator)
        if folder is None:
            return await enter_at_once(account, size)
        return await rate_limiter_of(folder, account).enter(size)

    return enter


class RateLimiter:
    """Delays requests to the pace of their key.

    Args:
        path: The file of the state.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = asyncio.Lock()
        self._unused_until = 0.0

    async def enter(self, size: int) -> Turn:
        """Wait until a request may be sent; requests of this process are sent in order.

        Args:
            size: Its length in bytes.
        """
        tokens = size / _BYTES_PER_TOKEN
        async with self._turn:
            while True:
                taken = await self._change(lambda pace: pace.take(tokens, time.time()))
                if taken is None:
                    return await enter_at_once("", size)
                if isinstance(taken, Ticket):
                    return _PacedTurn(self, taken)
                # Spreads the processes that wait for the same moment.
                spread = 1 + random.random() * _SPREAD
                await asyncio.sleep(min(taken * spread, _LONGEST_SLEEP))

    async def record_answer(self, ticket: Ticket, status: int, headers: Mapping[str, str]) -> None:
        """Apply the limits in the head of an answer.

        Args:
            ticket: That of the request.
            status: The status of the answer.
            headers: Its headers, looked up in lower case.
        """
        now = time.time()
        limits = reported_limits(headers, now)
        if not limits and status not in (_OK, _TOO_MANY):
            await self.record_failure()
            return
        await self._change(
            lambda pace: pace.record_answer(
                ticket,
                limits,
                now,
                refused=status == _TOO_MANY,
                retry_after=retry_after(headers),
            )
        )

    async def record_failure(self) -> None:
        """Note that a request has failed before its answer began."""
        await self._change(Pace.record_failure)

    async def _change(self, change: Callable[[Pace], _T]) -> _T | None:
        """Change the state and return the result of `change`; None if the state or its lock is unavailable."""
        if time.monotonic() < self._unused_until:
            return None
        try:
            descriptor = self._open()
            try:
                for _ in range(_LOCK_TRIES):
                    if try_lock(descriptor):
                        return _apply_change(descriptor, change)
                    await asyncio.sleep(_LOCK_SECONDS)
                self._unused_until = time.monotonic() + _STUCK_SECONDS
            finally:
                os.close(descriptor)
        except OSError as error:
            logger.debug("requests are not paced: %s: %s", self._path, error)
        return None

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT
        try:
            return open_private(self._path, flags)
        except FileNotFoundError:
            make_private_folder(self._path.parent)
            return open_private(self._path, flags)


class _PacedTurn(Turn):
    """Reports the answer of one request."""

    def __init__(self, limiter: RateLimiter, ticket: Ticket) -> None:
        self._limiter = limiter
        self._ticket = ticket

    async def record_answer(self, status: int, headers: Mapping[str, str]) -> None:
        await self._limiter.record_answer(self._ticket, status, headers)

    async def record_failure(self) -> None:
        await self._limiter.record_failure()


def _apply_change(descriptor: int, change: Callable[[Pace], _T]) -> _T:
    text = os.read(descriptor, _LARGEST)
    try:
        pace = Pace.from_dict(json.loads(text))
    # Empty at first, or left by a crash.
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
        pace = Pace()
    result = change(pace)
    data = json.dumps(pace.as_dict()).encode()
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, data)
    os.ftruncate(descriptor, len(data))
    return result
