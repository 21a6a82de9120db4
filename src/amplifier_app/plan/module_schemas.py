"""What modules say about their configuration: `config_schema()` of a module's package."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any, NamedTuple, cast

from amplifier_app.errors import ModuleError

Schema = dict[str, Any]


class ModuleSchema(NamedTuple):
    """A module and the configuration it takes.

    Attributes:
        module_id: Its id.
        kind: `"provider"`, `"tool"`, `"hook"`, `"orchestrator"` or `"context"`.
        summary: What it is, in a line.
        config: The JSON Schema of its config; None if the module does not tell.
    """

    module_id: str
    kind: str
    summary: str
    config: Schema | None


def config_schema(package: Any) -> Schema | None:
    """The JSON Schema of a module's config, a copy of its own.

    Args:
        package: The imported package of the module.

    Returns:
        The schema; None if the module has no `config_schema`.

    Raises:
        ModuleError: The module's `config_schema` fails, or gives no valid schema.
    """
    tell = getattr(package, "config_schema", None)
    if not callable(tell):
        return None
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    try:
        schema = tell()
        if not isinstance(schema, dict):
            raise TypeError(f"it returned {type(schema).__name__}, not a mapping")
        validator_for(schema).check_schema(schema)
        return copy.deepcopy(cast("Schema", schema))
    except SchemaError as error:
        reason = f"it is not a valid JSON Schema: {error.message}"
    # A module's code may fail in any way; what for is told.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    raise ModuleError(f"config_schema() of {package.__name__} cannot be used: {reason}")


def bundled_schemas() -> list[ModuleSchema]:
    """The modules that ship with the program, read through their entry points.

    Raises:
        ModuleError: One of them cannot be imported or its schema is not valid.
    """
    from amplifier_app.sources.installed import bundled
    from amplifier_core.discovery import kind_of

    found: list[ModuleSchema] = []
    for module_id, module in sorted(bundled().items()):
        name = module.entry_point.partition(":")[0]
        try:
            package = import_module(name)
        except ImportError as error:
            raise ModuleError(f"{module_id} cannot be imported: {error}") from error
        first = (package.__doc__ or "").strip().partition("\n")[0]
        summary = first.removeprefix(f"{module_id}: ")
        found.append(
            ModuleSchema(module_id, kind_of(module_id, package), summary, config_schema(package))
        )
    return found
