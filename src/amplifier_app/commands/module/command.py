"""`amplifier module`: one module per command, imported when invoked."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "module",
    {
        "list": "List the modules in the plan and other available modules.",
        "show": "Show where a module comes from and its config.",
        "add": "Add a module to every profile.",
        "remove": "Remove a module from every profile.",
        "override": "Load a module from a different source in every plan.",
        "update": "Fetch newer commits and versions of modules.",
        "vendor": "Copy a plan's modules and their dependencies to a folder.",
    },
)
