"""Commands of other packages: each in a wheel of its own, found through its metadata."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.cli import Finished, run_amplifier
from tests.support.packages import wheel

EXAMPLE = Path(__file__).parents[2] / "examples" / "command"

GREETING = """
import typer

app = typer.Typer(add_completion=False)

@app.command()
def greet(name: str = "you"):
    "Greet someone."
    print(f"hello, {name}")
"""


class Site:
    """A folder of installed packages on the path of the program."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.site = folder / "site"

    def install(self, name: str, code: str, commands: Mapping[str, str]) -> None:
        file = wheel(self._folder, name, "1.0", files={f"{name}.py": code}, commands=commands)
        with ZipFile(file) as archive:
            archive.extractall(self.site)

    def amplifier(self, *words: str, **env: str | None) -> Finished:
        return run_amplifier(*words, env={"PYTHONPATH": str(self.site), **env}, cwd=self._folder)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_package_adds_a_command_and_help_lists_it(site: Site) -> None:
    site.install("greeting", GREETING, {"greet: Greet someone.": "greeting:app"})
    done = site.amplifier("greet", "--name", "Ada")
    assert (done.code, done.stdout) == (0, "hello, Ada\n")
    for columns in (None, "60"):
        assert "greet" in site.amplifier("--help", COLUMNS=columns).stdout
    assert "Usage: amplifier greet" in site.amplifier("greet", "--help").stdout
    assert "greet" not in run_amplifier("--help").stdout


def test_two_words_add_to_a_group(site: Site) -> None:
    site.install("greeting", GREETING, {"session greet: Greet someone.": "greeting:app"})
    assert site.amplifier("session", "greet").stdout == "hello, you\n"
    listed = site.amplifier("session", "--help").stdout
    assert "greet" in listed
    assert "rename" in listed


def test_the_programs_own_commands_cannot_be_replaced(site: Site) -> None:
    words = ("version", "session list", "batch", "schema test", "module validate")
    site.install("greeting", GREETING, {f"{name}: Mine.": "greeting:app" for name in words})
    assert site.amplifier("version").stdout.startswith("amplifier ")
    assert "hello" not in site.amplifier("session", "list").stdout
    assert "Run a plan over every row" in site.amplifier("batch", "--help").stdout
    assert "https://json-schema.org" in site.amplifier("schema", "test").stdout
    assert "hello" not in site.amplifier("module", "validate", "--help").stdout
    assert "Mine." not in site.amplifier("--help").stdout


def test_a_broken_command_is_named_and_harms_no_other(site: Site) -> None:
    for number, (code, reason) in enumerate(
        (
            ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
            ("import sys; sys.exit(7)", "SystemExit: 7"),
            ("import missing_package", "No module named 'missing_package'"),
            ("app = 5", "broken3:app is int, not typer.Typer"),
            ("other = 5", "has no attribute 'app'"),
        )
    ):
        name = f"broken{number}"
        site.install(name, code, {f"{name}: Does not work.": f"{name}:app"})
        done = site.amplifier(name)
        assert done.code == 3
        assert f"cannot load the command '{name}' of {name}-1.0" in done.stderr
        assert reason in done.stderr
        assert "Traceback" not in done.stderr
    for words in (["--help"], ["version"], ["run", "-P", "mock", "hi"], ["session", "list"]):
        other = site.amplifier(*words)
        assert other.code == 0, other.stderr
        assert "broken" not in other.stderr


def test_a_command_is_imported_for_no_other(site: Site) -> None:
    mark = "import pathlib; pathlib.Path('imported').touch()\n" + GREETING
    site.install("greeting", mark, {"greet: Greet someone.": "greeting:app"})
    for words in (["--help"], ["run", "-P", "mock", "hi"], ["docs"], ["nonsense"]):
        site.amplifier(*words)
    assert not (site.site.parent / "imported").exists()
    site.amplifier("greet")
    assert (site.site.parent / "imported").exists()


def test_a_slow_command_is_named_while_it_is_imported(site: Site) -> None:
    slow = "import time; time.sleep(2.6)\n" + GREETING
    site.install("greeting", slow, {"greet: Greet someone.": "greeting:app"})
    done = site.amplifier("greet")
    assert done.stdout == "hello, you\n"
    assert "still importing the command 'greet' of greeting-1.0" in done.stderr


def test_damaged_metadata_is_passed_over(site: Site) -> None:
    site.install("greeting", GREETING, {"greet: Greet someone.": "greeting:app"})
    (site.site / "odd-1.0.dist-info").mkdir()
    (site.site / "odd-1.0.dist-info" / "entry_points.txt").write_bytes(
        b"[amplifier.commands]\n\xff\xfe = \n= x\nno equals sign\n"
    )
    assert site.amplifier("greet").stdout == "hello, you\n"


def test_the_example_of_the_page_works(site: Site) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    code = (EXAMPLE / "amplifier_command_ask_all" / "__init__.py").read_text()
    site.install("amplifier_command_ask_all", code, project["entry-points"]["amplifier.commands"])
    assert site.amplifier("ask-all", "hi", "mock").stdout == "mock: You said: hi\n"
    assert site.amplifier("plan", "digest", "mock").stdout.startswith("sha256:")
    refused = site.amplifier("plan", "digest", "no-such-profile")
    assert refused.code == 2
    assert "no-such-profile" in refused.stderr
