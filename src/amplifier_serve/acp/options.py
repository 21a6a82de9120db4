"""The settings of a session that an editor shows: mode, model, profile and budget."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from amplifier_app.base.json_rpc import INVALID_PARAMS, RpcError
from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.slash.registry import ask_module
from amplifier_app.plan.documents.profile_paths import profile_files
from amplifier_app.runtime.approvals import MEANINGS
from amplifier_app.runtime.capabilities import first_provider
from amplifier_serve.acp.updates import Updates
from amplifier_support.session_capabilities import MODE

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

_LIST_SECONDS = 5.0
"""Seconds that a session waits for the list of models."""
_NO_LIMIT = "none"
_BUDGETS = ((_NO_LIMIT, "no limit", ""), ("1", "$1", ""), ("5", "$5", ""), ("20", "$20", ""))
"""US dollars that are offered as a limit."""


class Options:
    """Lists and changes the settings.

    Args:
        updates: Shows why the models cannot be listed.
    """

    def __init__(self, updates: Updates) -> None:
        self._updates = updates
        self._models: list[tuple[str, str]] = []

    def state(self, session: OpenSession) -> dict[str, Any]:
        """The part of the answer to `session/new` and `session/load` that has the settings."""
        state: dict[str, Any] = {"configOptions": self.listed(session)}
        control = MODE.of(session.session.coordinator)
        if control is not None:
            modes = [
                {"id": mode, "name": mode, "description": MEANINGS.get(mode, "")}
                for mode in control.modes
            ]
            state["modes"] = {"currentModeId": control.mode, "availableModes": modes}
        return state

    def listed(self, session: OpenSession) -> list[dict[str, Any]]:
        """The settings with their values."""
        control = MODE.of(session.session.coordinator)
        model = session.facts.model or "default"
        budget = session.budget.limits.get("max_cost")
        limit = _NO_LIMIT if budget is None else f"{float(budget):g}"
        models = [(id, id, about) for id, about in self._models]
        names = sorted({profile.name for profile in profile_files(session.plan.project)})
        profiles = [(name, name, "") for name in names]
        options = [
            _select("model", "Model", model, models, "model"),
            _select("profile", "Profile", session.facts.profile, profiles),
            _select("budget", "Budget", limit, _BUDGETS),
        ]
        if control is not None:
            modes = [(mode, mode, MEANINGS.get(mode, "")) for mode in control.modes]
            options.insert(0, _select("mode", "Mode", control.mode, modes, "mode"))
        return options

    def change(self, session: OpenSession, option: Any, value: Any) -> dict[str, Any]:
        """The fields of the request that give a setting another value.

        Raises:
            RpcError: There is no such setting, or it has no such value.
        """
        known = {
            setting["id"]: [entry["value"] for entry in setting["options"]]
            for setting in self.listed(session)
        }
        if not isinstance(option, str) or option not in known:
            raise RpcError(INVALID_PARAMS, f"unknown option {option!r}")
        if value not in known[option]:
            raise RpcError(INVALID_PARAMS, f"{option}: unknown value {value!r}")
        if option == "budget":
            return {"max_cost": None if value == _NO_LIMIT else float(value)}
        if option == "profile":
            return {"profile": value, "plan": None, "provider": None, "model": None}
        name, _ = first_provider(session.session)
        return {"provider": name, "model": value}

    async def list_models(self, session: OpenSession) -> None:
        """Ask the provider for its models.

        Clients without a user choose one from the answer that opens the session.
        """
        self._models = []
        _, provider = first_provider(session.session)
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                models = await ask_module(provider.list_models)
            self._models = [
                (str(model.id), one_line(str(getattr(model, "display_name", "")), 80))
                for model in models
            ]
        # A provider may raise anything, or have no list: the current model stays the only one.
        except Exception as error:
            reason = str(error) or type(error).__name__
            self._updates.notice(f"cannot list the models: {reason}", "info", "acp")


def _select(
    id: str,
    name: str,
    current: str,
    values: Sequence[tuple[str, str, str]],
    category: str | None = None,
) -> dict[str, Any]:
    if current not in [value for value, _, _ in values]:
        values = [(current, current, ""), *values]
    options = [
        {"value": value, "name": label, **({"description": about} if about else {})}
        for value, label, about in values
    ]
    option = {"id": id, "name": name, "type": "select", "currentValue": current, "options": options}
    return option if category is None else {**option, "category": category}
