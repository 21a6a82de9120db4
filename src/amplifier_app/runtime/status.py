"""The state of a session in a few values, for the status line and `/status`."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplifier_app.base.paths import short_path
from amplifier_app.runtime import describe
from amplifier_app.runtime.approvals import current_mode, policy_other_than_asking
from amplifier_app.runtime.capabilities import first_provider, read_info
from amplifier_app.runtime.module_modes import active_module_mode
from amplifier_support.files import open_regular
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.usage import dollars

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

_MAX_HEAD = 4096


class Status(NamedTuple):
    """The state of a session now.

    Attributes:
        mode: The approval mode; None if no module has modes.
        profile: The name of the plan.
        provider: The provider that is asked first.
        model: Its model; None if it is the provider's default and not reported.
        context_used: Tokens of the conversation, as of the last model call; None before the first.
        context_limit: Tokens that fit the model; None if unknown.
        cost: US dollars so far, including earlier runs of the session; None if unknown.
        budget: US dollars the session may cost; None without a limit.
        branch: The git branch of the directory, or the short commit; None outside a repository.
        directory: The working directory, with `~` for the home directory.
        is_estimate: Whether cost and tokens include calls that were stopped before their usage was
            reported.
        tokens: Input and output tokens so far, including earlier runs of the session; None if unknown.
        token_budget: Tokens the session may use; None without a limit.
        policy: How approval requests are answered, if not by asking.
        module_mode: The active mode of those that a module defines; None if none is.
        session_id: The id of the session.
    """

    mode: str | None
    profile: str
    provider: str
    model: str | None
    context_used: int | None
    context_limit: int | None
    cost: Decimal | None
    budget: Decimal | None
    branch: str | None
    directory: str
    is_estimate: bool = False
    tokens: int | None = None
    token_budget: int | None = None
    policy: str | None = None
    module_mode: str | None = None
    session_id: str = ""

    @property
    def context_percent(self) -> int | None:
        """The percentage of the context in use; None if unknown."""
        if self.context_used is None or not self.context_limit:
            return None
        return round(100 * self.context_used / self.context_limit)

    @property
    def cost_text(self) -> str:
        """The cost, next to its budget; empty if unknown."""
        if self.cost is None:
            return ""
        # As many digits as the budget has: $0.045 is neither $0.04 nor $0.05.
        exponent = 0 if self.budget is None else self.budget.normalize().as_tuple().exponent
        digits = max(2, -exponent) if isinstance(exponent, int) else 2
        text = f"{'~' if self.is_estimate else ''}${self.cost:.{digits}f}"
        return text if self.budget is None else f"{text} of ${self.budget:.{digits}f}"

    @property
    def tokens_text(self) -> str:
        """The tokens next to their budget; empty without one."""
        if self.tokens is None or self.token_budget is None:
            return ""
        used = f"{'~' if self.is_estimate else ''}{describe.tokens(self.tokens)}"
        return f"{used} of {describe.tokens(self.token_budget)} tokens"


def read_status(session: OpenSession) -> Status:
    """Return the state of a session; cheap enough to call on every redraw."""
    name, provider = first_provider(session.session)
    folder = session.facts.working_dir
    max_tokens = session.budget.limits.get("max_tokens")
    return Status(
        mode=current_mode(session.session.coordinator),
        profile=session.facts.profile,
        provider=name,
        model=session.facts.model,
        context_used=session.recorder.context_tokens,
        context_limit=session.recorder.context_limit or _context_limit(provider),
        cost=_cost(session),
        is_estimate=bool(session.usage.tokens.get("estimated_calls")),
        budget=dollars(session.budget.limits.get("max_cost")),
        tokens=_tokens(session),
        token_budget=None if max_tokens is None else int(max_tokens),
        policy=policy_other_than_asking(session.session.coordinator),
        module_mode=active_module_mode(session.session.coordinator),
        branch=git_branch(folder),
        directory=short_path(folder),
        session_id=session.id,
    )


def _context_limit(provider: Any) -> int | None:
    """Return the context window a provider declares."""
    window = read_info(provider, lambda info: info.defaults.get("context_window"), None)
    return window if isinstance(window, int) and window > 0 else None


def _cost(session: OpenSession) -> Decimal | None:
    spent = session.budget.as_dict() if session.budget.is_live else None
    if spent is not None:
        return None if spent.get("unpriced") else dollars(spent.get("cost_usd"))
    return session.usage.cost_usd


def _tokens(session: OpenSession) -> int | None:
    spent = session.budget.as_dict()
    used = None if spent is None or spent.get("unmeasured") else spent.get("tokens")
    return used if isinstance(used, int) else None


def git_branch(folder: str) -> str | None:
    """Return the branch checked out in `folder`, or the first digits of the commit.

    Reads `.git/HEAD` and runs nothing.
    """
    for place in (Path(folder), *Path(folder).parents):
        entry = place / ".git"
        if not os.path.exists(entry):  # The status line asks with every update.
            continue
        head = _first_line(entry / "HEAD")
        if not head and entry.is_file():  # a work tree or a submodule
            target = _first_line(entry).removeprefix("gitdir: ")
            head = _first_line(place / target / "HEAD") if target else ""
        if head:
            return head.removeprefix("ref: refs/heads/") if head.startswith("ref: ") else head[:7]
    return None


def _first_line(file: Path) -> str:
    try:
        # A pipe in a hostile repository would block.
        with open(open_regular(os.path.realpath(file), os.O_RDONLY), "rb") as content:
            text = content.read(_MAX_HEAD).decode("utf-8", "replace")
            return text.partition("\n")[0].strip()
    except OSError:  # no such file, or not readable
        return ""
