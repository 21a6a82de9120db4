"""Schemas that are none, and what is left at the end."""

from tests.kit.validation.corpus.case import MOUNT_TOOL, MOUNTED_TOOL, Case

SCHEMA = [
    Case(
        "a schema that is not a mapping",
        "tool",
        (("input_schema = {\n", "input_schema = ['text']\n    other = {\n"),),
        "schema",
        "the schema of 'shout' is of type list, not dict",
        "define a JSON Schema as a plain dict",
    ),
    Case(
        "an invalid schema",
        "tool",
        (('"text": {"type": "string"}', '"text": {"type": "strng"}'),),
        "schema",
        "is not a valid JSON Schema: 'strng' is not valid",
        "JSON Schema, draft 2020-12",
    ),
    Case(
        "a schema of a list",
        "tool",
        (('"type": "object",\n        "properties"', '"type": "array",\n        "properties"'),),
        "schema",
        "is of type 'array'",
        'add "type": "object"',
        severity="warning",
    ),
    Case(
        "a schema that requires what it does not have",
        "tool",
        (('"required": ["text"]', '"required": ["txt"]'),),
        "schema",
        "requires properties it does not define: txt",
        "under 'properties'",
        severity="warning",
    ),
    Case(
        "a get_schema that raises",
        "tool",
        (
            (
                "    async def execute",
                "    def get_schema(self):\n        return 1 / 0\n\n    async def execute",
            ),
            ("    input_schema = {\n", "    input_schema = {}\n    other = {\n"),
        ),
        "schema",
        "ZeroDivisionError: division by zero (amplifier_module_thing/__init__.py, line",
        "define it as a plain dict",
    ),
    Case(
        "no config_schema",
        "tool",
        (("def config_schema", "def schema"),),
        "config_schema",
        "a plan's config for this module is checked only when it is mounted",
        "add 'def config_schema() -> dict'",
        severity="info",
    ),
    Case(
        "an async config_schema",
        "tool",
        (("def config_schema", "async def config_schema"),),
        "config_schema",
        "config_schema is async, not a plain function",
        "write 'def config_schema()",
    ),
    Case(
        "a config_schema that raises",
        "tool",
        (
            (
                '    return {"type": "object", "properties": {"times"',
                '    return {"type": objekt, "properties": {"times"',
            ),
        ),
        "config_schema",
        "config_schema() raised NameError: name 'objekt' is not defined",
        "write 'def config_schema()",
    ),
    Case(
        "a config_schema that gives a text",
        "tool",
        (
            (
                '    return {"type": "object", "properties": {"times": {"type": "integer"}}}',
                "    return '{}'",
            ),
        ),
        "config_schema",
        "config_schema() returned str, not dict",
        "write 'def config_schema()",
    ),
    Case(
        "an invalid config_schema",
        "tool",
        (('"times": {"type": "integer"}', '"times": 5'),),
        "config_schema",
        "config_schema() does not return a valid JSON Schema: 5 is not of type",
        "write 'def config_schema()",
    ),
    Case(
        "a config that does not fit the schema",
        "tool",
        (),
        "config_schema",
        "the config does not match it: times does not satisfy 'type'",
        "fix the config",
        options={"config": {"times": "secret"}},
    ),
]

CLEANUP = [
    Case(
        "a cleanup that raises",
        "tool",
        ((MOUNTED_TOOL, MOUNTED_TOOL + "    return lambda: {}['gone']\n"),),
        "cleanup",
        "the cleanup returned by mount() raised KeyError: 'gone' (amplifier_module_thing/",
        "cleanup must be safe to call in any state",
        severity="warning",
    ),
    Case(
        "a cleanup that hangs",
        "tool",
        (
            (
                MOUNTED_TOOL,
                MOUNTED_TOOL + "    import asyncio\n\n    async def close():\n"
                "        await asyncio.Event().wait()\n\n    return close\n",
            ),
        ),
        "time",
        "it did not end within 4 s during mount and was stopped; it was at "
        "amplifier_module_thing/__init__.py, line 33, in close",
        "give every wait a time limit",
        options={"seconds": 4},
    ),
    Case(
        "a task that is left behind",
        "hook",
        (
            (
                "    return coordinator",
                "    import asyncio\n"
                "    coordinator.task = asyncio.create_task(asyncio.sleep(600), name='my-poller')\n"
                "    return coordinator",
            ),
        ),
        "left_behind",
        "tasks still run after the cleanup: my-poller",
        "cancels and awaits them",
        severity="warning",
    ),
    Case(
        "a thread that is left behind",
        "context",
        (
            (
                "    await coordinator",
                "    import threading\n"
                "    threading.Thread(target=threading.Event().wait, name='my-watcher').start()\n"
                "    await coordinator",
            ),
        ),
        "left_behind",
        "threads still run after the cleanup: my-watcher",
        "stops and joins them",
        severity="warning",
    ),
    Case(
        "a process that is left behind",
        "tool",
        (
            (
                MOUNT_TOOL,
                MOUNT_TOOL + "    import subprocess\n"
                "    subprocess.Popen(['sleep', '600'], start_new_session=True)\n",
            ),
        ),
        "left_behind",
        "it left 2 processes running, which the check killed: sleep",
        "ends them and waits for them",
        severity="warning",
    ),
]
