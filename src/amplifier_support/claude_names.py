"""The names that Claude Code, and the programs that follow it, have for tools and events."""

from __future__ import annotations

EVENTS = {
    "PreToolUse": "tool:pre",
    "PostToolUse": "tool:post",
    "PostToolUseFailure": "tool:error",
    "UserPromptSubmit": "prompt:submit",
    "SessionStart": "session:start",
    "SessionEnd": "session:end",
    "PreCompact": "context:pre_compact",
    "Notification": "user:notification",
    "Stop": "turn:ending",
}
"""Event there → event here."""

TOOLS = {
    "bash": "Bash",
    "bash_output": "BashOutput",
    "bash_kill": "KillShell",
    "read_file": "Read",
    "write_file": "Write",
    "edit_file": "Edit",
    "list_directory": "LS",
    "grep": "Grep",
    "glob": "Glob",
    "web_fetch": "WebFetch",
    "task": "Task",
    "todo": "TodoWrite",
    "skill": "Skill",
}
"""Tool here → tool there."""

HOOK_FILES = {"claude": ".claude/settings.json", "codex": ".codex/hooks.json"}
"""Program → the file with its hooks in a project."""
