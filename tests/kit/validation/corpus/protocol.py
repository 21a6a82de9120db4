"""Members of mounted objects that are missing or of another form; `test_validators` has one for each check."""

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
]
