"""Broken modules: a valid one of its kind (`samples`) with one thing spoiled each."""

from tests.kit.validation.corpus.behaviour import SUITE
from tests.kit.validation.corpus.case import Case
from tests.kit.validation.corpus.mounting import FOLDER, IMPORT, MOUNT
from tests.kit.validation.corpus.protocol import PROTOCOL
from tests.kit.validation.corpus.schemas import CLEANUP, SCHEMA

CORPUS: list[Case] = [*IMPORT, *FOLDER, *MOUNT, *PROTOCOL, *SCHEMA, *CLEANUP, *SUITE]
