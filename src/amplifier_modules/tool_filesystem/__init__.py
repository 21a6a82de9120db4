"""tool-filesystem: read, write, edit and list files inside allowed folders."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "tool"

_module = ModuleDeclaration(
    __name__, "tool-filesystem", ".workspace:FilesystemConfig", ".write_tools"
)
tool_names = ("read_file", "write_file", "edit_file", "list_directory")
config_schema = _module.config_schema
mount = _module.mount
