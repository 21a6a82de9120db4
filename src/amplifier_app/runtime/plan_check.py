"""Check a plan up to the first model request and report every problem at once.

    plan       unset variables, invalid sources
    modules    resolve, install, import, validate the config against its schema, mount

The network is used only to fetch modules: providers are mounted and cleaned up, not called.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from amplifier_app.base.errors import AppError, ConfigError, Location, ModuleError
from amplifier_app.base.outcome import Ending
from amplifier_app.base.slow_steps import slow_step
from amplifier_app.base.tool_schemas import tool_faults
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.modules import (
    PlannedModule,
    agent_modules,
    planned_modules,
    unset_variables,
)
from amplifier_app.plan.resolution import CHOSEN_MISSING, NO_PROVIDER, SET_UP
from amplifier_app.plan.schema.config_check import config_problems, ignored_keys
from amplifier_app.plan.schema.module_schemas import config_schema
from amplifier_app.plan.tree.nodes import plain_data
from amplifier_app.plan.tree.problems import PlanError, Problem, as_clause
from amplifier_app.runtime.approvals import check_policy
from amplifier_app.runtime.budget_limits import SET_PRICES
from amplifier_app.runtime.capabilities import (
    first_provider,
    register_capabilities,
    register_mentions,
    register_trusted_dir,
    set_stored_keys,
)
from amplifier_app.runtime.mount import (
    LimitedLoader,
    Opening,
    check_pins,
    clean_up,
    collect_pins,
    read_mount_timeout,
    reason_with_key,
)
from amplifier_app.runtime.mount_problems import import_package, mount_problem
from amplifier_app.runtime.sandbox import (
    check_sandbox,
    own_policies,
    register_sandbox,
    unused_sandbox,
)
from amplifier_app.sources.module_problems import source_is_wrong, source_problem, with_lines
from amplifier_app.sources.plan_lock import missing_files
from amplifier_app.sources.resolved import ResolvedSource
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_core._foreign import warnings_logged
from amplifier_core.module_sources import (
    MISCONFIGURED,
    PARTS,
    ModuleImportError,
    ModuleLoadError,
    ModuleNotFoundError,
    missing_import,
)
from amplifier_core.mounting import ModuleSpec, NothingMountedError, mount_module
from amplifier_core.session import AmplifierSession
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.provider_order import has_no_price, requested_model
from amplifier_support.sandbox.sandbox import Sandbox, SandboxUnavailable

if TYPE_CHECKING:
    from amplifier_app.runtime.request_weight import Weight

Status = Literal["ok", "skipped", "broken", "not checked"]


class Finding(NamedTuple):
    """One problem.

    Attributes:
        kind: `"plan"`, `"config"` or `"module"`; the last is a fault of the module itself.
        problem: The problem and its location.
    """

    kind: Literal["plan", "config", "module"]
    problem: Problem


class CheckedModule(NamedTuple):
    """One module of the plan with the result of its check.

    Attributes:
        kind: `"orchestrator"`, `"context"`, `"provider"`, `"tool"` or `"hook"`.
        key: Its instance id, else its module id.
        module: Its module id.
        agent: The agent it belongs to; its modules are imported, not mounted.
        at: Where the plan names it.
        status: `"ok"`, with remarks in `reason`; `"skipped"` by a condition or because credentials
            are missing; `"not checked"` because a problem in the plan comes first.
        reason: Why it is not ok, or remarks.
        found: Its resolved source; None if it was not resolved or is unavailable.
    """

    kind: str
    key: str
    module: str
    at: Location
    status: Status
    reason: str = ""
    agent: str | None = None
    found: ResolvedSource | None = None


class CheckReport(NamedTuple):
    """The result of a check.

    Attributes:
        name: The plan's name.
        modules: Its modules in mount order, then those skipped by conditions.
        findings: Every problem, in the order of the files.
        warnings: Unused and possibly misspelt settings.
        sandbox: What the sandbox of its commands enforces here, one line each; empty if nothing in
            the plan starts commands.
        weight: The tokens of a request; None if they were not counted.
        max_tokens: How many it may have; None for any number.
    """

    name: str
    modules: tuple[CheckedModule, ...] = ()
    findings: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()
    sandbox: tuple[str, ...] = ()
    weight: Weight | None = None
    max_tokens: int | None = None

    @property
    def is_too_heavy(self) -> bool:
        """True if a request has more tokens than it may."""
        if self.weight is None or self.max_tokens is None:
            return False
        return self.weight.total > self.max_tokens

    @property
    def ending(self) -> Ending:
        """The ending of the command; problems in the user's files take precedence."""
        if not self.findings:
            return Ending.CHECK_FAILED if self.is_too_heavy else Ending.OK
        if all(finding.problem.at.is_option for finding in self.findings):
            return Ending.USAGE
        kinds = {finding.kind for finding in self.findings}
        return Ending.MODULE if kinds == {"module"} else Ending.CONFIGURATION


