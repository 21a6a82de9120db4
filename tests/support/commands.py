"""Every command of the program as a line that works, for tests that hold for all of them.

    place = furnished(tmp_path)
    for line in place.lines():
        run_amplifier(*line, home=place.home, cwd=place.work)

A command without a line here fails a test, so a new one is covered by all of these tests as soon as
it exists.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from amplifier_app.commands.group import amplifier_command
from tests.support.cli import succeed
from tests.support.module_repositories import write_files
from tests.support.plans import mock_plan, module_folder
from tests.support.plugins import write_plugin

_LINES = """
--version
--help
help
version
run --help
run hi -f {plan}
run hi -f {plan} --output json
run hi -f {plan} --output stream-json
run -f {plan} --dry-run
continue hi -f {plan}
resume {session}
init --help
init --provider openai --base-url http://127.0.0.1:9/v1 --model m --no-test --yes
session --help
session list
session list --output json
session search said
session search said --output json
session show {session}
session show {session} --output json
session diff {session} {session}
session export {session}
session export {session} --html
session export {session} --bundle -o {out}/session.tar.gz
session import {bundle} --new-ids
session resume {session}
session fork {session} --at 1
session replay {session} --speed 0
session cost {session}
session cost {session} --output json
session cache {session}
session cache {session} --output json
session join {session}
session stop --help
session approve {session}
session approve {session} --output json
session rename {session} Title
session delete {other} --yes
session prune --older 30d --dry-run
session verify
session verify --output json
plan --help
plan check -f {plan}
plan check -f {plan} --output json
plan check -f {plan} --tokens --max 100000
plan diff {plan} default
plan explain session -f {plan}
plan import {plan}
plan lock -f {plan} -o {out}/plan.lock
plan schema
plan show -f {plan}
plan show -f {plan} --output json
policy --help
policy test read_file:README.md -f {plan}
policy replay -f {plan}
policy replay -f {plan} --output json
policy suggest {session} -f {plan}
module --help
module list
module list -f {plan} --output json
module show tool-todo
module add tool-mcp
module remove tool-todo
module override tool-todo {module}
module require --help
module update -f {plan}
module vendor {out}/vendored -f {plan}
module new tool tool-new --dir {out}
module validate tool-todo
module validate tool-todo --output json
tool --help
tool list -f {plan}
tool list -f {plan} --output json
tool info read_file -f {plan}
tool invoke read_file {read} -f {plan} --approve allow
profile --help
profile list
profile list --output json
profile show mock
profile use mock
provider --help
provider list
provider list --output json
provider test mock -f {plan}
provider models mock -f {plan}
provider prices -f {plan}
provider prices --output json
provider forget anthropic
trust --help
trust --list
trust {project} --show
trust {project} --show --output json
trust {project} --yes
doctor
update
doctor --output json
batch --help
batch run {plan} {rows} -o {out}/fresh --cache
batch status {batch}
batch status {batch} --output json
batch report {batch}
batch report {batch} --format html --to {out}/report.html --sessions
batch results {batch}
batch results {batch} --where outcome=ok --to {out}/results.csv
batch score {batch} --score size=python:{scorer}:size
batch score {batch} --score size=python:{scorer}:size --output json
batch approve {batch}
batch approve {batch} --output json
batch retry {batch}
batch resume {batch}
batch set {batch}
batch set {batch} --workers 2 --output json
batch merge {batch} -o {out}/merged
compare --help
compare batches {batch} {batch}
compare {batch} {batch}
compare {batch} {batch} --output json
compare --power 5%
compare {batch} --power 5% --output json
compare run {plan} {plan} {rows} -o {out}/both --until decided
test {tests}
test {tests} --output json
test {tests} --list
serve acp -f {plan}
serve mcp -f {plan}
plugin --help
plugin add {plugin} --yes
plugin list
plugin list --output json
plugin show {plugin}
plugin show {plugin} --output json
plugin update
plugin remove --help
mcp --help
mcp list
mcp list --output json
mcp add --help
mcp test --help
mcp login --help
mcp logout --help
mcp remove --help
skill --help
skill list
skill list --output json
skill show --help
skill validate --help
view --help
report --session {session} --to {out}/report.md --yes
schema result
schema events
schema plan
schema batch
schema test
docs
docs --output json
docs plans
docs plans --output json
"""

CHANGING = frozenset(
    {"delete", "rename", "use", "add", "remove", "override", "forget", "init", "--yes"}
)
"""Commands after which the others no longer find what they need: run these last."""


class Furnished(NamedTuple):
    """A home with saved sessions, and a folder with a plan, in which every command has work to do.

    Attributes:
        home: The AMPLIFIER_HOME.
        work: The working directory.
        plan: A plan with a scripted provider, whose model reads a file and answers.
        values: What replaces the names in braces.
    """

    home: Path
    work: Path
    plan: Path
    values: dict[str, str]

    def lines(self, *words: str) -> Iterator[tuple[str, ...]]:
        """The command lines that begin with these words; those that change the home come last."""
        lines = [line.split() for line in _LINES.strip().splitlines()]
        for line in sorted(lines, key=lambda line: bool(CHANGING & set(line))):
            if tuple(line[: len(words)]) == words:
                yield tuple(word.format_map(self.values) for word in line)


def commands_with_lines() -> set[tuple[str, ...]]:
    """The commands that have a line here."""
    named = set[tuple[str, ...]]()
    for line in _LINES.strip().splitlines():
        words = line.split()
        named |= {tuple(words[:1]), tuple(words[:2])}
    return named & every_command()


def every_command() -> set[tuple[str, ...]]:
    """The commands of the program, as it lists them itself: `("session", "list")`."""
    root = amplifier_command()
    return set(_leaves(root, click.Context(root), ()))


def _leaves(
    command: Any, context: click.Context, words: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    if not hasattr(command, "list_commands"):
        yield words
        return
    for name in command.list_commands(context):
        yield from _leaves(command.get_command(context, name), context, (*words, name))


def furnished(folder: Path, *, with_batch: bool = True) -> Furnished:
    """Prepare a home and a working directory below a folder.

    Args:
        folder: The folder.
        with_batch: Whether the batch of the `batch` commands is run, which takes longest.
    """
    home, work, out = (folder / name for name in ("home", "work", "out"))
    for one in (home, work, out):
        one.mkdir()
    (work / "README.md").write_text("Something to read.\n", encoding="utf-8")
    call = {"tool_calls": [{"name": "read_file", "arguments": {"file_path": "README.md"}}]}
    plan = mock_plan(
        work,
        [call, "what the model said"],
        tools=[{"module": "tool-filesystem"}, {"module": "tool-todo"}],
        hooks=[{"module": "hooks-logging"}, {"module": "hooks-approval"}],
    )
    ids = ("20260101-000000-aaaaaa", "20260102-000000-bbbbbb")
    bundle = out / "saved.tar.gz"
    for session in ids:
        succeed("run", "hi", "-f", plan, "--session", session, home=home, cwd=work)
    succeed("session", "export", ids[0], "--bundle", "-o", bundle, home=home, cwd=work)
    succeed(
        *("init", "--provider", "anthropic", "--model", "m", "--no-test"),
        *("--key-stdin", "--key-in", "file"),
        home=home,
        cwd=work,
        stdin="not-a-real-key\n",
    )
    (work / "rows.txt").write_text("hi\n", encoding="utf-8")
    tests = work / "hi.test.yaml"
    tests.write_text(
        "plan: plan.yaml\nprompt: hi\nscript: [what the model said]\n", encoding="utf-8"
    )
    batch = out / "batch"
    if with_batch:
        succeed("batch", "run", plan, "rows.txt", "-o", batch, home=home, cwd=work)
    scorer = work / "scorer.py"
    scorer.write_text("def size(answer, row, result):\n    return len(answer)\n", encoding="utf-8")
    write_files(folder / "project", {".amplifier/settings.yaml": "profile: mock\n"})
    module = module_folder(out, "", "amplifier_module_tool_todo")
    values = {
        "project": str(folder / "project"),
        "module": str(module),
        "plugin": str(write_plugin(out / "plugin")),
        "batch": str(batch),
        "tests": str(tests),
        "rows": str(work / "rows.txt"),
        "plan": str(plan),
        "scorer": str(scorer),
        "out": str(out),
        "session": ids[0],
        "other": ids[1],
        "bundle": str(bundle),
        "read": json.dumps({"file_path": "README.md"}).replace(" ", ""),
    }
    return Furnished(home, work, plan, values)
