"""The same rows with inspect_ai and its mock model; runs in an environment that has it.

python batch_inspect.py PROCESSES ROWS FOLDER
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import sys

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate


def answer(*_: object) -> ModelOutput:
    """An answer with its usage: without it, a tokenizer would be downloaded to count the tokens."""
    output = ModelOutput.from_content("mockllm/model", "You said: hello")
    output.usage = ModelUsage(input_tokens=10, output_tokens=10, total_tokens=20)
    return output


def main() -> None:
    """Evaluate samples without a scorer; everything is logged as it is by default."""
    rows, folder = int(sys.argv[2]), sys.argv[3]
    samples = [Sample(id=f"r{n}", input=f"hello {n}") for n in range(rows)]
    (log,) = eval(
        Task(dataset=MemoryDataset(samples), solver=generate()),
        model=get_model("mockllm/model", custom_outputs=answer),
        log_dir=folder,
        display="none",
    )
    assert log.status == "success", log.error
    assert len(log.samples or ()) == rows


if __name__ == "__main__":
    main()