def to_report(error: PlanError, name: str) -> CheckReport:
    """Return the report on a plan that cannot be loaded."""
    return CheckReport(name, findings=tuple(Finding("plan", problem) for problem in error.problems))


def as_json(report: CheckReport) -> dict[str, Any]:
    """Return the report as plain data."""
    return {
        "schema_version": 1,
        "outcome": report.ending.value,
        "exit_code": report.ending.exit_code,
        "plan": report.name,
        "modules": [_module_json(module) for module in report.modules],
        "problems": [
            {
                "kind": finding.kind,
                "message": finding.problem.message,
                "hint": finding.problem.hint,
                "file": finding.problem.at.file,
                "line": finding.problem.at.line,
                "column": finding.problem.at.column,
            }
            for finding in report.findings
        ],
        "warnings": list(report.warnings),
        "sandbox": list(report.sandbox),
        "tokens": None if report.weight is None else _weight_json(report.weight, report.max_tokens),
    }


def _weight_json(weight: Weight, max_tokens: int | None) -> dict[str, Any]:
    return {
        "model": weight.model,
        "total": weight.total,
        "max": max_tokens,
        "is_counted": weight.is_counted,
        "cost_usd": None if weight.cost is None else float(weight.cost),
        "cached_cost_usd": None if weight.cached_cost is None else float(weight.cached_cost),
        "parts": [
            {
                "kind": part.kind,
                "name": part.name,
                "tokens": part.tokens,
                "file": part.at.file if part.at else None,
                "line": part.at.line if part.at else None,
            }
            for part in weight.parts
        ],
    }


def _module_json(module: CheckedModule) -> dict[str, Any]:
    source = module.found
    return {
        "id": module.module,
        "key": module.key,
        "kind": module.kind,
        "agent": module.agent,
        "at": str(module.at),
        "place": source.place if source is not None else None,
        "source": source.text if source is not None else None,
        "version": source.version if source is not None else None,
        "commit": source.commit if source is not None else None,
        "status": module.status,
        "reason": module.reason or None,
    }


CLEANUP_SECONDS = 10.0


async def check_plan(
    plan: ResolvedPlan, sources: AppModuleSourceResolver, timeout: float | None = None
) -> CheckReport:
    """Resolve, install, import, configure and mount every module of a plan, then clean up.

    Args:
        plan: The plan, loaded `lenient`.
        sources: Resolves module sources.
        timeout: Seconds it may take; what is left then is not checked.
    """
    checker = _Checker(plan, sources, timeout)
    await checker.check()
    left_out = [
        CheckedModule("provider", entry.key, entry.module, entry.at, "skipped", entry.reason)
        for entry in plan.dropped
    ]
    return CheckReport(
        plan.name,
        (*checker.modules, *left_out),
        tuple(checker.findings()),
        (*plan.warnings, *checker.warnings),
        checker.sandbox(),
    )


