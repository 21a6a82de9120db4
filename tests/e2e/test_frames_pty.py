"""What a run leaves on terminals of several widths, as the screen of an emulator."""

import re
from pathlib import Path

import pytest

from tests.support.plans import mock_plan
from tests.support.terminal import Terminal

ANSWER = """\
# Result

The function `parse` now **raises** an error.

```python
return {"text": text, "a key that is wide": 1}
```

| File | Change |
|---|---|
| parse.py | raises an error for empty files |
"""
REPLIES = [
    {
        "thinking": "hm",
        "tool_calls": [
            {
                "name": "edit_file",
                "input": {
                    "file_path": "parse.py",
                    "old_string": "return None",
                    "new_string": "raise ValueError",
                },
            },
            {"name": "bash", "input": {"command": "for i in 1 2 3 4 5 6; do echo $i; done"}},
        ],
    },
    ANSWER,
]
CODE = {
    40: ['  return {"text": text, "a key that is', '  wide": 1}'],
    80: ['  return {"text": text, "a key that is wide": 1}'],
}
TABLE = {
    40: ["parse.py │ raises an error for empty", "         │ files"],
    80: ["parse.py │ raises an error for empty files"],
}
COMMAND = {
    40: r"✓ 2 bash for[^…]*… · T · last 4 of 6:",
    80: r"✓ 2 bash for i in 1 2 3 4 5 6; do echo \$i; done · T · 6 lines, last 4:",
}
HINT = r"    amplifier session show \S+ --call N shows a whole result"


@pytest.mark.parametrize("columns", [40, pytest.param(80, marks=pytest.mark.thorough), 120])
def test_a_run_on_a_terminal(tmp_path: Path, columns: int) -> None:
    (tmp_path / "parse.py").write_text("def parse(f):\n    return None\n")
    tools = [{"module": "tool-filesystem"}, {"module": "tool-bash"}]
    plan = mock_plan(tmp_path, REPLIES, tools=tools, mock={"chunk_size": 3})
    size = (columns, 24)
    with Terminal("run", "-f", plan, "go", cwd=tmp_path, size=size) as terminal:
        assert terminal.finish() == 0
    lines = [re.sub(r"\d+(\.\d+)? m?s\b", "T", line) for line in terminal.lines()]
    lines = [re.sub(r"\d+ (in|out)\b", r"N \1", line) for line in lines]
    assert re.fullmatch(r"· session \S+", lines.pop())
    assert all(len(line) <= columns for line in lines)
    wide = min(columns, 80)
    assert lines[:6] == [
        "✻ thought for T",
        "",
        "✓ 1 edit_file parse.py · +1 −1 · T",
        "    1   def parse(f):",
        "    2 -     return None",
        "    2 +     raise ValueError",
    ]
    assert re.fullmatch(COMMAND[wide], lines[6])
    assert lines[7:11] == [f"    {n}" for n in range(3, 7)]
    answer = lines.index("Result")
    assert re.fullmatch(HINT, "    " + " ".join(line.strip() for line in lines[11 : answer - 1]))
    footer = len(lines) - lines[::-1].index("") - 1
    assert lines[answer - 1 : footer] == [
        "",
        "Result",
        "",
        "The function parse now raises an error.",
        "",
        *CODE[wide],
        "",
        "File     │ Change",
        f"─────────┼─{'─' * (29 if columns == 40 else 31)}",
        *TABLE[wide],
    ]
    together = " ".join(line.strip() for line in lines[footer + 1 :])
    assert together == "2 steps · T · N in · N out · 1 file changed"


def test_an_error_is_wrapped_between_words(tmp_path: Path) -> None:
    with Terminal("run", "--resume", "missing", "hi", cwd=tmp_path, size=(30, 24)) as terminal:
        assert terminal.finish() == 6
    assert terminal.lines() == [
        "amplifier: there is no session",
        "'missing'",
        "  All sessions: amplifier",
        "  session list --all",
    ]
