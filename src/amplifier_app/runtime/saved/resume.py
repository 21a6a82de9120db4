"""Resume a session as it was: what is restored from its metadata, and what differs from then.

The budget that a session has used is saved with it. The orchestrator counts it, in the capability
`session.budget`: an object with `as_dict()`, `is_limited` and `listen(function)`. What an orchestrator of
another author does not count is added at the end of each turn. A resumed session finds its earlier usage in
`session.spent`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from amplifier_app.base.sanitize import one_line
from amplifier_app.plan.masking import masked_tree
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.tree.entries import Path, find_or_none
from amplifier_app.plan.tree.nodes import MapNode, plain_data
from amplifier_app.runtime.budget_limits import BUDGET_LIMITS, assignment
from amplifier_app.runtime.saved.session_record import SessionRecord
from amplifier_app.runtime.turns.turn import TurnResult
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import BUDGET, SPENT, ModeControl, SessionBudget
from amplifier_support.usage import dollars
from amplifier_support.working_folder import working_folder

if TYPE_CHECKING:
    from amplifier_app.sessions.folder import SavedSession
    from amplifier_app.sources.resolver import AppModuleSourceResolver

_MAX_VALUE = 200
_BUDGET = ("session", "budget")


class Restored(NamedTuple):
    """The parts of a resumed session that its metadata has in place of its saved plan.

    Attributes:
        provider: The provider chosen after the session began.
        model: Its model.
        sets: Limits changed after the session began, as assignments.
    """

    provider: str | None = None
    model: str | None = None
    sets: tuple[str, ...] = ()


def settings_to_restore(metadata: Mapping[str, Any]) -> Restored:
    """Return what the metadata of a saved session changes in its saved plan."""
    chosen = to_mapping(metadata.get("chosen"))
    provider, model = (chosen.get(name) for name in ("provider", "model"))
    limits = to_mapping(metadata.get("budget"))
    return Restored(
        provider if isinstance(provider, str) else None,
        model if isinstance(model, str) else None,
        tuple(
            assignment(name, limits[name])
            for name in BUDGET_LIMITS
            if isinstance(limits.get(name, ""), int | float | None)
        ),
    )


class State(NamedTuple):
    """The state that a session is compared with when it is resumed.

    Attributes:
        plan_digest: See `amplifier_app.plan.model`.
        provider: The provider used first.
        model: Its model, if known.
        mode: The approval mode; None if no module has modes.
        modules: Module id → what exactly was used.
        chosen: Provider and model, if options chose one in place of the saved plan's.
        budget: Limits that were changed in place of the saved plan's.
    """

    plan_digest: str
    provider: str
    model: str | None
    mode: str | None
    modules: dict[str, str]
    chosen: dict[str, str]
    budget: dict[str, Any]

    def as_metadata(self) -> dict[str, Any]:
        """Return the metadata to save with the session."""
        return {name: value for name, value in self._asdict().items() if value}


class Resumption:
    """The state that a session takes over from an earlier run, and saves for the next one.

    Args:
        plan: Its plan.
        saved: The saved session; None if it is not saved.
        resumed: Whether it continues an earlier conversation.
    """

    def __init__(self, plan: ResolvedPlan, saved: SavedSession | None, *, resumed: bool) -> None:
        self._plan = plan
        self._before: dict[str, Any] = {} if saved is None or not resumed else saved.metadata
        self._as_saved = bool(self._before) and saved is not None and saved.plan in plan.files

    def mode(self, control: ModeControl | None) -> str | None:
        """Return the approval mode of the earlier run, if the session has it."""
        mode = self._before.get("mode")
        # It may have been saved with another plan.
        return mode if control is not None and mode in control.modes else None

    def state(
        self,
        provider: str,
        model: str | None,
        mode: str | None,
        sources: AppModuleSourceResolver,
        raised: Mapping[str, float],
    ) -> State:
        """Return the state of the session now; `raised` are the limits raised in this run."""
        resolved = sources.resolved_for(self._plan.mount_plan())
        modules = {module_id: source.identity for module_id, source in resolved.items()}
        budget = {**self._limits(), **raised}
        return State(self._plan.digest, provider, model, mode, modules, self._chosen(), budget)

    def _chosen(self) -> dict[str, str]:
        """The provider and the model to use with the saved plan the next time.

        The options of a new session are part of its saved plan.
        """
        if not self._as_saved:
            return dict(to_mapping(self._before.get("chosen")))
        chosen = {"provider": self._plan.chosen.provider, "model": self._plan.chosen.model}
        return {name: value for name, value in chosen.items() if value}

    def _limits(self) -> dict[str, Any]:
        """The limits to use with the saved plan the next time, before any is raised now."""
        if not self._as_saved:
            return dict(to_mapping(self._before.get("budget")))
        sets = self._plan.chosen.sets
        return {path[-1]: plain_data(value) for path, value in sets if path[:-1] == _BUDGET}

    def differences(self, now: State) -> Iterator[str]:
        """Yield how the session differs from when it was last used, one line each."""
        before, plan = self._before, self._plan
        folder = before.get("project")
        if folder and folder != (here := working_folder()):
            yield f"the session was started in {folder}; its tools now work in {here}"
        if self._as_saved:
            yield from _options(before, plan)
        elif before.get("plan_digest") not in (None, now.plan_digest):
            name = str(before.get("profile") or "")
            origin = f"was {name}" if name and name != plan.name else "changed since then"
            yield f"plan: {plan.name} ({origin})"
        yield from _describe_change("provider", before.get("provider"), now.provider)
        yield from _describe_change("model", before.get("model"), now.model)
        yield from _describe_change("mode", before.get("mode"), now.mode)
        yield from _modules(to_mapping(before.get("modules")), now.modules)


def _describe_change(what: str, before: Any, now: str | None) -> Iterator[str]:
    if isinstance(before, str) and now is not None and before != now:
        yield f"{what}: {one_line(now, _MAX_VALUE)} (was {one_line(before, _MAX_VALUE)})"


def _options(before: Mapping[str, Any], plan: ResolvedPlan) -> Iterator[str]:
    """The values that `--set` and the options for limits change; secrets stay masked."""
    then, now = masked_tree(plan.merged.document, written=True), masked_tree(plan.tree)
    raised = to_mapping(before.get("budget"))
    for path in dict.fromkeys(path for path, _ in plan.chosen.sets):
        old, new = _value(then, path), _value(now, path)
        if path[:-1] == _BUDGET and path[-1] in raised:
            old = _text(raised[path[-1]])
        yield from _describe_change(".".join(path), old, new)


def _value(tree: MapNode, path: Path) -> str:
    node = find_or_none(tree, path)
    return _text(None if node is None else plain_data(node))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "not set" if value is None else str(value)


def _modules(before: Mapping[str, Any], now: Mapping[str, str]) -> Iterator[str]:
    """The modules whose version changed; those of one distribution in one line."""
    changes: dict[tuple[str, str], list[str]] = {}
    for module_id, used in now.items():
        version_before = before.get(module_id)
        if isinstance(version_before, str) and version_before != used:
            changes.setdefault((version_before, used), []).append(module_id)
    for (version_before, used), ids in changes.items():
        what = ids[0] if len(ids) == 1 else f"{len(ids)} modules"
        yield f"{what}: {one_line(used, _MAX_VALUE)} (was {one_line(version_before, _MAX_VALUE)})"


class BudgetRecord:
    """The budget of one session. Create it before the modules are mounted.

    Args:
        coordinator: The coordinator of the session.
        record: Saves the session; None if it is not saved.
    """

    def __init__(self, coordinator: Any, record: SessionRecord | None) -> None:
        self._coordinator = coordinator
        self._record = record
        # The budget of the parent session, which saves it.
        self._inherited = BUDGET.of(coordinator)
        self._budget: SessionBudget | None = None
        self._planned: dict[str, float] = {}
        self._saved_cost: Any = None
        self._before: Any = None if record is None else record.saved.metadata.get("spent")
        if record is not None:
            SPENT.register(coordinator, self._before)

    @property
    def is_missing(self) -> bool:
        """True if usage has to be counted as it grows, and no mounted module does so."""
        if self._is_counted:
            return False
        limits = to_mapping(to_mapping(self._coordinator.config["session"]).get("budget")).values()
        # A session above counts what this one uses, too.
        return (
            self._is_row
            or self._inherited is not None
            or any(limit is not None for limit in limits)
        )

    @property
    def _is_counted(self) -> bool:
        budget = BUDGET.of(self._coordinator)
        return budget is not self._inherited and hasattr(budget, "as_dict")

    @property
    def _is_row(self) -> bool:
        return self._record is not None and "row" in self._record.saved.metadata

    def watch(self) -> None:
        """Save usage as it grows, so that a crash does not lose it. Call this after mounting."""
        budget, record = BUDGET.of(self._coordinator), self._record
        if budget is None or not self._is_counted:
            return
        self._budget = budget
        self._planned = dict(getattr(budget, "allowed", {}))
        # The ledger of a batch counts what a row has cost, also before its worker was killed.
        if record is not None and (budget.is_limited or self._is_row):
            budget.listen(lambda: self._save(budget, record))

    def _save(self, budget: SessionBudget, record: SessionRecord) -> None:
        spent = budget.as_dict()
        if budget.is_limited or spent.get("cost_usd") != self._saved_cost:
            record.save_spent(spent, self.raised)
            self._saved_cost = spent.get("cost_usd")

    @property
    def limits(self) -> dict[str, float]:
        """The limits now, by name."""
        return dict(getattr(self._budget, "allowed", {}))

    @property
    def raised(self) -> dict[str, float]:
        """The limits raised since the session was opened."""
        return {name: most for name, most in self.limits.items() if self._planned.get(name) != most}

    def add(self, turn: TurnResult) -> None:
        """Add a turn that no module has counted: limits of a later run apply to it, too."""
        if self._budget is not None:
            return
        before = to_mapping(self._before)
        steps = turn.steps + sum(agent.steps for agent in turn.sub_sessions)
        tokens = turn.usage.get("total_tokens", 0)
        used = {
            "steps": steps,
            "tool_calls": len(turn.tools),
            "tokens": tokens,
            "unpriced": steps if turn.cost is None else 0,
            "unmeasured": 0 if tokens else steps,
        }
        cost = (dollars(before.get("cost_usd")) or 0) + (turn.cost or 0)
        sums = {name: _count(before, name) + amount for name, amount in used.items()}
        self._before = {**before, **sums, "cost_usd": str(cost)}

    @property
    def is_live(self) -> bool:
        """True if `as_dict` includes a running turn."""
        return self._budget is not None

    def as_dict(self) -> dict[str, Any] | None:
        """Return the usage so far; without a turn in progress if no module counts it."""
        return self._before if self._budget is None else self._budget.as_dict()


def _count(before: Mapping[str, Any], name: str) -> int:
    # The file may have been edited.
    value = before.get(name)
    return value if isinstance(value, int) else 0
