"""Real git repositories, and a module to put in them or in a folder."""

import subprocess
from pathlib import Path

Files = dict[str, str]

SEED_TOOL: Files = {
    "pyproject.toml": (
        '[project]\nname = "my-tool"\nversion = "1.0"\nrequires-python = ">=3.11"\n'
        'dependencies = ["amplifier-core>=1.6"]\n\n'
        '[project.entry-points."amplifier.modules"]\nmy-tool = "my_tool:mount"\n\n'
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    ),
    "my_tool/__init__.py": (
        "from my_tool.greeter import MyTool\n\n\n"
        "async def mount(coordinator, config):\n"
        "    tool = MyTool(config=config)\n"
        '    await coordinator.mount("tools", tool, name="my-tool")\n'
        "    return tool\n"
    ),
    "my_tool/greeter.py": (
        "from typing import Any\n\nfrom amplifier_core import ToolResult\n\n\n"
        "class MyTool:\n"
        "    def __init__(self, config: dict[str, Any]) -> None:\n"
        "        self.config = config or {}\n\n"
        "    @property\n"
        "    def name(self) -> str:\n"
        '        return "my_tool"\n\n'
        "    @property\n"
        "    def description(self) -> str:\n"
        '        return "Greets the given name."\n\n'
        "    def get_schema(self) -> dict:\n"
        '        return {"type": "object", "properties": {"who": {"type": "string"}},'
        ' "required": ["who"]}\n\n'
        "    async def execute(self, input: dict[str, Any]) -> ToolResult:\n"
        '        who = input.get("who")\n'
        "        if not who:\n"
        '            return ToolResult(success=False, error={"message": "who is required"})\n'
        "        greeting = self.config.get('greeting', 'Hello')\n"
        '        return ToolResult(success=True, output=f"{greeting}, {who}!")\n'
    ),
}
"""A tool as the Tool Contract has it: entry point, mount, class in another file."""


def write_files(folder: Path, files: Files) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def git(folder: Path, *arguments: str) -> str:
    """Run git as an author would, without the configuration of this machine."""
    done = subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@example.invalid", *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "GIT_CONFIG_GLOBAL": "/dev/null",
             "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.strip()


class Repository:
    """A git repository on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet", "--initial-branch=main")

    @property
    def url(self) -> str:
        return f"git+file://{self.folder}"

    def commit(self, files: Files, *, tag: str | None = None, annotated: bool = False) -> str:
        write_files(self.folder, files)
        git(self.folder, "add", "--all")
        git(self.folder, "commit", "--quiet", "--allow-empty", "-m", "change")
        if tag:
            git(self.folder, "tag", *(("-a", "-m", "release") if annotated else ()), tag)
        return git(self.folder, "rev-parse", "HEAD")
