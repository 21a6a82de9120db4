"""Settings of tool-task."""

from __future__ import annotations

from pydantic import AliasChoices, ConfigDict, Field

from amplifier_modules._shared.module.config import ModuleConfig

MODULE_ID = "tool-task"


class TaskConfig(ModuleConfig):
    """Settings of tool-task.

    Attributes:
        agents: The agents that can be given tasks; all of the plan's if unset.
        max_parallel: Tasks of this session that run in parallel; others wait.
        max_depth: How deep agents may delegate: with 1, an agent cannot give tasks itself. Also
            called `max_recursion_depth`.
        timeout: Time limit of one task, in seconds; no limit if unset.
        inherit_tools: The only tools, by module, agents keep of those they would have.
        exclude_tools: Tools that agents do not get.
        inherit_hooks: The only hooks that agents get.
        exclude_hooks: Hooks that agents do not get.
    """

    model_config = ConfigDict(populate_by_name=True)

    agents: list[str] | None = None
    max_parallel: int = Field(default=4, ge=1)
    max_depth: int = Field(
        default=1,
        ge=1,
        le=5,
        validation_alias=AliasChoices("max_depth", "max_recursion_depth"),
    )
    timeout: float | None = Field(default=None, gt=0)
    inherit_tools: list[str] | None = None
    exclude_tools: list[str] = Field(default_factory=list)
    inherit_hooks: list[str] | None = None
    exclude_hooks: list[str] = Field(default_factory=list)

    def inheritance(self, section: str) -> dict[str, list[str]]:
        """The `tools` or `hooks` inheritance passed to `session.spawn`."""
        only: list[str] | None = getattr(self, f"inherit_{section}")
        without: list[str] = getattr(self, f"exclude_{section}")
        given = {} if only is None else {f"inherit_{section}": only}
        return {**given, f"exclude_{section}": without} if without else given
