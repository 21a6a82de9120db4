"""What `plan check` and `run` report of modules that are wrong: what happened to what, and what next."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.validation.samples import SAMPLES, spoiled
from tests.support.cli import Finished, run_amplifier
from tests.support.plans import SMALL
from tests.support.thorough import one_in

MOUNTED_TOOL = '    await coordinator.mount("tools", tool)\n'
DECLINES = "    import logging\n    logging.getLogger('acme').warning('docker is missing')\n"

PLANS = {
    "tool": "tools: [{module: acme, source: ./acme.py}]",
    "hook": "hooks: [{module: acme, source: ./acme.py}]",
    "provider": "providers: [{module: provider-mock}, {module: acme, source: ./acme.py}]",
    "orchestrator": "session: {orchestrator: {module: acme, source: ./acme.py}}",
    "context": "session: {context: {module: acme, source: ./acme.py}}",
}


class Faulty(NamedTuple):
    """A module, where the plan lists it, and what is reported.

    Attributes:
        title: What is wrong.
        kind: Kind of the sample that is spoiled.
        changes: Texts of the sample's code and what takes their place.
        section: Kind of the section that lists it.
        code: Exit code of both commands.
        said: What both report.
        only_check: What only the table of `plan check` has.
    """

    title: str
    kind: str
    changes: tuple[tuple[str, str], ...]
    section: str
    code: int
    said: tuple[str, ...] = ()
    only_check: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.title}"


FAULTY = [
    Faulty(
        "a mount that raises",
        "tool",
        ((MOUNTED_TOOL, "    raise RuntimeError('no luck')\n"),),
        "tool",
        3,
        (
            "plan.yaml:2:",
            "tool 'acme' cannot be mounted: mount() raised RuntimeError: no luck (acme.py, line 29, in mount)",
            "check its config; for details: amplifier module validate",
        ),
    ),
    Faulty(
        "a missing dependency",
        "tool",
        (("from amplifier_core import", "import not_there_at_all\nfrom amplifier_core import"),),
        "tool",
        3,
        (
            "tool 'acme' cannot be imported: No module named 'not_there_at_all'",
            "acme.py, line 2",
            'requires: ["not-there-at-all"]',
        ),
    ),
    Faulty(
        "declares another kind than its section",
        "hook",
        (),
        "tool",
        3,
        (
            "is listed under 'tools', but declares __amplifier_module_type__ = 'hook'; list it under 'hooks'",
        ),
    ),
    Faulty(
        "mounts another kind than its section",
        "orchestrator",
        (('__amplifier_module_type__ = "orchestrator"\n', ""),),
        "tool",
        3,
        (
            "is listed under 'tools', but mounted a module of kind 'orchestrator'",
            "'session.orchestrator'",
        ),
    ),
    Faulty(
        "declines",
        "tool",
        ((MOUNTED_TOOL, DECLINES),),
        "tool",
        0,
        ("docker is missing",),
        ("skipped: docker is missing",),
    ),
    Faulty(
        "forgets to mount and returns a cleanup",
        "tool",
        ((MOUNTED_TOOL, "    return lambda: None\n"),),
        "tool",
        0,
        ("its mount function mounted no tool and returned a cleanup; it may need settings",),
        ("skipped",),
    ),
    Faulty(
        "declines",
        "context",
        (('    await coordinator.mount("context", Notebook())\n', DECLINES),),
        "context",
        3,
        ("context 'acme' mounted no context and returned None (it logged: docker is missing)",),
    ),
    Faulty(
        "a class in place of an instance",
        "tool",
        (("    tool = Shout()\n", "    tool = Shout\n"),),
        "tool",
        3,
        ("tool 'shout' is the class Shout, not an instance of it; write Shout(…)",),
    ),
    Faulty(
        "lacks a member",
        "orchestrator",
        (("async def execute", "async def run"),),
        "orchestrator",
        3,
        (
            "orchestrator_execute: orchestrator 'orchestrator': execute is missing; expected `async def execute",
        ),
    ),
    Faulty(
        "a cleanup that requires an argument",
        "tool",
        ((MOUNTED_TOOL, MOUNTED_TOOL + "    return lambda loop: None\n"),),
        "tool",
        0,
        (
            "tool 'acme': mount() returned a function that is not a cleanup, because it requires 'loop'",
            "acme.py, line 30",
        ),
    ),
    Faulty(
        "a schema that is none",
        "tool",
        (('"text": {"type": "string"}', '"text": {"type": "strng"}'),),
        "tool",
        0,
        (),
        ("ok: its schema is not a valid JSON Schema: 'strng' is not valid",),
    ),
    Faulty(
        "a schema with a reference to nothing",
        "tool",
        (('"text": {"type": "string"}', '"text": {"$ref": "#/$defs/text"}'),),
        "tool",
        0,
        (),
        (
            "ok: its schema is not a valid JSON Schema: it refers to '#/$defs/text', which it does not",
        ),
    ),
    Faulty(
        "a name that services of models refuse",
        "tool",
        (('name = "shout"', 'name = "shout it out!"'),),
        "tool",
        0,
        (),
        ("ok: model services reject the name 'shout it out!'",),
    ),
]


def amplifier(case: Faulty, folder: Path, *arguments: str) -> Finished:
    (folder / "acme.py").write_text(spoiled(case.kind, *case.changes), encoding="utf-8")
    (folder / "small.yaml").write_text(SMALL)
    plan = f"extends: ./small.yaml\n{PLANS[case.section]}\n"
    (folder / "plan.yaml").write_text(plan, encoding="utf-8")
    return run_amplifier(*arguments, "-f", "plan.yaml", cwd=folder)


@pytest.mark.parametrize("case", one_in(3, ((case,) for case in FAULTY)), ids=str)
def test_a_check_of_the_plan_and_a_run_report_a_faulty_module(case: Faulty, tmp_path: Path) -> None:
    checked = amplifier(case, tmp_path, "plan", "check")
    run = amplifier(case, tmp_path, "run", "hello")
    for text in (*case.said, *case.only_check):
        assert text in checked.stdout + checked.stderr
    for text in case.said:
        assert text in run.stderr
    for ended in (checked, run):
        assert ended.code == case.code, ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_module_of_any_name_mounts_as_what_its_section_says(kind: str, tmp_path: Path) -> None:
    """Also where the working directory has a folder of the name of its package."""
    case = Faulty("", kind, ((f'__amplifier_module_type__ = "{kind}"\n', ""),), kind, 0)
    (tmp_path / "acme").mkdir()
    ended = amplifier(case, tmp_path, "run", "hello")
    assert ended.code == 0, ended.stderr
    assert "acme" not in ended.stderr
