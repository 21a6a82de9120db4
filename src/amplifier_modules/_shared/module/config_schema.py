"""A module's config model as JSON Schema, for users, editors and checks before a run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema, to_jsonable_python

from amplifier_modules._shared.module.config import ModuleConfig, Published, spellings


def build_config_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The config that `parse_config` accepts for `model`, as JSON Schema (draft 2020-12).

    Every key has its default, and its description from the `Attributes` section of the model's
    docstring, else from the field. Secrets are `writeOnly`.

    Args:
        model: A module's config model.
    """
    schema = model.model_json_schema(schema_generator=_Generator)
    return {"type": "object", **schema}


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, with defaults from factories, all spellings of a key and no titles."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        written = super().model_schema(schema)
        model = cast("type[BaseModel]", schema["cls"])
        written.pop("title", None)
        summary, described = _docstring(model)
        written["description"] = summary
        properties: dict[str, Any] = written.get("properties", {})
        for name, field in model.model_fields.items():
            keys = spellings(name, field, model)
            rule = properties[keys[0]]
            if name in described:
                rule["description"] = described[name]
            if field.default_factory is not None:
                default = field.get_default(call_default_factory=True)
                rule["default"] = to_jsonable_python(default)
            for other in keys[1:]:
                same = {"description": f"The same as `{keys[0]}`."}
                properties[other] = {**rule, **same}
        if issubclass(model, ModuleConfig) and model.published:
            written["properties"] = properties | {
                key: _published_rule(known, properties) for key, known in model.published.items()
            }
        return written

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _published_rule(known: Published, properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a published module's key, based on the setting that it maps to."""
    deprecated = {"description": known.description, "deprecated": True}
    if known.schema is not None:
        return {"default": None, **known.schema, **deprecated}
    if known.harmless is not None:
        return {"enum": list(known.harmless), "default": None, **deprecated}
    if known.setting is None:
        return {"default": None, **deprecated, "x-ignored": known.note}
    if "." in known.setting:
        return {"default": None, **deprecated}
    return {**properties[known.setting], **deprecated}


def _docstring(model: type[BaseModel]) -> tuple[str, dict[str, str]]:
    """The first paragraph of a model's docstring and its description of each field.

    Fields that are inherited are described where they are declared.
    """
    described: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            described |= _attributes(inspect.cleandoc(base.__doc__ or ""))
    summary = inspect.cleandoc(model.__doc__ or "").partition("\n\n")[0]
    return summary.replace("\n", " "), described


def _attributes(docstring: str) -> dict[str, str]:
    attributes: dict[str, str] = {}
    _, _, section = docstring.partition("\nAttributes:\n")
    for match in re.finditer(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
        attributes[match[1]] = " ".join(match[2].split())
    return attributes
