"""JSON on stdout is JSON, also if a plan or a saved file has numbers that JSON lacks."""

import json
import re
from pathlib import Path
from typing import Any, NoReturn

import amplifier_app
from amplifier_app.base.json_text import json_line, json_text
from amplifier_app.sessions.store import SessionStore
from tests.support.cli import succeed
from tests.support.plans import mock_plan


def strict(text: str) -> Any:
    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_json_lacks_are_text() -> None:
    given = {"a": [float("inf"), (float("-inf"), {"b": float("nan")})], float("inf"): 1.5}
    wanted = {"a": ["inf", ["-inf", {"b": "nan"}]], "Infinity": 1.5}
    assert strict(json_text(given)) == wanted
    assert strict(json_line(given)) == wanted


def test_commands_print_json_whatever_the_numbers(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["ok"])
    odd = mock_plan(tmp_path, ["ok"], name="odd.yaml", mock={"delay": float("inf")})
    home = tmp_path / "home"
    saved = SessionStore(home / "sessions").create(
        "s1", project="/p", plan_yaml="x: 1\n", odd=float("nan")
    )
    call = {"type": "tool_call", "id": "c1", "name": "t", "input": {"limit": float("-inf")}}
    saved.append({"role": "user", "content": "hello"})
    saved.append({"role": "assistant", "content": [call]})
    saved.append({"role": "tool", "tool_call_id": "c1", "content": "done"})
    saved.close()
    lines = {
        ("plan", "show", "-f", odd, "--output", "json"): '"inf"',
        ("plan", "explain", "providers", "-f", odd, "--output", "json"): '"inf"',
        ("plan", "diff", plan, odd, "--output", "json"): '"inf"',
        ("session", "show", "s1", "--output", "json"): '"nan"',
        ("session", "show", "s1", "--call", "1", "--output", "json"): '"-inf"',
        ("session", "export", "s1", "--json"): '"-inf"',
    }
    for line, text in lines.items():
        done = succeed(*line, home=home, cwd=tmp_path)
        strict(done.stdout)
        assert text in done.stdout, line


def test_commands_print_json_by_the_functions_that_make_it_valid() -> None:
    commands = Path(amplifier_app.__file__).parent / "commands"
    own = [
        file
        for file in commands.rglob("*.py")
        if re.search(r"(print|stdout\.write)\(f?\W*json\.dumps", file.read_text())
    ]
    assert own == []
