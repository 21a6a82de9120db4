"""What a plan adds to the requirements of its modules, in the real program with a real uv."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_lock_e2e import GREETER, Machine, drifted, plan
from tests.support.cli import Finished
from tests.support.module_repositories import SEED_TOOL, Repository, write_files
from tests.support.packages import index, wheel

SAYS = 'f"{greeting}, {who}!"'

BACKEND = """
import zipfile
from pathlib import Path


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    info = "git_lib-3.0.dist-info"
    files = {
        "git_lib.py": Path("git_lib.py").read_text(),
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: git-lib\\nVersion: 3.0\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\\n" for name in [*files, f"{info}/RECORD"])
    name = "git_lib-3.0-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return name
"""


GIT_LIB = {
    "pyproject.toml": '[project]\nname = "git-lib"\nversion = "3.0"\n'
    '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "backend.py": BACKEND,
    "git_lib.py": "VERSION = 'first'\n",
}


def tool_using(package: str, *requires: str) -> dict[str, str]:
    """A tool that answers with the version of a package."""
    listed = json.dumps(list(requires))[1:-1]
    return {
        **SEED_TOOL,
        "pyproject.toml": SEED_TOOL["pyproject.toml"].replace('"amplifier-core>=1.6"', listed),
        GREETER: SEED_TOOL[GREETER]
        .replace("from typing", f"import {package}\nfrom typing")
        .replace(SAYS, f'f"{{who}} {{{package}.VERSION}}"'),
    }


def uses(folder: Path, package: str, *requires: str) -> Path:
    """That tool, next to the plan."""
    return write_files(folder / "my-tool", tool_using(package, *requires))


def needing(folder: Path, *requires: str, **more: Any) -> Path:
    """The plan with that tool, and what is added to its requirements."""
    tool = {"module": "my-tool", "source": "./my-tool", "requires": list(requires)}
    return plan(folder, None, tools=[tool], **more)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    wheels = tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        wheel(wheels, "some-lib", version)
    wheel(wheels, "anthropic", "0.5")
    wheel(wheels, "newer-httpx", "1.0", ("httpx>=99",))
    wheel(wheels, "httpx", "99.0")
    return with_index(Machine(tmp_path, "home"), tmp_path)


def with_index(machine: Machine, tmp_path: Path) -> Machine:
    """The machine with an index that has nothing but the test's own wheels."""
    folder = tmp_path / "index"
    url = folder.as_uri() if folder.exists() else index(folder, tmp_path / "wheels")
    machine.env |= {"UV_NO_INDEX": None, "UV_DEFAULT_INDEX": url}
    return machine


def answer(machine: Machine) -> str:
    done = machine("run", "-f", "plan.yaml", "go", "--output", "stream-json")
    assert done.code == 0, done.stderr
    return done.stdout


def test_a_requirement_of_the_plan_or_of_set_bounds_that_of_the_module(machine: Machine) -> None:
    uses(machine.cwd, "some_lib", "some-lib>=1")
    needing(machine.cwd, "some-lib<2")
    assert "world 1.0" in answer(machine)
    needing(machine.cwd)
    assert "world 2.0" in answer(machine)
    shown = machine(
        *("module", "show", "my-tool", "-f", "plan.yaml", "--output", "json"),
        *("--set", "tools.my-tool.requires=['some-lib<2']"),
    )
    assert json.loads(shown.stdout)["requirements"] == {"some-lib": "1.0"}


def test_a_requirement_of_the_plan_adds_to_those_of_the_module(machine: Machine) -> None:
    uses(machine.cwd, "some_lib")
    needing(machine.cwd)
    done = machine.run()
    assert done.code == 3
    assert 'requires: ["some-lib"]' in done.stderr
    needing(machine.cwd, "some-lib")
    assert "world 2.0" in answer(machine)
    shown = machine("module", "show", "my-tool", "-f", "plan.yaml", "--output", "json")
    facts = json.loads(shown.stdout)
    assert facts["requires"] == ["some-lib"]
    assert facts["requirements"] == {"some-lib": "2.0"}
    explained = machine("plan", "explain", "tools.my-tool.requires", "-f", "plan.yaml")
    assert "some-lib" in explained.stdout


def test_another_version_precedes_the_environment_if_nothing_else_imports_it(
    machine: Machine,
) -> None:
    uses(machine.cwd, "anthropic", "anthropic")
    needing(machine.cwd, "anthropic<1")
    assert "world 0.5" in answer(machine)
    checked = machine("plan", "check", "-f", "plan.yaml")
    assert checked.code == 0, checked.stderr
    shown = machine("module", "show", "my-tool", "-f", "plan.yaml", "--output", "json")
    assert json.loads(shown.stdout)["requirements"]["anthropic"] == "0.5"


def test_a_conflict_with_a_bundled_module_names_both_sides(
    machine: Machine,
) -> None:
    uses(machine.cwd, "anthropic", "anthropic")
    providers = [{"module": "provider-mock"}, {"module": "provider-anthropic"}]
    needing(machine.cwd, "anthropic<1", providers=providers)
    done = machine.run()
    assert done.code == 3
    assert "plan.yaml" in done.stderr
    assert "my-tool" in done.stderr
    assert "provider-anthropic" in done.stderr
    assert "anthropic<1" in done.stderr


def test_packages_that_amplifier_uses_are_never_replaced(machine: Machine) -> None:
    uses(machine.cwd, "some_lib", "some-lib")
    for requirement in ("pydantic<2", "httpx>=99", "newer-httpx"):
        needing(machine.cwd, requirement)
        done = machine.run()
        assert done.code == 3, requirement
        assert requirement in done.stderr
        assert "Traceback" not in done.stderr


def test_a_module_that_needs_the_version_of_the_environment_is_named(machine: Machine) -> None:
    uses(machine.cwd, "anthropic", "anthropic")
    shutil.copytree(machine.cwd / "my-tool", machine.cwd / "other-tool")
    project = machine.cwd / "other-tool" / "pyproject.toml"
    project.write_text(project.read_text().replace('["anthropic"]', '["anthropic>=1"]'))
    tools = [
        {"module": "my-tool", "source": "./my-tool", "requires": "anthropic<1"},
        {"module": "other-tool", "source": "./other-tool"},
    ]
    plan(machine.cwd, None, tools=tools)
    done = machine.run()
    assert done.code == 3
    assert "my-tool" in done.stderr
    assert "other-tool" in done.stderr
    assert "requires anthropic>=1" in done.stderr
    assert "requires anthropic<1" in done.stderr


def test_a_required_repository_is_locked_with_its_commit(machine: Machine, tmp_path: Path) -> None:
    library = Repository(tmp_path / "remotes" / "git-lib")
    commit = library.commit(GIT_LIB)
    uses(machine.cwd, "git_lib")
    requirement = f"git-lib @ {library.url}@main"
    needing(machine.cwd, requirement)
    assert "world first" in answer(machine)
    assert machine.lock().code == 0
    entry = machine.locked()["my-tool"]
    assert entry["requires"] == {requirement: commit}
    assert entry["requirements"] == {"git-lib": "3.0"}
    later = library.commit({"git_lib.py": "VERSION = 'later'\n"})
    assert "world first" in machine.greeting()
    assert "world first" in with_index(Machine(tmp_path, "other"), tmp_path).greeting()
    assert "world later" in answer(machine)
    assert machine("plan", "lock", "-f", "plan.yaml", "--check").code == 0
    needing(machine.cwd, requirement, "some-lib")
    drifted(machine.run("--locked"), "my-tool: 'requires' some-lib none → some-lib")
    needing(machine.cwd, f"git-lib @ {library.url}@{later}")
    drifted(machine.run("--locked"), f"my-tool: 'requires' {requirement}")


def test_the_package_at_the_root_of_a_modules_repository_need_not_be_required(
    machine: Machine, tmp_path: Path
) -> None:
    bundle = Repository(tmp_path / "remotes" / "kit")
    module = {f"modules/mine/{name}": text for name, text in tool_using("git_lib").items()}
    commit = bundle.commit({**GIT_LIB, **module})
    tool = {"module": "my-tool", "source": f"{bundle.url}@main#subdirectory=modules/mine"}
    plan(machine.cwd, None, tools=[tool])
    assert "world first" in answer(machine)
    assert machine.lock().code == 0
    assert machine.locked()["my-tool"]["requires"] == {f"git-lib @ {bundle.url}@{commit}": commit}
    assert machine("plan", "lock", "-f", "plan.yaml", "--check").code == 0
    bundle.commit({"git_lib.py": "VERSION = 'later'\n"})
    assert "world first" in machine.greeting()
    assert "world later" in answer(machine)


def test_requirements_of_the_plan_are_vendored(machine: Machine, tmp_path: Path) -> None:
    uses(machine.cwd, "anthropic", "anthropic")
    needing(machine.cwd, "anthropic<1")
    done = machine("module", "vendor", "vendor", "-f", "plan.yaml")
    assert done.code == 0, done.stderr
    shutil.rmtree(tmp_path / "index")
    shutil.rmtree(machine.cwd / "my-tool")
    tool = {"module": "my-tool", "source": "./vendor/my-tool", "requires": ["anthropic<1"]}
    plan(machine.cwd, None, tools=[tool])
    other = Machine(tmp_path, "other")
    done = other("run", "-f", "plan.yaml", "go", "--offline", "--output", "stream-json")
    assert done.code == 0, done.stderr
    assert "world 0.5" in done.stdout


def test_an_invalid_requirement_is_reported_with_its_line(machine: Machine) -> None:
    problems = {
        "some lib": "'some lib' is not a valid requirement",
        "-r other.txt": "'-r other.txt' is not a valid requirement",
        "lib @ https://example.com/lib.whl": "unsupported source for a requirement:",
        "lib @ git+http://example.com/lib": "git sources over 'http' are not allowed",
        "lib @ git+ssh://-oProxyCommand=x/lib": "is not a host",
        "amplifier-core>=2": "is part of Amplifier and cannot be required",
    }
    tools = [f"- {{module: x{n}, requires: [{text!r}]}}\n" for n, text in enumerate(problems)]
    write_files(machine.cwd, {"plan.yaml": f"extends: mock\ntools:\n{''.join(tools)}"})
    done = machine.run()
    assert done.code == 78
    reported = done.stderr.splitlines()
    for line, message in enumerate(problems.values(), 3):
        assert any(f"plan.yaml:{line}:" in one and message in one for one in reported), message


def test_a_bundled_module_takes_requirements_as_well(machine: Machine) -> None:
    tools = [{"module": "tool-todo", "requires": ["some-lib<2"]}]
    plan(machine.cwd, None, tools=tools)
    shown = machine("module", "show", "tool-todo", "-f", "plan.yaml", "--output", "json")
    assert json.loads(shown.stdout)["requirements"] == {"some-lib": "1.0"}
    assert machine.run().code == 0


def test_the_package_of_a_bundle_is_available_to_the_modules_it_lists(
    machine: Machine, tmp_path: Path
) -> None:
    tool = Repository(tmp_path / "remotes" / "tool")
    tool.commit(tool_using("git_lib"))
    kit = Repository(tmp_path / "remotes" / "kit")
    listing = f"bundle: {{name: kit}}\ntools: [{{module: my-tool, source: '{tool.url}@main'}}]\n"
    kit.commit({**GIT_LIB, "bundle.yaml": listing})
    file = plan(machine.cwd, None, tools=[])
    rest = file.read_text().replace("tools: []\n", "")
    file.write_text(f"bundle: {{name: app}}\nincludes: ['{kit.url}@main']\n{rest}")
    assert "world first" in answer(machine)
    assert machine.lock().code == 0
    assert machine.lock("--check").code == 0
    assert "world first" in machine.greeting()
    # A bundle in a folder has no version that its package could be installed in.
    write_files(machine.cwd / "kit", {"bundle.yaml": listing})
    file.write_text(f"bundle: {{name: app}}\nincludes: [./kit/bundle.yaml]\n{rest}")
    done = machine.run()
    assert (done.code, "Or add to plan.yaml" in done.stderr) == (3, True), done.stderr
    added = '  - {module: my-tool, requires: ["git-lib"]}'
    assert added in done.stderr
    required = f"git-lib @ {kit.url}@main"
    assert "amplifier module require git-lib -f plan.yaml" in done.stderr
    before = file.read_text()
    done = machine("module", "require", required, "-f", "plan.yaml")
    assert (done.code, f"added {required} to my-tool" in done.stderr) == (0, True), done.stderr
    assert file.read_text().startswith(before)
    assert "world first" in answer(machine)


MODULES = ("--module", "my-tool", "--module", "loop-basic")


def test_a_package_is_added_to_the_modules_that_need_it(machine: Machine) -> None:
    uses(machine.cwd, "some_lib")
    # An agent that has the module as well shares its requirements.
    helper = {"description": "Helps.", "tools": [{"module": "my-tool"}]}
    file = needing(machine.cwd, "anthropic", agents={"helper": helper})
    text = file.read_text()

    def require(*arguments: str) -> Finished:
        return machine("module", "require", *arguments, "-f", "plan.yaml")

    refused = [
        (2, "is not a valid requirement", ("some lib",)),
        (78, "the orchestrator 'loop-basic'", ("some-lib", *MODULES)),
        (2, "has no module 'other'", ("some-lib", "--module", "other")),
        (78, "can be imported without 'another'", ("another",)),
    ]
    for code, message, arguments in refused:
        done = require(*arguments)
        assert (done.code, message in done.stderr) == (code, True), done.stderr
        assert file.read_text() == text
    assert require("some lib").stderr.count("package>=1.2,<2") == 1  # the hint
    assert require("some-lib<2").code == 0
    assert "world 1.0" in answer(machine)
    # It can be imported now, so it is named.
    assert require("some-lib>1", "--module", "my-tool").code == 0
    entry = yaml.safe_load(file.read_text())["tools"][0]
    assert entry["requires"] == ["anthropic", "some-lib<2", "some-lib>1"]
    bundled = machine("module", "require", "some-lib", "-P", "mock")
    assert (bundled.code, "'mock' is a bundled profile" in bundled.stderr) == (78, True)
