"""Members of mounted objects that are missing or of another form; `test_validators` has one for each check."""

from __future__ import annotations

from tests.kit.validation.corpus.case import Case

PROTOCOL = [
    Case(
        "a name that model services reject",
        "tool",
        (('name = "shout"', 'name = "shout it out!"'),),
        "tool_name_form",
        "mounted as 'shout it out!', a name that model services reject",
        "letters, digits, '_' and '-'",
        severity="warning",
    ),
    Case(
        "no description",
        "tool",
        (("Gives a text back in capitals.", " "),),
        "tool_description",
        "description is empty",
        "write `description: str`",
        severity="warning",
    ),
    Case(
        "a sync execute",
        "tool",
        (("async def execute", "def execute"),),
        "tool_execute",
        "execute is not async",
        "write `async def execute(self, input: dict) -> ToolResult`",
    ),
    Case(
        "a property that raises",
        "tool",
        (
            (
                '    name = "shout"\n',
                "    @property\n    def name(self):\n        raise OSError('gone')\n\n",
            ),
            ('mount("tools", tool)', 'mount("tools", tool, name="x")'),
        ),
        "tool_name",
        "name raised OSError: gone",
        "write `name: str`",
    ),
    Case(
        "an info that is a dict",
        "provider",
        (("return ProviderInfo(", "return dict("),),
        "provider_get_info",
        "get_info returned dict",
        "write `def get_info(self) -> ProviderInfo`",
    ),
    Case(
        "a handler that is returned and not async",
        "hook",
        (
            ("async def watch", "def watch"),
            ('return coordinator.hooks.register("tool:pre", watch, name="watch")', "return watch"),
        ),
        "hook_call",
        "is not async",
        "write `async def __call__(self, event, data) -> HookResult`",
    ),
]
