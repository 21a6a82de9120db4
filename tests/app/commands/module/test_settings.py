"""`amplifier module add|remove|override`, in the real program: what is in the settings after it."""

import json
from pathlib import Path

import pytest

from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.plans import NOISY_TOOL, mock_plan, module_folder

COMMENTED = """\
# What I always want.
tools:
  - module: tool-bash   # with a longer limit
    config: {timeout: 300}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "repo" / ".amplifier").mkdir(parents=True)
    return tmp_path / "repo"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


class Program:
    def __init__(self, home: Path, cwd: Path) -> None:
        self.home, self.cwd = home, cwd

    def __call__(self, *arguments: str) -> Finished:
        return run_amplifier("module", *arguments, home=self.home, cwd=self.cwd)

    def done(self, *arguments: str) -> str:
        finished = self(*arguments)
        assert (finished.code, finished.stdout) == (0, ""), finished.stderr
        return finished.stderr


@pytest.fixture
def module(home: Path, project: Path) -> Program:
    return Program(home, project)


def test_a_module_is_added_and_taken_out_and_comments_stay(module: Program, home: Path) -> None:
    settings = home / "settings.yaml"
    settings.write_text(COMMENTED)
    report = module.done("add", "tool-mcp", "--scope", "user")
    assert str(settings) in report
    assert settings.read_text() == COMMENTED + "  - module: tool-mcp\n"
    module.done("remove", "tool-mcp", "--scope", "user")
    assert settings.read_text() == COMMENTED


def test_source_and_config_are_written_and_used(module: Program, project: Path, home: Path) -> None:
    folder = module_folder(project, NOISY_TOOL)
    module.cwd = project / "below"
    module.cwd.mkdir()
    module.done(
        *("add", "noisy", "--source", f"../{folder.name}", "--type", "tool"),
        *("--config", "limits.seconds=5", "--config", "greeting=hello"),
    )
    assert (project / ".amplifier" / "settings.yaml").read_text() == (
        "tools:\n"
        "  - module: noisy\n"
        f"    source: ../{folder.name}\n"
        "    config:\n"
        "      limits:\n"
        "        seconds: 5\n"
        "      greeting: hello\n"
    )


def test_what_was_added_is_mounted_by_every_profile(module: Program, tmp_path: Path) -> None:
    folder = module_folder(tmp_path, NOISY_TOOL)
    profiles = module.home / "profiles"
    profiles.mkdir()
    calls = {"tool_calls": [{"name": "noisy", "input": {}}]}
    mock_plan(profiles, [calls, "done"], name="mine.yaml")
    module.cwd = tmp_path
    module.done("add", "noisy", "--source", str(folder), "--type", "tool")
    done = run_amplifier(
        *("run", "-P", "mine", "go", "--output", "json"), home=module.home, cwd=tmp_path
    )
    assert json.loads(done.stdout)["tools"][0]["name"] == "noisy", done.stderr


def test_removing_what_a_profile_has_excludes_it_and_adding_takes_that_back(
    module: Program, project: Path
) -> None:
    settings = project / ".amplifier" / "settings.yaml"
    assert "excluded" in module.done("remove", "tool-bash")
    assert settings.read_text() == "exclude:\n  - tool-bash\n"
    refused = module("remove", "tool-bash")
    assert refused.code == 78
    assert "already" in refused.stderr
    module.done("add", "tool-bash")
    assert not settings.read_text().strip()
    module.done("add", "tool-bash", "--config", "timeout=${LIMIT:-5}")
    assert "the profile" not in module.done("remove", "tool-bash")


def test_an_override_names_what_lies_in_the_project_from_the_settings(
    module: Program, project: Path
) -> None:
    folder = module_folder(project, NOISY_TOOL)
    local = project / ".amplifier" / "settings.local.yaml"
    module.done("override", "noisy", f"./{folder.name}")
    assert local.read_text() == f"sources:\n  noisy: ../{folder.name}\n"
    module.done("override", "noisy", f"./{folder.name}", "--scope", "project")
    shared = project / ".amplifier" / "settings.yaml"
    assert shared.read_text() == local.read_text()
    module.done("override", "noisy", f"./{folder.name}", "--scope", "user")
    assert (module.home / "settings.yaml").read_text() == f"sources:\n  noisy: {folder}\n"
    module.done("override", "noisy", "git+https://example.com/noisy@main")
    assert "git+https://example.com/noisy@main" in local.read_text()
    module.done("override", "noisy", "--remove")
    assert not local.read_text().strip()
    refused = module("override", "noisy", "--remove")
    assert (refused.code, "The override is set in" in refused.stderr) == (2, True)


def test_outside_of_a_project_the_settings_are_the_users(module: Program, tmp_path: Path) -> None:
    module.cwd = tmp_path
    module.done("add", "tool-mcp")
    module.done("override", "tool-mcp", "git+https://example.com/web")
    text = (module.home / "settings.yaml").read_text()
    assert "- module: tool-mcp" in text
    assert "git+https://example.com/web" in text
    refused = module("add", "tool-mcp", "--scope", "project")
    assert (refused.code, ".amplifier" in refused.stderr) == (78, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("add", "tool-bsh"), 2, "did you mean 'tool-bash'?"),
        (("add", "zzz-tool"), 2, "--source SOURCE"),
        (("add", "./my-tool"), 2, "not a module id"),
        (("add", "my-tool", "--source", "https://example.com/x"), 2, "git+https://example.com/x"),
        (("add", "my-tool", "--source", "./nowhere"), 3, "does not exist"),
        (("add", "my-tool", "--source", "."), 3, "no module in "),
        (("add", "loop-basic"), 2, "of which a plan has only one"),
        (("add", "tool-bash"), 78, "already used"),
        (("add", "tool-mcp", "--config", "x"), 2, "not an assignment"),
        (("add", "tool-bash", "--config", "timeot=5"), 2, "did you mean 'timeout'?"),
        (("remove", "tool-bsh"), 2, "did you mean 'tool-bash'?"),
        (("remove", "context-simple"), 78, "needs an orchestrator and a context"),
        (("override", "tool-bsh", "git+https://example.com/x"), 2, "did you mean 'tool-bash'?"),
        (("override", "tool-bash", "./nowhere"), 3, "does not exist"),
        (("override", "tool-bash", "git+ext::sh"), 2, "not allowed"),
        (("override", "tool-bash"), 2, "SOURCE or --remove"),
        (("override", "tool-bash", "--remove"), 2, "There are no overrides"),
    ],
)
def test_nonsense_is_refused_and_nothing_is_written(
    arguments: tuple[str, ...], code: int, message: str, module: Program, project: Path
) -> None:
    done = module(*arguments)
    assert (done.code, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((project / ".amplifier").iterdir())
    assert not (module.home / "settings.yaml").exists()


def test_a_secret_in_plain_text_is_warned_of(module: Program) -> None:
    report = module.done("add", "provider-openai", "--config", "api_key=sk-1", "--scope", "user")
    assert "${VARIABLE}" in report
    assert "sk-1" not in report
    module.done("remove", "provider-openai", "--scope", "user")
    report = module.done(
        "add", "provider-openai", "--config", "api_key=${MY_KEY}", "--scope", "user"
    )
    assert "plain text" not in report


def trusted(module: Program) -> bool:
    done = succeed("trust", "--show", "--output", "json", home=module.home, cwd=module.cwd)
    return json.loads(done.stdout)["trusted"]


def test_a_project_stays_trusted_over_ones_own_commands(module: Program, project: Path) -> None:
    folder = module_folder(project, NOISY_TOOL)
    (project / ".amplifier" / "settings.yaml").write_text("tools: [tool-search]\n")
    module.done("add", "tool-mcp")
    assert not trusted(module)
    run_amplifier("trust", "--yes", home=module.home, cwd=project)
    assert trusted(module)
    module.done("override", "noisy", f"./{folder.name}")
    assert trusted(module)
    (folder / "more.py").write_text("new = 1\n")
    assert not trusted(module)
    module.done("remove", "tool-mcp")
    assert not trusted(module)
