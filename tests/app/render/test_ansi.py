"""Lines with colour sequences, folded to rows."""

import pytest

from amplifier_app.render.ansi import cells, fold, plain


@pytest.mark.timeout(20)
def test_a_line_of_many_colours_is_folded_in_linear_time() -> None:
    line = "".join(f"\x1b[3{number % 7}mword\x1b[0m " for number in range(200_000))
    rows = fold(line, 80)
    assert max(map(cells, rows)) <= 80
    assert " ".join(map(plain, rows)).split() == plain(line).split()
