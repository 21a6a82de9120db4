"""Module config: the base class of config models, and parsing a mapping into one.

A plan written for a published module also runs here without that module's source. Each config key of such
a module is therefore mapped to a setting, ignored with a warning, or, if ignoring it would allow something
that the plan forbids, rejected with the reason. A config model lists those that are not its own settings as
`published`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin

from pydantic import AliasChoices, BaseModel, ConfigDict, SecretStr, ValidationError

from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import did_you_mean

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

logger = logging.getLogger(__name__)


class Published(NamedTuple):
    """The treatment of a key of the published module.

    Attributes:
        setting: The setting it maps to, dotted if nested; None if there is none.
        note: Why there is none, and what to use instead.
        harmless: Accepted values of a rejected key, which have no effect; None for an ignored key.
        schema: JSON Schema of its value, if it differs from the setting's.
    """

    setting: str | None = None
    note: str = ""
    harmless: tuple[Any, ...] | None = None
    schema: Mapping[str, Any] | None = None

    @property
    def description(self) -> str:
        """The key's description in a schema."""
        if self.setting is not None:
            return f"Published name of `{self.setting}`."
        return f"{'Has no effect' if self.harmless is None else 'Not supported'}: {self.note}."


def alias_for(setting: str, schema: Mapping[str, Any] | None = None) -> Published:
    """A key with the meaning of a setting."""
    return Published(setting, schema=schema)


def ignored(note: str) -> Published:
    """A key without an equivalent that is safe to ignore."""
    return Published(note=note)


def refused(note: str, *harmless: Any) -> Published:
    """A restrictive key without an equivalent; None and `harmless` values are accepted."""
    return Published(note=note, harmless=(None, *harmless))


def several(names: str, treatment: Published) -> dict[str, Published]:
    """Treat several keys alike; their names are separated by spaces."""
    return dict.fromkeys(names.split(), treatment)


class PublishedKeyError(Exception):
    """The value of a published key is not supported; the message starts with the key."""


def _with_own_names(
    table: Mapping[str, Published], config: Mapping[str, Any], module_id: str
) -> dict[str, Any]:
    """Replace published keys in a config with the module's own; warn of ignored ones.

    A null counts as absent. Ignored keys cause one warning, if their values would have an effect.

    Raises:
        PublishedKeyError: A key is rejected, or a setting is given under two names.
    """
    own = {key: value for key, value in config.items() if key not in table}
    without_effect: dict[str, list[str]] = {}
    for key, value in config.items():
        if key not in table or value is None:
            continue
        meaning = table[key]
        if meaning.setting is not None:
            _put(own, key, meaning, value)
        elif meaning.harmless is None:
            if value not in (False, 0, "", [], {}):
                without_effect.setdefault(meaning.note, []).append(f"'{key}'")
        elif value not in meaning.harmless:
            raise PublishedKeyError(f"'{key}' is not supported: {meaning.note}")
    if without_effect:
        notes = (
            f"{', '.join(keys)} {'has' if len(keys) == 1 else 'have'} no effect: {note}"
            for note, keys in without_effect.items()
        )
        logger.warning("%s: %s", module_id, "; ".join(notes))
    return own


def _put(own: dict[str, Any], key: str, meaning: Published, value: Any) -> None:
    outer, _, inner = str(meaning.setting).partition(".")
    if inner:
        before = own.get(outer) or {}
        if isinstance(before, dict) and inner not in before:
            own[outer] = {**cast("dict[str, Any]", before), inner: value}
            return
    elif outer not in own:
        own[outer] = value
        return
    raise PublishedKeyError(f"'{key}' and '{outer}' are the same setting; give only '{outer}'")


ModelT = TypeVar("ModelT", bound=BaseModel)


class ModuleConfig(BaseModel):
    """Base of the config models; rejects unknown keys.

    The validator of a model is built on first use, which in most plans never happens: most modules
    run with their defaults.

    Attributes:
        published: Keys of the published module of the same name that are not fields.
    """

    published: ClassVar[Mapping[str, Published]] = {}

    model_config = ConfigDict(extra="forbid", defer_build=True)


def listed(value: str | list[str] | None) -> list[str]:
    """A setting given as one value or several."""
    return [value] if isinstance(value, str) else value or []


