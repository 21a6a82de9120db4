"""The JSON schemas shipped with the program, as validators."""

import json
from importlib.resources import files
from typing import Any

from jsonschema.validators import validator_for

_FOLDER = files("amplifier_app.render") / "schemas"


def _validator(name: str) -> Any:
    schema = json.loads((_FOLDER / f"{name}.schema.json").read_text())
    kind = validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


RESULT = _validator("result")
STREAM = _validator("events")
VALIDATION = _validator("validation")
