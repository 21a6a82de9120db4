"""Plans that are loaded from Python."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from amplifier_app.base.stdio import Output
from amplifier_app.commands.run.choose import Chosen, choose, session_to_resume
from amplifier_app.commands.run.opening import open_chosen
from amplifier_app.commands.run.request import Request
from amplifier_app.runtime.approvals.requests import Approvals
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.session import OpenSession
from amplifier_app.sources.plan_resolver import resolver_for


class Plan:
    """A plan that was loaded; made by `load_plan`.

    Attributes:
        name: Its name.
        digest: Identifies what it does: the `sha256:…` that results contain, too.
        opened: Opens sessions; use `open_session`.
        loaded: What it was loaded from; see `batch`.
    """

    def __init__(self, chosen: Chosen, request: Request) -> None:
        self.name = chosen.plan.name
        self.digest = chosen.plan.digest
        self.opened = _Opener(chosen, request)
        self.loaded = chosen, request


class _Opener:
    """Opens sessions of a plan, whose module sources they share."""

    def __init__(self, chosen: Chosen, request: Request) -> None:
        self._chosen = chosen
        self._request = request
        self._sources = resolver_for(chosen.plan)

    def __call__(
        self, session_id: str | None, save: bool, approvals: Approvals, renderer: Renderer
    ) -> contextlib.AbstractAsyncContextManager[OpenSession]:
        request = self._request._replace(session=session_id or None, no_save=not save)
        chosen = self._chosen._replace(resume=session_to_resume(request))
        return open_chosen(request, chosen, approvals, renderer, self._sources)


def load_plan(
    plan: str | Path | None = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    sets: Sequence[str] = (),
    tools: Sequence[str] | None = None,
    mode: Literal["ask", "edits", "read-only", "auto"] | None = None,
    trust: bool = False,
) -> Plan:
    """Load a plan.

    Args:
        plan: The path of a plan file, or the name of a profile; by default the default profile.
        provider: The provider to use, by name.
        model: The model to use.
        sets: Changes, as `--set PATH=VALUE` takes them.
        tools: The tools to offer; by default all of the plan.
        mode: Which tool calls need no approval.
        trust: Trust the `.amplifier` folder of the current project this once.

    Raises:
        ConfigError: The plan cannot be found, is invalid, or its project is not trusted.
    """
    is_file = plan is not None and (isinstance(plan, Path) or os.path.isfile(plan))
    request = Request(
        plan=Path(plan) if plan is not None and is_file else None,
        profile=str(plan) if plan is not None and not is_file else None,
        provider=provider,
        model=model,
        sets=list(sets),
        tools=None if tools is None else ",".join(tools),
        mode=mode,
        trust=trust,
    ).validate()
    return Plan(choose(request, Output(-1)), request)
