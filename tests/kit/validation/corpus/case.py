"""What a broken module is and what has to be found in it."""

from typing import Any, NamedTuple

from tests.kit.validation.samples import PROJECT


class Case(NamedTuple):
    """A broken module.

    Attributes:
        title: What is wrong, for a person.
        kind: Kind of module.
        changes: Texts of the sample's code and what takes their place.
        check: The check that finds it.
        message: Part of its message.
        advice: Part of its fix.
        options: For `validate_module`.
        severity: How bad it is.
        project: The pyproject.toml, if it is not the ordinary one.
    """

    title: str
    kind: str
    changes: tuple[tuple[str, str], ...]
    check: str
    message: str
    advice: str
    options: dict[str, Any] = {}  # noqa: RUF012 - read only
    severity: str = "error"
    project: str | None = PROJECT

    def __str__(self) -> str:
        return f"{self.kind}: {self.title}"


BEHAVIOUR: dict[str, Any] = {"behavioral": True}
TYPE = "__amplifier_module_type__"
MOUNT_TOOL = "async def mount(coordinator, config=None):\n    tool = Shout()\n"
MOUNTED_TOOL = '    await coordinator.mount("tools", tool)\n'


def project(*changes: tuple[str, str]) -> str:
    text = PROJECT
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text
