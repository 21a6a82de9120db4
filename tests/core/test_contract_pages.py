"""The contract pages: every Python block runs, every example is a valid module, every check is listed."""

import re
from pathlib import Path
from typing import Any

import pytest

import amplifier_core
from amplifier_core import AmplifierSession
from amplifier_core.module_checks import KINDS
from amplifier_core.module_sources import ModuleSource
from amplifier_kit.validation.validators import VALIDATORS
from tests.core.module_folders import ModuleFolders
from tests.kit.pytest_projects import Project

pytest_plugins = ["pytester"]

PAGES = Path(amplifier_core.__file__).parent / "contracts"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def blocks(page: str) -> list[str]:
    found = BLOCK.findall((PAGES / page).read_text(encoding="utf-8"))
    assert found, f"{page} has no Python block"
    return found


def example(kind: str) -> str:
    """The block of a kind's page that contains a complete module."""
    (code,) = [block for block in blocks(f"{kind}.md") if "async def mount(" in block]
    return code


def test_there_is_a_page_for_each_kind() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {
        *("README", "capabilities", "command"),
        *KINDS,
    }


@pytest.mark.parametrize("page", ["README", *KINDS])
def test_every_python_block_runs_top_to_bottom(page: str) -> None:
    namespace: dict[str, Any] = {"__name__": f"contract_page_{page.lower()}"}
    for number, code in enumerate(blocks(f"{page}.md"), 1):
        exec(compile(code, f"{page}.md block {number}", "exec"), namespace)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_example_of_each_kind_passes_every_check(
    kind: str, module_folders: ModuleFolders
) -> None:
    result = await VALIDATORS[kind]().validate(module_folders.package(example(kind)))
    assert [(check.name, check.message) for check in result.checks if not check.passed] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_each_kind_passes_the_behaviour_suite(kind: str, project: Project) -> None:
    package = project.write("example/__init__.py", example(kind)).parent
    project.write(
        "test_example.py",
        f"""
        from amplifier_core.validation.behavioral import {kind.title()}BehaviorTests

        class TestExample({kind.title()}BehaviorTests):
            pass
        """,
    )
    outcomes = project.run("--module-path", str(package)).parseoutcomes()
    assert set(outcomes) == {"passed"}


@pytest.mark.parametrize("kind", KINDS)
def test_each_page_names_every_check_of_its_kind(kind: str) -> None:
    text = (PAGES / f"{kind}.md").read_text(encoding="utf-8")
    names = [KINDS[kind].check_name(member) for member in KINDS[kind].members]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_links_between_pages_resolve() -> None:
    for page in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (PAGES / target).is_file(), f"{page.name} links to {target}"


class _Folder(ModuleSource):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resolve(self) -> Path:
        return self.folder


class _Folders:
    """A resolver like an app's: the source of a module is its folder."""

    def resolve(self, module_id: str, source_hint: Any = None, profile_hint: Any = None) -> _Folder:
        return _Folder(Path(source_hint))


async def test_the_five_examples_work_together_in_a_session(module_folders: ModuleFolders) -> None:
    def spec(kind: str, **config: Any) -> dict[str, Any]:
        folder = module_folders.package(example(kind), name=f"page_example_{kind}")
        return {"module": f"{kind}-example", "source": str(folder), "config": config}

    plan = {
        "session": {"orchestrator": spec("orchestrator"), "context": spec("context")},
        "providers": [spec("provider")],
        "tools": [spec("tool")],
        "hooks": [spec("hook", paths=["/etc/"])],
    }
    session = AmplifierSession(plan)
    await session.coordinator.mount("module-source-resolver", _Folders())
    async with session:
        assert await session.execute("Is anyone there?") == "Is anyone there?"
        assert list(session.coordinator.get("tools")) == ["count_words"]
        assert session.coordinator.hooks.list_handlers("tool:pre") == {
            "tool:pre": ["protect-paths"]
        }
        messages = await session.coordinator.get("context").get_messages()
        assert [message["role"] for message in messages] == ["user", "assistant"]