def parse_config(model: type[ModelT], config: Mapping[str, Any] | None, module_id: str) -> ModelT:
    """Validate a module's config against its model.

    Args:
        model: The module's config model, a `ModuleConfig`.
        config: The module's config in the mount plan; None means no settings.
        module_id: The module id, for messages, such as `loop-basic`.

    Returns:
        The validated model.

    Raises:
        ValueError: The config is not valid. The message has the module, each invalid key, its value
            unless it is a secret, and what is allowed; for an unknown key also the nearest known
            one, for a rejected published key the reason.
    """
    settings: Any = {} if config is None else config
    if not isinstance(settings, Mapping):
        raise ValueError(
            f"{module_id}: config must be a mapping of settings, not {type(settings).__name__}"
        )
    own = dict(cast("Mapping[str, Any]", settings))
    defaults = _defaults(model)
    if defaults is not None and (plain := _plain_settings(model, own)) is not None:
        # pydantic would look at the signature of each factory again.
        prototype, factories = defaults
        parsed = prototype.model_copy()
        vars(parsed).update({name: create() for name, create in factories.items()} | plain)
        parsed.model_fields_set.update(own)
        return parsed
    try:
        if issubclass(model, ModuleConfig) and model.published:
            own = _with_own_names(model.published, own, module_id)
        return model.model_validate(own)
    except PublishedKeyError as error:
        problems = [str(error)]
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        problems = [_problem(model, detail) for detail in details]
    lines = "; ".join(problems)
    # Outside the except block: the ValidationError carries the input, which may hold secrets.
    raise ValueError(f"{module_id}: config is not valid: {lines}")


@lru_cache(maxsize=256)
def _defaults(model: type[BaseModel]) -> tuple[Any, dict[str, Callable[[], Any]]] | None:
    """A config without settings to copy, and the functions that create the defaults that may be changed.

    None if the model needs settings or checks itself.
    """
    fields, checks = model.model_fields.items(), model.__pydantic_decorators__.model_validators
    if checks or model.__pydantic_post_init__ or any(each.is_required() for _, each in fields):
        return None
    others: Any = [(name, each) for name, each in fields if type(each.default) not in _FIXED]
    factories = {name: each.default_factory or each.get_default for name, each in others}
    return model.model_construct(), factories


_FIXED = (str, bool, int, float, type(None))
"""The types of defaults that the configs of all sessions may share."""


def _plain_settings(model: type[BaseModel], settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings as their fields have them if that is plain to see; otherwise None.

    It takes no validator, which is built only where a setting needs one: that takes longer than a mount.
    """
    if not settings:
        return {}
    validators = model.__pydantic_decorators__.field_validators.values()
    checked = {name for each in validators for name in each.info.fields}
    if not settings.keys() <= model.model_fields.keys() - checked:
        return None
    try:
        return {key: _plain(key, model.model_fields[key], value) for key, value in settings.items()}
    except ValueError:
        return None


def _plain(key: str, field: FieldInfo, value: Any) -> Any:
    """Return the value of a field for a setting.

    Raises:
        ValueError: It needs a validator, which may refuse it.
    """
    annotation = field.annotation
    is_union = get_origin(annotation) in (Union, UnionType)
    kinds = get_args(annotation) if is_union else (annotation,)
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    names = field.validation_alias or key
    has_name = key in (names.choices if isinstance(names, AliasChoices) else [names])
    if not has_name or not all(_keeps(rule, value) for rule in field.metadata):
        raise ValueError
    if isinstance(value, str):
        # Others may not be valid Unicode.
        if type(value) is str and value.isascii():
            if str in kinds or value in words:
                return value
            if SecretStr in kinds:
                return SecretStr(value)
    elif type(value) in kinds and isinstance(value, int | float | None):
        return value
    raise ValueError


_RULES: dict[str, Callable[[Any, Any], bool]] = {
    "Ge": lambda rule, value: value >= rule.ge,
    "Gt": lambda rule, value: value > rule.gt,
    "Le": lambda rule, value: value <= rule.le,
    "Lt": lambda rule, value: value < rule.lt,
    "MinLen": lambda rule, value: len(value) >= rule.min_length,
}


def _keeps(rule: Any, value: Any) -> bool:
    """Return True if a value certainly keeps a rule of a field."""
    if value is None:
        return True
    try:
        return _RULES[type(rule).__name__](rule, value)
    except (KeyError, TypeError):  # another rule, or one for values of another kind
        return False


def _problem(model: type[BaseModel], detail: ErrorDetails) -> str:
    location = detail["loc"]
    path = _dotted(location) or "config"
    kind = detail["type"]
    if kind == "extra_forbidden":
        return _unknown_key(model, location, path)
    if kind == "missing":
        return f"'{path}' is required"
    message = detail["msg"].removeprefix("Value error, ")
    return f"'{path}': {message[:1].lower()}{message[1:]}"


def _unknown_key(model: type[BaseModel], location: tuple[int | str, ...], path: str) -> str:
    if len(location) != 1:
        return f"unknown key '{path}'"
    allowed = _allowed_keys(model)
    near = did_you_mean(str(location[0]), allowed)
    meant = f", {near}" if near else ""
    return f"unknown key '{path}'{meant} (allowed: {', '.join(allowed) or 'none'})"


def _allowed_keys(model: type[BaseModel]) -> list[str]:
    fields = model.model_fields.items()
    return sorted({key for name, field in fields for key in spellings(name, field, model)})


def spellings(name: str, field: FieldInfo, model: type[BaseModel]) -> list[str]:
    """The keys that set a field, the one in pydantic's own schema first."""
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias or name]
    keys = [choice for choice in choices if isinstance(choice, str)]
    if model.model_config.get("populate_by_name") and name not in keys:
        keys.append(name)
    return keys


def _dotted(location: Iterable[int | str]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path
