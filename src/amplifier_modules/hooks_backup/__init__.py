"""hooks-backup: save files before tools change them, and restore them."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "hook"

_module = ModuleDeclaration(__name__, "hooks-backup", ".config:BackupConfig", ".handlers")
config_schema = _module.config_schema
mount = _module.mount
