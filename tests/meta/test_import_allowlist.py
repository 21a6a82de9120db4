"""What a start may import: each list is the whole of what its command loads beyond Python itself.

A package or heavy module that comes to be imported on one of these paths is paid for by every
start. It goes on the list when it earns that, and otherwise into the function that needs it.
"""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from amplifier_app.base.own_packages import WINGS
from tests.support.cli import amplifier_command, child_environment
from tests.support.llm_server import ScriptedLLM
from tests.support.plans import mock_plan, module_folder

PROBE = """\
import atexit, sys
before = set(sys.modules)
atexit.register(lambda: print("LOADED", *(set(sys.modules) - before), file=sys.stderr))
"""

HEAVY = {
    *("asyncio", "concurrent.futures", "ctypes", "dataclasses", "email", "http.client"),
    *("importlib.metadata", "importlib.resources", "inspect", "json", "logging"),
    *("multiprocessing", "pydoc", "sqlite3", "ssl", "subprocess", "tomllib", "unittest"),
    *("urllib.request", "xml.etree", "zipfile"),
}
"""Of the standard library, what takes a millisecond or more to import."""

PYDANTIC = {
    "annotated_types",
    "pydantic",
    "pydantic_core",
    "typing_extensions",
    "typing_inspection",
}
TYPER = {"annotated_doc", "shellingham", "typer"}
HTTP = {"h11"}
OURS = {"amplifier_app", "amplifier_core", "amplifier_modules", "amplifier_support"}


class Loaded(NamedTuple):
    """Modules a process imported after it had started, and what it said."""

    modules: frozenset[str]
    stdout: str

    @property
    def packages(self) -> set[str]:
        """Top-level packages that are not of the standard library."""
        roots = {name.partition(".")[0] for name in self.modules}
        # Names with an underscore are parts of extension modules, such as `_yaml`.
        return {root for root in roots - sys.stdlib_module_names if not root.startswith("_")}

    @property
    def heavy(self) -> set[str]:
        return HEAVY & self.modules

    def build_parts(self, package: str) -> set[str]:
        """Names right below `package`."""
        prefix = f"{package}."
        below = (name[len(prefix) :] for name in self.modules if name.startswith(prefix))
        return {name.partition(".")[0] for name in below}


