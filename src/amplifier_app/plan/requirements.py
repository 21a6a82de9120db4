"""The key `requires` of a plan's entries, checked, by module."""

from __future__ import annotations

from collections.abc import Iterable

from amplifier_app.plan.nodes import ListNode, MapNode, Scalar, text_of
from amplifier_app.plan.problems import Problems
from amplifier_app.sources.requires import PlanRequirement, check_requirement
from amplifier_app.sources.spec import SourceSyntaxError, without_password


def requirements_of(
    entries: Iterable[MapNode], problems: Problems
) -> dict[str, tuple[PlanRequirement, ...]]:
    """Module id → what its entries add to its requirements.

    A process loads a module once, so the entries of one module share theirs.

    Args:
        entries: The entries, with variables filled in.
        problems: Gets the requirements that are not valid or not allowed.
    """
    found: dict[str, dict[str, PlanRequirement]] = {}
    for entry in entries:
        module, listed = text_of(entry.items.get("module")), entry.items.get("requires")
        for node in listed.items if isinstance(listed, ListNode) else ():
            text = text_of(node)
            if not isinstance(node, Scalar) or text is None or node.unset:
                continue
            try:
                check_requirement(text)
            except SourceSyntaxError as error:
                if not problems.any_at(node.at):
                    problems.add(error.message, node.at, error.hint)
                continue
            raw = node.expression if node.secret else None
            written = without_password(raw or text)
            one = PlanRequirement(text, written, node.at)
            found.setdefault(module or "", {}).setdefault(written, one)
    return {module: tuple(by_text.values()) for module, by_text in found.items()}
