"""The JSON schemas shipped with the program."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

_FOLDER = files("amplifier_app.render") / "schemas"

RESULT: dict[str, Any] = json.loads((_FOLDER / "result.schema.json").read_text())
STREAM: dict[str, Any] = json.loads((_FOLDER / "events.schema.json").read_text())
VALIDATION: dict[str, Any] = json.loads((_FOLDER / "validation.schema.json").read_text())
