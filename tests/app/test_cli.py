"""The console entry: what it answers, also to wrong usage, and how everything ends."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from amplifier_app.base.outcome import OK, Outcome
from amplifier_app.cli import main
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.group import HEADINGS
from amplifier_app.commands.group import amplifier_command as root_command
from amplifier_app.commands.run import launch
from amplifier_app.commands.run.request import Request, read_words
from tests.meta import help_pages
from tests.support.cli import run_amplifier, run_python, start_amplifier, succeed
from tests.support.schemas import RESULT


@pytest.mark.parametrize("argv", [["version"], ["--version", "run"]])
def test_the_version_is_one_line(argv: list[str]) -> None:
    done = succeed(*argv)
    assert done.stdout.startswith("amplifier ")
    assert done.stdout.count("\n") == 1


def test_every_command_is_in_a_group_of_the_help() -> None:
    listed = [name for names in HEADINGS.values() for name in names]
    assert sorted(listed) == sorted(root_command().list_commands(None))


def test_o_means_to_everywhere() -> None:
    commands = [
        *(["batch", "run"], ["batch", "merge"], ["batch", "report"], ["plan", "lock"]),
        *(["plan", "import"], ["session", "export"], ["report"]),
    ]
    for words in commands:
        text = " ".join(help_pages.print_page(" ".join(words)).split())
        assert "--to, -o" in text or "-o, --to" in text, words
        assert "--folder" not in text
        assert "--file" not in text


def test_continue_has_help_of_its_own() -> None:
    for argv in (("continue", "--help"), ("help", "continue")):
        done = run_amplifier(*argv)
        assert done.stdout.startswith("Usage: amplifier continue [OPTIONS] [PROMPT]...")
        assert "amplifier run --help" in done.stdout
        assert "--fork" not in done.stdout


def test_the_stored_help_is_what_typer_prints() -> None:
    message = "store it again with: python -m tests.meta.help_pages"
    assert help_pages.FILE.read_text(encoding="utf-8") == help_pages.pages(), message


@pytest.mark.parametrize("words", ["", "batch run"])
def test_stored_help_is_printed_on_a_terminal_of_the_usual_width(words: str) -> None:
    argv = [*words.split(), "--help"]
    printed = run_amplifier(*argv, env={"COLUMNS": "80"}).stdout
    assert printed == help_pages.print_page(words)
    assert run_amplifier(*argv, env={"COLUMNS": None}).stdout == printed
    assert run_amplifier(*argv[:-1], "-h", env={"COLUMNS": "200"}).stdout == printed
    assert run_amplifier(*argv, env={"COLUMNS": "60"}).stdout != printed


@pytest.mark.parametrize("argv", [["--version"], ["schema", "plan"]])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported(argv: list[str]) -> None:
    with open("/dev/full", "wb") as full, start_amplifier(*argv, stdout=full) as process:
        assert process.stderr is not None
        message = process.stderr.read().decode()
    assert process.returncode == 6
    assert message.count("no space left on device") == 1
    assert "Traceback" not in message


def asked_for(monkeypatch: pytest.MonkeyPatch, *argv: str) -> Request:
    """What a command line of `run` makes of itself."""
    requests: list[Request] = []

    def take(request: Request, invocation: Invocation) -> Outcome:
        requests.append(request)
        return OK

    monkeypatch.setattr(launch, "launch", take)
    assert main(["run", *argv]) == 0
    (request,) = requests
    return request


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["hi"],
        [""],
        ["a prompt, --not --options"],
        ["-q", "-P", "minimal", "hi", "--output", "json", "--tools", ""],
        ["--plan", "plan.yaml", "--set", "a=1", "--set", "b=2", "--mode", "edits", "hi"],
        ["--resume", "id", "--check", "true", "--lock", "file", "hi"],
    ],
)
def test_typer_reads_the_same(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    fast = read_words(words)
    assert fast is not None
    assert fast == asked_for(monkeypatch, *words)
    monkeypatch.setattr("amplifier_app.commands.run.request.read_words", lambda words: None)
    assert fast == asked_for(monkeypatch, *words)


@pytest.mark.parametrize(
    "words", ["-P", "-q -q", "a b", "-", "--output xml", "--max-steps 2", "--model=a", "--mode -q"]
)
def test_typer_reads_what_may_need_an_explanation(words: str) -> None:
    assert read_words(words.split()) is None


@pytest.mark.parametrize("option", ["--resume", "--plan"])
def test_an_empty_value_is_refused(option: str) -> None:
    done = run_amplifier("run", "-P", "mock", option, "", "hi")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"amplifier: {option} needs a {'file' if option == '--plan' else 'value'}",
        "  Leave the option out, or check the variable that its value comes from.",
    ]


def test_runs_as_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "amplifier_app.cli", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "amplifier")


def test_alone_it_is_run() -> None:
    done = run_amplifier()
    assert done.code == 2
    assert "there is no prompt, and stdin is empty\n  Add it in quotes" in done.stderr


def test_options_alone_are_options_of_run() -> None:
    done = run_amplifier("-f", "no-such-plan.yaml", "hi")
    assert done.code == 2
    assert "no-such-plan.yaml" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plan_in_a_repository_is_imported_first() -> None:
    source = "git+https://example.com/kit@main#subdirectory=behaviors/a.yaml"
    done = run_amplifier("run", "-f", source, "hi")
    assert done.code == 2
    assert f"a plan is a file on this machine, not '{source}'" in done.stderr
    assert f"amplifier plan import {source} -o plan.yaml" in done.stderr


@pytest.mark.parametrize("output", ["json", "stream-json"])
def test_a_usage_error_answers_in_json_if_json_was_asked_for(output: str) -> None:
    done = run_amplifier("run", "--output", output, "--bogus")
    lines = done.stdout.splitlines()
    result = json.loads(lines[-1])
    if output == "stream-json":
        assert json.loads(lines[0]) == {"type": "session", "session_id": None}
        assert result.pop("type") == "result"
    RESULT.validate(result)
    assert (done.code, result["outcome"], result["exit_code"]) == (2, "usage", 2)
    assert "--bogus" in result["error"]["message"]


def test_schemas_are_printed_as_valid_json_schemas() -> None:
    for name in ("result", "events"):
        schema = json.loads(run_amplifier("schema", name).stdout)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["title"]


def test_a_value_that_names_nothing_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "a.lock").write_text("{}")
    mock = ["run", "-P", "mock", "--no-save", "hi"]
    for arguments, code in (
        (["run", "-f", "no.yaml", "hi"], 2),
        (["run", "-f", ".", "hi"], 2),
        (["run", "-P", "nosuch", "hi"], 2),
        (["run", "-P", "mock", "-f", "no.yaml", "hi"], 2),
        ([*mock, "--mode", "nosuch"], 2),
        ([*mock, "-p", "nosuch"], 2),
        ([*mock, "--set", "nosuch.key=1"], 2),
        ([*mock, "--set", "nosuch.key=1", "--set", "other=1"], 2),
        ([*mock, "--set", "session.orchestrator.config.max_iterations=many"], 2),
        ([*mock, "--lock", "no.lock"], 2),
        ([*mock, "--report", "md=no/report.md"], 2),
        (["plan", "check", "-f", "no.yaml"], 2),
        (["plan", "diff", "mock", "nosuch"], 2),
        (["plan", "import", "no.md"], 2),
        (["provider", "models", "nosuch"], 2),
        (["batch", "run", "no.yaml", "rows.jsonl"], 2),
        (["batch", "run", "mock", "no.jsonl", "--prompt", "hi"], 2),
        (["batch", "status", "no"], 2),
        (["session", "import", "no.tar.gz"], 2),
        (["trust", "no"], 2),
        # The contents of a file, and what is not named here.
        ([*mock, "--lock", "a.lock"], 78),
        ([*mock, "--locked"], 78),
    ):
        done = run_amplifier(*arguments, cwd=tmp_path)
        assert (done.code, done.stdout) == (code, ""), (arguments, done)
    checked = run_amplifier(*mock, "--dry-run", "--set", "tools.tool-bash.config.timeout=long")
    assert (checked.code, "broken" in checked.stdout) == (2, True), checked


def test_a_setting_that_names_nothing_is_no_usage_error(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("profile: nosuch\n")
    done = run_amplifier("run", "hi", cwd=tmp_path, home=tmp_path)
    assert (done.code, "unknown profile 'nosuch'" in done.stderr) == (78, True)


@pytest.mark.parametrize(("by", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 143)])
def test_a_signal_while_the_result_is_written_does_not_cut_it_off(by: str, code: int) -> None:
    """A terminal that closes sends several signals."""
    program = f"""
import signal, sys
from amplifier_app import cli
from amplifier_app.base.stdio import Output

class Signalled(Output):
    def write(self, text):
        signal.raise_signal(signal.{by})
        return super().write(text)

def interrupt(*args):
    signal.raise_signal(signal.{by})

cli._invoke = interrupt
sys.exit(cli._main(["run", "--output", "json", "hi"], Signalled(1)))
"""
    done = run_python(program)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert json.loads(done.stdout)["exit_code"] == code