def loaded_by(folder: Path, *command: str, succeeds: bool = True, **env: str) -> Loaded:
    """Runs a command in `folder` that has to succeed, unless it may fail."""
    probe = folder / "probe"
    probe.mkdir()
    (probe / "sitecustomize.py").write_text(PROBE)
    done = subprocess.run(
        command,
        cwd=folder,
        env=child_environment(
            folder / "home", {"COLUMNS": None, **env, "PYTHONPATH": str(probe)}, network=True
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    said, _, modules = done.stderr.rpartition("LOADED")
    assert modules
    assert done.returncode == 0 or not succeeds, said
    return Loaded(frozenset(modules.split()), done.stdout)


def test_the_kernel_and_the_names_it_offers(tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, sys.executable, "-c", "import amplifier_core")
    assert loaded.packages == {"amplifier_core"}
    assert loaded.heavy == set()


def test_the_kernels_work_needs_pydantic_and_the_ground_floor(tmp_path: Path) -> None:
    program = (
        "import amplifier_core.session, amplifier_core.loader, amplifier_core.coordinator\n"
        "import amplifier_core.module_checks\n"
    )
    loaded = loaded_by(tmp_path, sys.executable, "-c", program)
    assert loaded.packages <= {"amplifier_core", "amplifier_support", *PYDANTIC}


def test_the_launcher_of_commands(tmp_path: Path) -> None:
    program = "import amplifier_support.process.supervisor"
    loaded = loaded_by(tmp_path, sys.executable, "-c", program)
    assert loaded.packages == {"amplifier_support"}
    assert loaded.heavy == {"ctypes"}
    assert not loaded.modules & {"contextlib", "enum", "re", "socket", "typing"}


@pytest.mark.parametrize("argument", ["--version", "version"])
def test_the_version(argument: str, tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, *amplifier_command(), argument)
    assert loaded.stdout.startswith("amplifier ")
    assert loaded.packages == {"amplifier_app"}
    # The script that pip writes may import re.
    assert not loaded.modules & {*HEAVY, "contextlib", "typing"}


@pytest.mark.parametrize("argument", ["--help", "-h"])
def test_the_help(argument: str, tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, *amplifier_command(), argument)
    assert loaded.packages == {"amplifier_app"}
    # The script that pip writes may import re.
    assert not loaded.modules & {*HEAVY, "contextlib", "typing"}


def test_help_for_a_narrow_terminal(tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, *amplifier_command(), "--help", COLUMNS="60")
    assert loaded.packages <= {"amplifier_app", "amplifier_support", *TYPER}
    assert loaded.build_parts("amplifier_app.commands") == {
        "entry_points",
        "finish",
        "group",
        "help",
    }


@pytest.mark.parametrize(
    "group",
    ["batch", "module", "plan", "policy", "provider", "schema", "session", "tool"],
)
def test_the_help_of_a_group_imports_none_of_its_commands(group: str, tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, *amplifier_command(), group, "--help")
    assert loaded.packages <= {*OURS, *WINGS, *TYPER, *PYDANTIC}  # Typer looks for pydantic
    for package in (
        f"amplifier_app.commands.{group}",
        "amplifier_batch.commands",
        "amplifier_kit.policy",
    ):
        assert loaded.build_parts(package) <= {"command"}


@pytest.mark.parametrize(
    ("command", "without"),
    [
        (("session", "list"), {"rich", "prompt_toolkit", "markdown_it"}),
        (("session", "show", "x"), {"rich", "prompt_toolkit", "markdown_it"}),
        (("plan", "show", "-P", "mock"), {"jsonschema", "rich", "httpx"}),
        (("module", "list"), {"jsonschema", "rich", "httpx"}),
        (("provider", "list"), {"jsonschema", "rich"}),
        (("doctor",), {"jsonschema", "rich"}),
        (("trust",), {"prompt_toolkit", "rich"}),
        (("batch", "status", "x"), {"rich", "markdown_it"}),
        (("module", "validate", "--help"), {"rich", "httpx", "jsonschema"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_does_not_import_what_only_others_need(
    command: tuple[str, ...], without: set[str], tmp_path: Path
) -> None:
    loaded = loaded_by(tmp_path, *amplifier_command(), *command, succeeds=False)
    assert loaded.packages & without == set()


@pytest.mark.parametrize(("options", "parser"), [([], set[str]()), (["--output", "json"], TYPER)])
def test_a_prompt_answered_over_http(options: list[str], parser: set[str], tmp_path: Path) -> None:
    with ScriptedLLM.running(["hello"]) as server:
        loaded = loaded_by(
            tmp_path,
            *amplifier_command(),
            *("run", *options, "hi"),
            ANTHROPIC_BASE_URL=server.base_url,
            ANTHROPIC_API_KEY="test-key",
        )
    assert "hello" in loaded.stdout
    assert loaded.packages <= OURS | PYDANTIC | HTTP | parser
    assert loaded.packages >= {"h11", "pydantic"}, "the probe saw what was loaded"
    assert loaded.build_parts("amplifier_modules") == {
        *("_shared", "context_simple", "hooks_backup", "hooks_logging", "loop_streaming"),
        *("provider_anthropic", "tool_bash", "tool_filesystem", "tool_search", "tool_todo"),
        "tool_skills",
        *("hooks_approval", "hooks_context_files", "hooks_status", "tool_task", "tool_web"),
    }
    assert loaded.build_parts("amplifier_app.commands") <= {
        *("duration", "event_loop", "finish", "group", "help", "option", "typer_options", "run"),
    }
    assert not loaded.modules & {
        "amplifier_app.render.terminal",
        "amplifier_app.chat.conversation",
        "amplifier_core.testing",
        "amplifier_modules.hooks_backup.hook",
        "amplifier_modules.provider_anthropic.sdk",
        "amplifier_modules.tool_web.tools",
    }
    # pydantic looks for its plugins in every distribution when the first validator is built. With
    # its defaults nothing needs one; Typer does.
    assert parser or not loaded.modules & {"importlib.metadata", "pydantic.plugin._loader"}
    assert not loaded.modules & {"http.client", "multiprocessing", "sqlite3", "unittest"}


def test_a_module_in_a_folder_that_requires_nothing_needs_no_installer(tmp_path: Path) -> None:
    code = "__amplifier_module_type__ = 'hook'\nasync def mount(coordinator, config=None): ..."
    hook = {"module": "hooks-quiet", "source": str(module_folder(tmp_path, code))}
    plan = mock_plan(tmp_path, ["hello"], hooks=[hook])
    loaded = loaded_by(tmp_path, *amplifier_command(), "run", "-f", str(plan), "hi")
    assert loaded.stdout == "hello\n"
    unneeded = {"amplifier_app.sources.lockfile", "packaging"}
    assert not loaded.modules & unneeded


def test_plans_are_read_without_an_http_client(tmp_path: Path) -> None:
    program = "import amplifier_app.plan.resolution, amplifier_app.base.keys"
    assert "http.client" not in loaded_by(tmp_path, sys.executable, "-c", program).modules


def test_what_draws_on_a_terminal(tmp_path: Path) -> None:
    program = (
        "import amplifier_app.render.terminal, amplifier_app.render.plain\n"
        "import amplifier_app.chat.application, amplifier_app.chat.conversation\n"
        "import amplifier_app.commands.run.chat, amplifier_app.commands.run.one_shot\n"
    )
    loaded = loaded_by(tmp_path, sys.executable, "-c", program)
    assert loaded.packages >= {"prompt_toolkit"}, "the probe saw what was loaded"
    assert not loaded.packages & TYPER
