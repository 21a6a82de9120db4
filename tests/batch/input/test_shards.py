"""Which part of the rows a job has."""

import pytest

from amplifier_app.base.errors import UsageError
from amplifier_batch.input import choose_shard, parse_shard


@pytest.mark.parametrize(
    "name", ["JOB_COMPLETION_INDEX", "SLURM_ARRAY_TASK_ID", "AWS_BATCH_JOB_ARRAY_INDEX"]
)
def test_a_job_of_an_array_has_the_shard_of_its_index(name: str) -> None:
    assert [choose_shard("auto/3", {name: str(index)}) for index in range(3)] == [
        "1/3",
        "2/3",
        "3/3",
    ]
    with pytest.raises(UsageError, match="4/3"):
        choose_shard("auto/3", {name: "3"})


def test_shards_are_numbers_or_need_an_array() -> None:
    assert choose_shard(None, {}) is None
    assert choose_shard("2/16", {"SLURM_ARRAY_TASK_ID": "7"}) == "2/16"
    assert parse_shard("2/16") == (1, 16)
    with pytest.raises(UsageError, match="not a job of an array"):
        choose_shard("auto/16", {"SLURM_ARRAY_TASK_ID": ""})
    for text in ("auto", "auto/0", "0/2", "3/2", "1/x", "/2"):
        with pytest.raises(UsageError, match="--shard"):
            choose_shard(text, {"SLURM_ARRAY_TASK_ID": "0"})
