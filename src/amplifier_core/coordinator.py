"""The interface of modules: mount points, capabilities, contribution channels, hooks and cleanup.

Mount points:

orchestrator, context, module-source-resolver     one module each
providers, tools                                  modules by name
hooks                                             the hook registry, always present
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from amplifier_core._foreign import Owner, current_owner, log_failure
from amplifier_core.approval import ApprovalSystem, ApprovalTimeoutError, DisplaySystem
from amplifier_core.cancellation import (
    CancellationToken,
    await_result,
    call_each,
    is_failure,
    task_cancel_count,
)
from amplifier_core.hooks import HookRegistry
from amplifier_core.models import ContextInjection, HookResult, join_injections, to_injection
from amplifier_core.module_sources import PARTS
from amplifier_core.utils.truncate import strip_control_characters
from amplifier_support.clock import utc_now

logger = logging.getLogger(__name__)

_LATE_SECONDS = 1.0

CHARACTERS_PER_TOKEN = 4
DEFAULT_OPTIONS = ("Allow", "Deny")
_ALLOWING = frozenset({"allow", "allow once", "allow always"})
_MESSAGE = ("user_message", "user_message_level", "user_message_source")
_KEPT = ("data", "reason", "suppress_output", *_MESSAGE)
"""Fields of a result that stay when its injections have been stored."""


SINGLE = frozenset({*PARTS, "module-source-resolver"})
MULTIPLE = frozenset({"providers", "tools"})


class SessionLike(Protocol):
    """The part of a session that the coordinator reads."""

    @property
    def session_id(self) -> str: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def config(self) -> dict[str, Any]: ...


@dataclass(eq=False, repr=False)  # each method is compiled at every start
class DetachedSession:
    """Session data for a coordinator without a session, for example in tests."""

    session_id: str = ""
    parent_id: str | None = None
    config: dict[str, Any] = field(default_factory=dict[str, Any])


class _Done(Coroutine[Any, Any, None]):
    """Awaitable that is already done, for methods that take effect when called, not when awaited.

    It is a coroutine, so that `asyncio.run` and `create_task` accept it, but never awaiting it
    causes no warning.
    """

    def send(self, value: Any) -> Any:
        raise StopIteration

    def throw(self, *error: Any) -> Any:
        raise error[0]

    def close(self) -> None:
        """Nothing to close."""

    def __await__(self) -> Any:
        return iter(())


_DONE = _Done()


class ModuleCoordinator:
    """The infrastructure that every module receives in `mount`.

    Args:
        session: Source of `session_id`, `parent_id` and `config`; default: an empty one.
        approval_system: Asks the user on behalf of hooks.
        display_system: Shows messages of hooks.

    Modules and apps may set their own attributes on it.
    """

    def __init__(
        self,
        session: SessionLike | None = None,
        approval_system: ApprovalSystem | None = None,
        display_system: DisplaySystem | None = None,
    ) -> None:
        self._session = DetachedSession() if session is None else session
        self._session_id = self._session.session_id
        self._parent_id = self._session.parent_id
        self._config = self._session.config
        self._hooks = HookRegistry()
        self._cancellation = CancellationToken()
        self.mount_points: dict[str, Any] = {
            "orchestrator": None,
            "providers": {},
            "tools": {},
            "context": None,
            "hooks": self._hooks,
            "module-source-resolver": None,
        }
        self.session_state: dict[str, Any] = {}
        self.approval_system = approval_system
        self.display_system = display_system
        self.loader: Any = None
        self.injected_tokens = 0
        self._capabilities: dict[str, Any] = {}
        self.channels: dict[str, list[dict[str, Any]]] = {}
        """Contributors by channel: ``{"name", "callback"}`` in order of registration."""
        self._cleanups: list[tuple[Callable[[], Any], Owner | None]] = []

    @property
    def session(self) -> SessionLike:
        return self._session

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def parent_id(self) -> str | None:
        return self._parent_id

    @property
    def config(self) -> dict[str, Any]:
        """The session's mount plan: the same object that was passed to the session."""
        return self._config

    @property
    def hooks(self) -> HookRegistry:
        return self._hooks

    @property
    def cancellation(self) -> CancellationToken:
        return self._cancellation

    # Mounting

    def mount(self, mount_point: str, module: Any, name: str | None = None) -> Any:
        """Mount `module`. Takes effect immediately; the return value can be awaited.

        Args:
            mount_point: One of the mount points above, or ``"session"`` with `name`
                ``"orchestrator"`` or ``"context"``.
            module: The instance.
            name: Key in ``providers`` or ``tools``; default: ``module.name``. A module already
                mounted under this name is replaced and keeps its position.

        Raises:
            ValueError: The mount point is unknown or a name is missing.
            TypeError: ``module.name`` is not a string.
        """
        mount_point, name = self._address(mount_point, name)
        if mount_point == "hooks":
            raise ValueError("Cannot mount at 'hooks': register handlers on coordinator.hooks")
        if mount_point in SINGLE:
            self.mount_points[mount_point] = module
        else:
            self.mount_points[mount_point][self._key(mount_point, module, name)] = module
        return _DONE

    def unmount(self, mount_point: str, name: str | None = None) -> Any:
        """Remove a module; does nothing if it is not mounted. The return value can be awaited.

        Raises:
            ValueError: The mount point is unknown, or it holds several modules and `name` is missing.
        """
        mount_point, name = self._address(mount_point, name)
        if mount_point in SINGLE:
            self.mount_points[mount_point] = None
        elif mount_point in MULTIPLE:
            if name is None:
                raise ValueError(
                    f"Name required to unmount from {mount_point!r}, which holds several modules"
                )
            self.mount_points[mount_point].pop(name, None)
        return _DONE

    def get(self, mount_point: str, name: str | None = None) -> Any:
        """The module at a mount point, or None.

        For ``providers`` and ``tools`` without `name`: the live dict by name.

        Raises:
            ValueError: The mount point is unknown.
        """
        mount_point, name = self._address(mount_point, name)
        mounted = self.mount_points[mount_point]
        return mounted if name is None or mount_point not in MULTIPLE else mounted.get(name)

    def get_mounted(self, mount_point: str, name: str | None = None) -> Any:
        """Return the same as `get`; the name in the samples of the Provider Contract."""
        return self.get(mount_point, name)

    def _address(self, mount_point: str, name: str | None) -> tuple[str, str | None]:
        if mount_point == "session":
            if name not in PARTS:
                raise ValueError(
                    f"Mount point 'session' holds 'orchestrator' and 'context'; got name={name!r}"
                )
            return name, None
        if mount_point not in self.mount_points:
            known = ", ".join(self.mount_points)
            raise ValueError(f"Unknown mount point: {mount_point}. Known: {known}")
        return mount_point, name

    @staticmethod
    def _key(mount_point: str, module: Any, name: str | None) -> str:
        key = name or getattr(module, "name", None)
        if key is None:
            raise ValueError(
                f"Name required for mount point {mount_point!r}: {module!r} has none; "
                "pass name=… or give the module a name"
            )
        if not isinstance(key, str):
            raise TypeError(f"Name of {module!r} must be a string, not {type(key).__name__}")
        return key

    # Capabilities and contributions

    def register_capability(self, name: str, value: Any) -> None:
        self._capabilities[name] = value

    def get_capability(self, name: str) -> Any:
        """The registered value, or None."""
        return self._capabilities.get(name)

    def register_contributor(self, channel: str, name: str, callback: Callable[[], Any]) -> None:
        """Contribute to `channel` what `callback` (sync or async) returns when it is collected."""
        self.channels.setdefault(channel, []).append({"name": name, "callback": callback})

    async def collect_contributions(self, channel: str) -> list[Any]:
        """The values that the contributors of `channel` return, in order, without None.

        A contributor that raises `CancelledError` ends the collection; the values so far are returned.
        """
        collected: list[Any] = []
        cancels = task_cancel_count()
        for entry in list(self.channels.get(channel, ())):
            try:
                value = await await_result(entry["callback"]())
            # Contributors are foreign code: one that fails must not hide the others.
            except BaseException as error:
                if not is_failure(error, cancels):
                    raise
                if isinstance(error, asyncio.CancelledError):
                    break
                what, callback = f"Contributor '{entry['name']}' to {channel}", entry["callback"]
                log_failure(logger, what, callback, None, error, "it was skipped")
                continue
            if value is not None:
                collected.append(value)
        return collected

    # Cleanup and cancellation

    def register_cleanup(self, cleanup: Any) -> None:
        """Add a function (sync or async) for `cleanup()` to call; other values are ignored."""
        if callable(cleanup):
            self._cleanups.append((cleanup, current_owner()))

    async def cleanup(self) -> None:
        """Run all cleanup functions in reverse order, even if some fail.

        After a cancellation or interrupt, each of the remaining ones has one second.

        Raises:
            BaseException: The first cancellation or interrupt, after all functions have run.
        """
        await call_each(reversed(self._cleanups), "Cleanup", late_seconds=_LATE_SECONDS)

    async def request_cancel(self, immediate: bool = False) -> None:
        """Request cancellation on the session's token; the orchestrator checks it."""
        token = self._cancellation
        request = token.request_immediate if immediate else token.request_graceful
        request()

    # Hook results

    @property
    def injection_budget_per_turn(self) -> int | None:
        """Tokens that hooks may inject per turn before a warning is logged; None: unlimited."""
        return self._session_setting("injection_budget_per_turn")

    @property
    def injection_size_limit(self) -> int | None:
        """Maximum length of one injection in characters; None: unlimited."""
        return self._session_setting("injection_size_limit")

    def _session_setting(self, name: str) -> Any:
        section = self._config.get("session")
        return section.get(name) if isinstance(section, dict) else None

    def reset_turn(self) -> None:
        """Reset the injection budget for a new turn."""
        self.injected_tokens = 0

    async def process_hook_result(
        self, result: HookResult, event: str, hook_name: str = "unknown"
    ) -> HookResult:
        """Apply a hook's result: store injections, show messages, ask for approval.

        Args:
            result: The result of `HookRegistry.emit`.
            event: The event that was emitted.
            hook_name: Name of the hook if the result does not contain one.

        Returns:
            What is left for the caller to handle: `deny`, ephemeral injections, or `continue`.

        Raises:
            ValueError: An injection exceeds `injection_size_limit`.
        """
        if result.action == "ask_user":
            return await self._ask(result)
        items = self._find_injections(result, event, hook_name)
        self._show_message(result, hook_name)
        if result.suppress_output:
            logger.debug("Hook %r on %s suppressed its output", hook_name, event)
        if result.action != "inject_context":
            return result
        add_message = getattr(self.get("context"), "add_message", None)
        for item in items:
            if item.ephemeral:
                continue
            if add_message is None:
                logger.debug("No context is mounted; dropped the text of hook %r", item.hook_name)
                continue
            await await_result(add_message(_to_message(item)))
        kept = {name: getattr(result, name) for name in _KEPT}
        left = [item for item in items if item.ephemeral]
        if not left:
            return HookResult.model_construct(action="continue", **kept)
        return join_injections(left, **kept)

    def _find_injections(
        self, result: HookResult, event: str, hook_name: str
    ) -> list[ContextInjection]:
        """The injections of a result, without control characters and within the limits."""
        if result.action != "inject_context":
            return []
        items = result.context_injections
        if not items and result.context_injection:
            items = [to_injection(result, hook_name, event)]
        cleaned = [
            item.model_copy(update={"content": strip_control_characters(item.content)})
            for item in items
        ]
        items = [item for item in cleaned if item.content]
        limit, budget = self.injection_size_limit, self.injection_budget_per_turn
        for item in items:
            if limit is not None and len(item.content) > limit:
                raise ValueError(
                    f"Context injection exceeds {limit} characters: hook {item.hook_name!r} "
                    f"injected {len(item.content)} on {item.event}"
                )
        self.injected_tokens += sum(len(item.content) // CHARACTERS_PER_TOKEN for item in items)
        if budget is not None and self.injected_tokens > budget:
            text = "Hooks injected about %d tokens this turn, over the budget of %d"
            logger.warning(text, self.injected_tokens, budget)
        return items

    def _show_message(self, result: HookResult, hook_name: str) -> None:
        if not result.user_message:
            return
        source = f"hook:{result.user_message_source or hook_name}"
        if self.display_system is None:
            logger.debug("No display system for the message of %s: %s", source, result.user_message)
            return
        try:
            self.display_system.show_message(result.user_message, result.user_message_level, source)
        # The display belongs to the app: a message that cannot be shown must not stop the turn.
        except Exception:
            logger.exception("Cannot display a message of %s", source)

    async def _ask(self, result: HookResult) -> HookResult:
        if self.approval_system is None:
            return _decided(result, "deny", "No approval system available")
        prompt = result.approval_prompt or "Allow this operation?"
        options = result.approval_options or list(DEFAULT_OPTIONS)
        try:
            question = prompt, options, result.approval_timeout, result.approval_default
            answer = await await_result(self.approval_system.request_approval(*question))
        except ApprovalTimeoutError:
            if result.approval_default == "allow":
                return _decided(result, "continue")
            return _decided(result, "deny", f"Approval timeout after {result.approval_timeout:g} s")
        if isinstance(answer, str) and answer.strip().lower() in _ALLOWING:
            return _decided(result, "continue")
        return _decided(result, "deny", f"User denied: {prompt}")

    def to_dict(self) -> dict[str, Any]:
        """Names of the mounted modules and registered capabilities."""
        return {
            "tools": list(self.mount_points["tools"]),
            "providers": list(self.mount_points["providers"]),
            "capabilities": list(self._capabilities),
            "has_orchestrator": self.mount_points["orchestrator"] is not None,
            "has_context": self.mount_points["context"] is not None,
            "has_approval_provider": self.approval_system is not None,
            "has_display_service": self.display_system is not None,
        }


def _to_message(item: ContextInjection) -> dict[str, Any]:
    return {
        "role": item.role,
        "content": item.content,
        "metadata": {
            "source": "hook",
            "hook_name": item.hook_name,
            "event": item.event,
            "timestamp": utc_now().isoformat(),
            "requested_role": item.role,
            "ephemeral": False,
            "persisted": True,
        },
    }


def _decided(result: HookResult, action: Any, reason: str | None = None) -> HookResult:
    return HookResult.model_construct(action=action, reason=reason, data=result.data)
