"""`amplifier module`: its commands, each imported when it is called."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "module",
    "amplifier_app.commands.module",
    {
        "list": (
            "listing:list_modules",
            "List the modules in the plan and other available modules.",
        ),
        "show": ("listing:show", "Show where a module comes from and its config."),
        "add": ("changing:add", "Add a module to every profile."),
        "remove": ("changing:remove", "Remove a module from every profile."),
        "override": ("changing:override", "Load a module from a different source in every plan."),
        "require": ("requiring:require", "Add a package to the modules of a plan that need it."),
        "update": ("fetching:update", "Fetch newer commits and versions of modules."),
        "vendor": ("fetching:vendor", "Copy a plan's modules and their dependencies to a folder."),
    },
)
