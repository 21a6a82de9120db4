"""Commands that show facts about the session."""

from __future__ import annotations

from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.slash.layout import rows
from amplifier_app.chat.slash.mode import answered
from amplifier_app.chat.slash.registry import Chat, Reply, command
from amplifier_app.runtime import describe
from amplifier_app.runtime.approvals import NO_MODES
from amplifier_app.runtime.describe import first_sentence
from amplifier_app.runtime.status import read_status

_COUNTS = {"estimated_calls": "calls with estimated tokens"}


@command("/status", "Session, profile, model and directory", during_turn=True)
async def status(chat: Chat, argument: str) -> Reply:
    session, facts, now = chat.session, chat.session.facts, read_status(chat.session)
    budgets = (now.cost_text if now.budget is not None else "", now.tokens_text)
    context = "" if now.context_percent is None else f"{now.context_percent} % full"
    table = [
        ("session", f"{session.id}{'' if facts.saved else ' (not saved)'}"),
        ("profile", facts.profile),
        ("provider", now.provider),
        ("model", now.model or "the provider's default"),
        ("mode", (now.mode or NO_MODES) + answered(session.session.coordinator)),
        *([] if now.module_mode is None else [("module's mode", now.module_mode)]),
        ("directory", facts.working_dir + (f" ({now.branch})" if now.branch else "")),
        ("context", context or "no model call yet"),
        ("budget", ", ".join(filter(None, budgets)) or "no limit on cost or tokens"),
        ("tools", ", ".join(facts.tools) or "none"),
        ("messages", str(len(await session.context.get_messages()))),
    ]
    return rows((name, one_line(value, 400)) for name, value in table)


@command("/tools", "Tools available to the model", during_turn=True)
async def tools(chat: Chat, argument: str) -> Reply:
    mounted = chat.session.session.coordinator.get("tools")
    listed = [
        (one_line(name, 40), one_line(first_sentence(str(getattr(tool, "description", ""))), 100))
        for name, tool in mounted.items()
    ]
    return rows(listed) if listed else "no tools"


@command("/cost", "Tokens and cost so far", during_turn=True)
async def cost(chat: Chat, argument: str) -> Reply:
    usage = chat.session.usage
    if not usage.calls:
        return "No usage yet."
    price = "no price known for this model"
    if usage.cost_usd is not None:
        about = "about " if usage.tokens.get("estimated_calls") else ""
        price = f"{about}{describe.cost(usage.cost_usd)}"
    counts = [
        (_COUNTS.get(name, name.replace("_", " ")), f"{count:,}")
        for name, count in usage.tokens.items()
    ]
    return rows([*counts, ("cost", price)], numbers=True)
