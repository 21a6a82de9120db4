"""The least that a batch must do: a pool of processes, and a record on disk for each row.

python batch_floor.py PROCESSES ROWS FILE
"""

import json
import multiprocessing
import os
import sys
from typing import Any


def run(number: int) -> dict[str, Any]:
    """A row that does nothing."""
    return {"row": f"r{number}", "outcome": "ok", "response": "x" * 500}


def main() -> None:
    """Run the rows and write their results."""
    processes, rows, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    sync = getattr(os, "fdatasync", os.fsync)
    with multiprocessing.Pool(processes) as pool, open(file, "wb", buffering=0) as out:
        for result in pool.imap_unordered(run, range(rows)):
            out.write(json.dumps(result).encode() + b"\n")
            sync(out.fileno())


if __name__ == "__main__":
    main()