class _Checker:
    def __init__(
        self, plan: ResolvedPlan, sources: AppModuleSourceResolver, timeout: float | None
    ) -> None:
        self._timeout = timeout
        self._opening = Opening(None if timeout is None else time.monotonic() + timeout)
        self._plan = plan
        self._sources = sources
        self._session = AmplifierSession(_mount_plan(plan))
        self._plan_problems = _plan_problems(plan)
        self._found = [Finding("plan", problem) for problem in self._plan_problems]
        self._sandbox: Sandbox | None = None
        self._loaders: dict[str | None, LimitedLoader] = {}
        self._is_out_of_time = False
        self.modules: list[CheckedModule] = []
        self.warnings: list[str] = []

    def sandbox(self) -> tuple[str, ...]:
        """See `CheckReport`; entries with a policy of their own are listed as well."""
        sandbox = self._sandbox
        if sandbox is None or sandbox.refused is not None:
            return ()
        checks = "checks" in self._plan.merged.document.items
        unused = unused_sandbox(sandbox, self._session.config)
        if not sandbox.needed and not checks:
            return () if unused is None else (unused,)
        own = own_policies(self._session.config)
        return (*sandbox.describe(), *(f"{name}: {policy}" for name, policy in own))

    def findings(self) -> Sequence[Finding]:
        kinds: Mapping[tuple[str, Location], Any] = {
            (finding.problem.message, finding.problem.at): finding.kind for finding in self._found
        }
        problems = with_lines(self._plan, [finding.problem for finding in self._found])
        return [Finding(kinds[problem.message, problem.at], problem) for problem in problems]

    async def check(self) -> None:
        planned = [*planned_modules(self._plan), *agent_modules(self._plan)]
        resolved = await asyncio.gather(*(self._resolve(module) for module in planned))
        coordinator = self._session.coordinator
        coordinator.loader = self._loader(None)
        register_capabilities(coordinator, self._sources)
        register_trusted_dir(coordinator, self._plan.chosen.reads_project)
        await coordinator.mount("module-source-resolver", self._sources)
        namespaces = self._plan.namespaces
        self.warnings += await register_mentions(coordinator, namespaces, self._sources.offline)
        self._register_sandbox()
        set_stored_keys(coordinator)
        try:
            for module, result in zip(planned, resolved, strict=True):
                if isinstance(result, CheckedModule):
                    self.modules.append(result)
                elif self._opening.expired:
                    self.modules.append(self._out_of_time(module, result))
                elif module.agent is not None:
                    self.modules.append(await self._check_agent_module(module, result))
                else:
                    self.modules.append(await self._mount(module, result))
            self._check_price()
            await self._check_pins()
        finally:
            await clean_up(self._session.cleanup(), CLEANUP_SECONDS)
            for loader in self._loaders.values():
                loader.cleanup()
        self._check_providers()
        self._check_approvals()
        self._check_sandbox()

    def _loader(self, agent: str | None) -> LimitedLoader:
        """The loader of a session: a sub-agent may have a module from a source of its own."""
        if agent not in self._loaders:
            limit = read_mount_timeout(self._session.config)
            self._loaders[agent] = LimitedLoader(self._session.coordinator, limit, self._opening)
        return self._loaders[agent]

    def _out_of_time(
        self, module: PlannedModule, source: ResolvedSource | None = None
    ) -> CheckedModule:
        """Report a module that the time limit left no time for; the first one is a finding."""
        if not self._is_out_of_time:
            self._is_out_of_time = True
            message = (
                f"time limit of {self._timeout:g} s reached before {module.module!r} was checked"
            )
            self._report("module", message, module.at, "raise --timeout")
        return self._checked_module(module, "not checked", "the time limit was reached", source)

    async def _resolve(self, module: PlannedModule) -> ResolvedSource | CheckedModule:
        if source_is_wrong(module, self._plan, self._plan_problems):
            return self._checked_module(module, "not checked", "fix its source first")
        try:
            # The event loop's clock is the monotonic one.
            async with asyncio.timeout_at(self._opening.deadline):
                return await self._sources.async_resolve(module.module, module.source)
        except TimeoutError:
            return self._out_of_time(module)
        except (AppError, ModuleNotFoundError) as error:
            problem = source_problem(module, error)
        self._found.append(Finding("module", problem))
        return self._checked_module(module, "broken", "unavailable")

    async def _mount(self, module: PlannedModule, match: ResolvedSource) -> CheckedModule:
        config = module.entry.items.get("config")
        unset = list(dict.fromkeys(unset_variables(config))) if config is not None else []
        failure: BaseException | None = None
        nothing: str | None = None
        remarks: list[str] = []
        before: dict[str, Any] = {}
        if unset:
            failure = await self._import(module)
        else:
            before = dict(self._session.coordinator.get("tools"))
            try:
                with warnings_logged() as remarks:
                    await mount_module(_spec(module), self._session.coordinator)
            except NothingMountedError as error:
                nothing = str(error)
            # Third-party code may raise anything, including SystemExit.
            except (Exception, SystemExit) as error:
                failure = error
        wrong = self._config_findings(module, match)
        if not wrong and isinstance(getattr(failure, "__cause__", None), SandboxUnavailable):
            # Reported once, for all modules.
            return self._checked_module(module, "broken", "its sandbox is unavailable", match)
        if not wrong and failure is not None:
            wrong = [_mount_finding(module, match, failure)]
        missing = [] if wrong else self._missing(module, match)
        self._found += [*wrong, *missing]
        if wrong:
            kind = "its config is invalid" if wrong[0].kind == "config" else "cannot be mounted"
            return self._checked_module(module, "broken", kind, match)
        if missing:
            return self._checked_module(
                module, "broken", "files it would download are missing", match
            )
        if unset:
            return self._checked_module(module, "not checked", f"{', '.join(unset)} not set", match)
        if nothing is not None:
            return self._checked_module(module, "skipped", nothing, match)
        remarks += [*_declared_id_remark(module, match), *self._tool_faults(before)]
        return self._checked_module(module, "ok", "; ".join(remarks), match)

    def _tool_faults(self, before: Mapping[str, Any]) -> list[str]:
        """Faults in the schemas of newly mounted tools that a provider may reject."""
        tools: dict[str, Any] = self._session.coordinator.get("tools")
        added = {name: tool for name, tool in tools.items() if before.get(name) is not tool}
        return [fault for name, tool in added.items() for fault in tool_faults(name, tool)]

    async def _check_agent_module(
        self, module: PlannedModule, source: ResolvedSource
    ) -> CheckedModule:
        """Import a module of an agent and check its config, without mounting it."""
        failure = await self._import(module)
        wrong = self._config_findings(module, source)
        if failure is not None:
            wrong = [_mount_finding(module, source, failure)]
        self._found += wrong
        reason = "cannot be imported" if failure is not None else "its config is invalid"
        return self._checked_module(
            module, "broken" if wrong else "ok", reason if wrong else "", source
        )

    async def _import(self, module: PlannedModule) -> ModuleImportError | None:
        """Import a module without mounting it; return the import error, if any."""
        loader = self._loader(module.agent)
        try:
            await loader.load(module.module, {}, source_hint=module.source)
        except ModuleLoadError as error:
            # An invalid mount function matters less than the config.
            return error if isinstance(error, ModuleImportError) else None
        return None

    def _missing(self, module: PlannedModule, source: ResolvedSource) -> list[Finding]:
        """Offline: files that the module would download when it is used."""
        if not self._sources.offline or not source.entry_point:
            return []
        entry = {"module": module.module, "config": _spec(module).config}
        missing = missing_files(entry, source.entry_point)
        return [Finding("module", Problem(f"offline: {item}", module.at)) for item in missing]

    def _config_findings(self, module: PlannedModule, source: ResolvedSource) -> list[Finding]:
        try:
            schema = config_schema(import_package(source, module.module))
        except ModuleError as error:
            return [Finding("module", Problem(error.message, module.at))]
        if schema is None:
            return []
        partial = module.agent is not None
        self.warnings += ignored_keys(module.entry, module.module, schema)
        problems = config_problems(module.entry, module.module, schema, partial=partial)
        return [Finding("config", problem) for problem in problems]

    def _checked_module(
        self,
        module: PlannedModule,
        status: Status,
        reason: str,
        source: ResolvedSource | None = None,
    ) -> CheckedModule:
        kind, key, id, at, agent = module.kind, module.key, module.module, module.at, module.agent
        return CheckedModule(kind, key, id, at, status, reason, agent, source)

    def _report(
        self, kind: Literal["plan", "module"], message: str, at: Location, hint: str | None
    ) -> None:
        problem = Problem(message, at, hint and as_clause(hint))
        self._found.append(Finding(kind, problem))

    def _own(self, kind: str) -> list[CheckedModule]:
        """The modules of a kind that do not belong to an agent."""
        return [module for module in self.modules if module.kind == kind and module.agent is None]

    def _check_providers(self) -> None:
        """Report a plan without an available provider, as a run would."""
        providers = self._own("provider")
        # A section with a problem may be what has the providers.
        if self._plan.merged.problems:
            return
        chosen = self._plan.chosen_provider
        missing = [provider for provider in providers if provider.status == "skipped"]
        message, notes = NO_PROVIDER, list[str]()
        if any(failed.key == chosen for failed in missing):
            message = CHOSEN_MISSING.format(chosen)
            missing = [failed for failed in missing if failed.key == chosen]
        elif len(missing) == len(providers):
            notes = [entry.note for entry in self._plan.dropped if not entry.is_fallback]
        else:
            return
        reasons = [reason_with_key(failed.key, failed.reason) for failed in missing]
        document = self._plan.merged.document
        at = document.items.get("providers", document).at
        self._report("plan", message, at, "; ".join([*reasons, *notes, as_clause(SET_UP)]))

    def _check_price(self) -> None:
        """Report a limit on the cost of a model without a price, as a run would."""
        session = self._plan.data.get("session", {})
        budget = session.get("budget") or {}
        if budget.get("max_cost") is None or not self._session.coordinator.get("providers"):
            return
        name, provider = first_provider(self._session)
        model = requested_model(session.get("orchestrator"), provider)
        if has_no_price(provider, model):
            address = "session.budget.max_cost"
            priced = repr(model) if model else "its default model"
            message = f"cannot enforce {address}: {name} has no price for {priced}"
            self._report("plan", message, self._plan.origin(address), SET_PRICES)

    async def _check_pins(self) -> None:
        """Wait for the plan's servers, which log why one does not start, and compare with the lock, as a run would."""
        # The lock would report the missing tools of a module with a problem as changes.
        lock = None if self._found else self._sources.lock
        try:
            with slow_step("waiting for the plan's servers"):
                async with asyncio.timeout_at(self._opening.deadline):
                    if lock is None:
                        await collect_pins(self._session.coordinator)
                    else:
                        text = await check_pins(self._session.coordinator, lock.pins, self._plan)
                        self.warnings += [text] if text else []
        except TimeoutError:
            # Without a lock, a run does not wait for them.
            if lock is not None:
                message = f"time limit of {self._timeout:g} s reached before the lock was compared"
                self._report("module", message, self._plan.origin("tools"), "raise --timeout")

    def _register_sandbox(self) -> None:
        try:
            self._sandbox = register_sandbox(
                self._session.coordinator, self._session.config, self._plan
            )
        except ConfigError as error:
            # Other problems of the policy were found when the plan was loaded.
            if not self._plan.merged.problems:
                self._report_sandbox(error)

    def _check_sandbox(self) -> None:
        """Report a sandbox that this machine lacks, as a run would."""
        if self._sandbox is None:
            return
        try:
            check_sandbox(self._sandbox)
        except ConfigError as error:
            self._report_sandbox(error)

    def _report_sandbox(self, error: ConfigError) -> None:
        document = self._plan.merged.document
        at = document.mapping("session").items.get("sandbox", document).at
        self._report("plan", error.message, at, error.hint)

    def _check_approvals(self) -> None:
        """Report rules for tool calls that nothing applies, as a run would."""
        approvals = self._plan.merged.document.items.get("approvals")
        # A hook with a problem may be what applies them.
        if approvals is None or any(hook.status == "broken" for hook in self._own("hook")):
            return
        try:
            check_policy(self._session.coordinator)
        except ConfigError as error:
            self._found.append(Finding("plan", Problem(error.message, approvals.at, error.hint)))


