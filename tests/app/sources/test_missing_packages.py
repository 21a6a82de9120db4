"""Hints for modules that miss a package, or use another version of one."""

from pathlib import Path

import pytest

from amplifier_app.sources.requirements.missing_packages import incompatibility_hint, requires_hint
from tests.support.cli import run_amplifier
from tests.support.plans import SMALL, module_folder

BROKEN = "import amplifier_foundation\n\n\nasync def mount(coordinator, config=None): ...\n"


@pytest.mark.parametrize(
    ("error", "requirement"),
    [
        (
            "No module named 'amplifier_foundation'",
            "amplifier-foundation @ git+https://github.com/microsoft/amplifier-foundation",
        ),
        ("No module named 'google.genai'", "google-genai"),
        ("No module named 'bs5_like_nothing'", "bs5-like-nothing"),
        ("No module named 'docx.shared'", "python-docx"),
    ],
)
def test_a_missing_package_is_named_with_its_requirement(error: str, requirement: str) -> None:
    hint = requires_hint(f"Module 'x' cannot be imported: {error}")
    assert hint is not None
    assert f'requires: ["{requirement}"]' in hint


@pytest.mark.parametrize(
    "error",
    [
        "cannot import name 'NoSuchName' from 'pluggy' (unknown location)",
        "AttributeError: module 'pluggy' has no attribute 'no_such_name'",
        "No module named 'pluggy.no_such_module'",
    ],
)
def test_an_incompatible_version_is_named_with_an_upper_bound(error: str) -> None:
    hint = requires_hint(error)
    assert hint is not None
    assert "pluggy" in hint
    assert 'requires: ["pluggy<1"]' in hint


@pytest.mark.parametrize(
    "error",
    [
        "No module named 'amplifier_core.nothing'",
        "cannot import name 'nothing' from 'amplifier_core.models'",
        "No module named 'tomllib.nothing'",
        "RuntimeError: the moon is not full",
        "module 'json' has no attribute 'nothing'",
    ],
)
def test_no_hint_where_no_requirement_helps(error: str) -> None:
    assert requires_hint(error) is None


def test_the_line_to_add_is_shown_by_run_check_and_validate(tmp_path: Path) -> None:
    folder = module_folder(tmp_path, BROKEN)
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"{SMALL}tools:\n- module: tool-noisy\n  source: {folder}\n")
    commands = [
        ("run", "hello", "-f", str(plan)),
        ("plan", "check", "-f", str(plan)),
        ("module", "validate", str(folder)),
    ]
    for command in commands:
        done = run_amplifier(*command, cwd=tmp_path)
        said = done.stdout + done.stderr
        assert done.code != 0
        assert 'requires: ["amplifier-foundation @ git+https://github.com/' in said


def test_the_package_that_a_module_misuses_is_named(tmp_path: Path) -> None:
    root = tmp_path / "acme"
    root.mkdir()
    lines = {
        # The innermost frame is in the package, in a standard library function it calls, or in the module.
        "pyte.Screen(80, None)": "pyte<0.8",
        "pluggy.PluginManager('x').set_blocked([])": "pluggy<1",
        "pluggy.PluginManager('x').call_all()": "pluggy<1",
        "pluggy.PluginManager(colour=1)": "pluggy<1",
        "pluggy.call_all()": "pluggy<1",
        "{}['x']": None,
        "len(3)": None,
        "own()": None,
        "httpx.Client(colour=1)": "httpx",
    }
    for line, requirement in lines.items():
        code = f"import httpx, pluggy, pyte\ndef own(a): ...\n{line}\n"
        try:
            exec(compile(code, str(root / "__init__.py"), "exec"), {"__name__": "acme"})
        except (AttributeError, KeyError, TypeError) as error:
            hint = incompatibility_hint(error, root)
        else:
            raise AssertionError(line)
        if requirement is None:
            assert hint is None, line
        elif requirement == "httpx":
            assert "which Amplifier itself requires" in (hint or ""), line
        else:
            assert f'its entry in the plan: requires: ["{requirement}"]' in (hint or ""), line
