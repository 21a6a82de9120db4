"""Broken modules: a valid one of its kind (`samples`) with one thing spoiled each."""

from __future__ import annotations

from tests.app.commands.module.validation.corpus.behaviour import SUITE
from tests.app.commands.module.validation.corpus.case import Case
from tests.app.commands.module.validation.corpus.mounting import FOLDER, IMPORT, MOUNT
from tests.app.commands.module.validation.corpus.protocol import PROTOCOL
from tests.app.commands.module.validation.corpus.schemas import CLEANUP, SCHEMA

CORPUS: list[Case] = [*IMPORT, *FOLDER, *MOUNT, *PROTOCOL, *SCHEMA, *CLEANUP, *SUITE]