def _plan_problems(plan: ResolvedPlan) -> Sequence[Problem]:
    """Return the problems that prevent the plan from running."""
    try:
        ResolvedPlan(plan.merged, plan.chosen, plan.environ).resolve()
    except PlanError as error:
        return error.problems
    return ()


def _mount_plan(plan: ResolvedPlan) -> dict[str, Any]:
    """The mount plan, also of a plan without orchestrator or context, which the kernel refuses."""
    data = plan.data
    session: dict[str, Any] = data.setdefault("session", {})
    for part in PARTS:
        session.setdefault(part, {}).setdefault("module", "missing")
    return data


def _declared_id_remark(module: PlannedModule, source: ResolvedSource) -> list[str]:
    declared = source.layout.module_id if source.layout is not None else None
    if declared in (None, module.module):
        return []
    return [f"its project declares it as {declared!r}"]


def _mount_finding(module: PlannedModule, source: ResolvedSource, error: BaseException) -> Finding:
    text = str(error) or type(error).__name__
    kind = "config" if MISCONFIGURED in text else "module"
    return Finding(kind, mount_problem(module, source, text, missing_import(error)))


def _spec(module: PlannedModule) -> ModuleSpec:
    data = plain_data(module.entry)
    return ModuleSpec(
        module.kind, module.module, module.source, data.get("config") or {}, data.get("instance_id")
    )
