"""Every input of the corpus, and random changes of it, are read as the targets promise."""

from collections.abc import Iterator
from itertools import islice

import pytest

from tests.fuzz.files import remove_files
from tests.fuzz.run import CORPUS, corpus_of, execute, mutations
from tests.fuzz.targets import TARGETS
from tests.support.thorough import Scale


@pytest.fixture(autouse=True)
def _files() -> Iterator[None]:
    yield
    remove_files()


def test_each_target_has_a_corpus() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_and_changes_of_it_are_read(target: str, scale: Scale) -> None:
    # The time to import what it needs does not count.
    TARGETS[target].run(b"")
    for path in corpus_of(target):
        execute(target, path.read_bytes())
    for data in islice(mutations(target, seed=1), scale(3, 500)):
        try:
            execute(target, data)
        except Exception as error:
            raise AssertionError(f"{target} fails on {data!r}") from error
