"""A loader with a time limit for the import and the mount function of each module.

Awaiting code is cancelled by the event loop. Blocking code is interrupted by a timer signal, which
reaches Python code and most system calls, but not a loop in native code.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sysconfig
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import amplifier_core
from amplifier_app.base.errors import ConfigError
from amplifier_app.base.slow_steps import slow_step
from amplifier_app.runtime.mounting.progress import Opening
from amplifier_core._foreign import place_of, root_of
from amplifier_core.load_errors import ModuleImportError, ModuleMountError
from amplifier_core.loader import LoadedModule, ModuleLoader, MountFunction

DEFAULT_SECONDS = 120.0
"""Time limit for importing a module, and again for mounting it, unless the plan sets
`session.mount_timeout`."""

_REPEAT_SECONDS = 0.5


class _TimeReached(BaseException):
    """Raised in blocking code; not caught by `except Exception` in a module."""


class LimitedLoader(ModuleLoader):
    """Loads modules, each within a time limit.

    Args:
        coordinator: See `ModuleLoader`.
        seconds: Time limit for each module; None for no limit.
        opening: Records the current module, and sets a deadline for all of them.
    """

    def __init__(
        self, coordinator: Any, seconds: float | None, opening: Opening | None = None
    ) -> None:
        super().__init__(coordinator)
        self._seconds = seconds
        self._opening = opening or Opening()

    async def load(self, module_id: str, *args: Any, **kwargs: Any) -> MountFunction:
        self._opening.begin(module_id)
        try:
            with self._interrupting(), slow_step(f"importing '{module_id}'{self._note()}"):
                mount = await super().load(module_id, *args, **kwargs)
        except _TimeReached as reached:
            where = _where(reached, None)
            raise ModuleImportError(
                f"Module '{module_id}' cannot be imported: it did not finish within "
                f"{self._limit()}{where}"
            ) from reached
        return self._with_time_limit(module_id, mount)

    def _with_time_limit(self, module_id: str, mount: Any) -> MountFunction:
        async def limited(coordinator: Any) -> Any:
            self._opening.begin(module_id)
            timer = asyncio.timeout(self._seconds_left())
            try:
                with self._interrupting(), slow_step(f"mounting '{module_id}'{self._note()}"):
                    async with timer:
                        result = await mount(coordinator)
            except (_TimeReached, TimeoutError) as reached:
                if isinstance(reached, TimeoutError) and not timer.expired():
                    raise
                loaded: LoadedModule = mount.__amplifier_module__
                raise ModuleMountError(
                    f"Module '{module_id}' cannot be mounted: mount() did not finish within "
                    f"{self._limit()}{_where(reached.__cause__ or reached, loaded)}"
                ) from reached
            self._opening.begin("")
            return result

        vars(limited).update(vars(mount))
        return limited

    def _limit(self) -> str:
        if self._opening.expired or self._seconds is None:
            return "the time limit of the run"
        return f"{self._seconds:g} s (session.mount_timeout)"

    def _note(self) -> str:
        left = self._seconds_left()
        return "" if left is None else f" (limit {left:.3g} s)"

    def _seconds_left(self) -> float | None:
        deadline = self._opening.deadline
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return min((one for one in (left, self._seconds) if one is not None), default=None)

    @contextmanager
    def _interrupting(self) -> Generator[None]:
        """Raise `_TimeReached` in blocking code when the time is over."""
        left = self._seconds_left()
        main = threading.current_thread() is threading.main_thread()
        if left is None or not main or not hasattr(signal, "setitimer"):
            yield
            return
        loop = asyncio.get_running_loop()

        def interrupt(signum: int, frame: FrameType | None) -> None:
            # While the loop waits no task runs; the loop then enforces the limit itself.
            if asyncio.current_task(loop) is not None:
                raise _TimeReached

        started = time.monotonic()
        handler = signal.signal(signal.SIGALRM, interrupt)
        before, interval = signal.setitimer(signal.ITIMER_REAL, max(left, 0.001), _REPEAT_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            if before:
                remaining = max(0.001, before - (time.monotonic() - started))
                signal.setitimer(signal.ITIMER_REAL, remaining, interval)


def _where(reached: BaseException, loaded: LoadedModule | None) -> str:
    package = loaded.package if loaded is not None else None
    place = place_of(reached, root_of(package)) if package is not None else _last_line(reached)
    return f"; it was at {place}" if place else ""


def _last_line(reached: BaseException) -> str:
    """Return the innermost line outside the standard library and the loader."""
    own = (sysconfig.get_path("stdlib") + os.sep, "<", str(Path(amplifier_core.__file__).parent))
    found, trace = "", reached.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(own) and file != __file__:
            found = f"{file}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


def seconds_of(plan: dict[str, Any]) -> float | None:
    """Return the limit that a mount plan sets for each module; None for no limit.

    Raises:
        ConfigError: The limit is not a number.
    """
    session: dict[str, Any] = plan.get("session") or {}
    seconds: Any = session.get("mount_timeout", DEFAULT_SECONDS)
    try:
        return None if seconds is None else float(seconds)
    except (TypeError, ValueError) as error:
        message = f"session.mount_timeout must be a number of seconds (got {seconds!r})"
        raise ConfigError(message) from error
