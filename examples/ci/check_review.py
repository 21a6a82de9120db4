"""Check that every finding of a review names a line that exists."""

import json
import sys
from pathlib import Path


def problem(finding: dict) -> str | None:
    """Why the location of a finding is wrong; None if it exists."""
    file = Path(finding["file"])
    if file.is_absolute() or ".." in file.parts or not file.is_file():
        return f"{file}: no such file in the repository"
    lines = len(file.read_text(errors="replace").splitlines())
    return None if finding["line"] <= lines else f"{file} has only {lines} lines"


review = json.loads(Path(sys.argv[1]).read_text())
problems = [text for finding in review["findings"] if (text := problem(finding))]
print("\n".join(problems))
sys.exit(bool(problems))
