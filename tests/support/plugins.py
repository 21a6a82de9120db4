"""A plugin in Claude's format, as its author would publish it."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.support.module_repositories import write_files

SKILL = "---\nname: {name}\ndescription: Sort issues by how much they hurt.\n---\nRead each issue twice.\n"
COMMAND = "---\ndescription: Review a file\nargument-hint: FILE\n---\nReview $1 now.\n"
AGENT = "---\nname: reviewer\ndescription: Reviews code\ntools: Read, Grep\nmodel: opus\n---\nYou review.\n"
SERVER = Path(__file__).parents[1] / "extras/tool_mcp/raw_server.py"


def write_plugin(folder: Path, name: str = "review", **manifest: Any) -> Path:
    """Write a plugin with a skill, a command, an agent and an MCP server; return its folder."""
    (folder / "server").mkdir(parents=True, exist_ok=True)
    server = {
        "command": sys.executable,
        "args": ["${CLAUDE_PLUGIN_ROOT}/server/echo.py"],
        "env": {"CALLS": "${REVIEW_CALLS}"},
    }
    (folder / "server/echo.py").write_text(SERVER.read_text())
    return write_files(
        folder,
        {
            ".claude-plugin/plugin.json": json.dumps(
                {"name": name, "version": "1.2.0", "description": "Reviews code.", **manifest}
            ),
            "skills/triage/SKILL.md": SKILL.format(name="triage"),
            "commands/review-file.md": COMMAND,
            "agents/reviewer.md": AGENT,
            ".mcp.json": json.dumps({"mcpServers": {"echo": server}}),
        },
    )
