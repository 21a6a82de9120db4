"""Changing one value of a file: that value changes, and every other byte stays."""

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from amplifier_app.base.errors import ConfigError
from amplifier_app.plan.tree.edit import append_value, remove_value, set_value, set_values
from amplifier_app.plan.tree.problems import PlanError

SETTINGS = """\
# The settings of a careful person.
profile: default   # mine

tools:
  - module: tool-bash # the shell
    config:
      timeout: 5    # seconds
      # shell: zsh
  - tool-web
sources: {}
providers:
- module: provider-x
  instance_id: fast
  config: {a: 1, b: [x, "y"]}   # in one line
text: |
  # not a comment

  indented
empty:

# The end.
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_bytes(SETTINGS.encode())
    return path


def changes(path: Path, before: str = SETTINGS) -> list[str]:
    """The lines that went and came, with `-` and `+`."""
    old, new = before.splitlines(), path.read_text(encoding="utf-8").splitlines()
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    return [*(f"-{line}" for line in old), *(f"+{line}" for line in new)]


@pytest.mark.parametrize(
    ("keys", "value", "changed"),
    [
        ("profile", "local", ["-profile: default   # mine", "+profile: local   # mine"]),
        ("profile", "5", ["-profile: default   # mine", "+profile: '5'   # mine"]),
        (
            "tools.tool-bash.config.timeout",
            None,
            ["-      timeout: 5    # seconds", "+      timeout: null    # seconds"],
        ),
        ("tools.tool-bash.config.shell", "a\nb", ['+      shell: "a\\nb"']),
        ("tools.0.source", "./x", ["+    source: ./x"]),
        (
            "tools.tool-web.source",
            "./x",
            ["-  - tool-web", "+  - module: tool-web", "+    source: ./x"],
        ),
        ("sources.tool-x", "./a b", ["-sources: {}", "+sources: {tool-x: ./a b}"]),
        ("sources", {"a": "b"}, ["-sources: {}", "+sources:", "+  a: b"]),
        ("empty.a.b", [], ["+  a:", "+    b: []"]),
        ("empty", "x", ["-empty:", "+empty: x"]),
        (
            "providers.fast.config.a",
            1.5,
            [
                '-  config: {a: 1, b: [x, "y"]}   # in one line',
                '+  config: {a: 1.5, b: [x, "y"]}   # in one line',
            ],
        ),
        (
            "providers.fast.config.c",
            {"d": ["${X:-}"]},
            [
                '-  config: {a: 1, b: [x, "y"]}   # in one line',
                """+  config: {a: 1, b: [x, "y"], c: {d: ['${X:-}']}}   # in one line""",
            ],
        ),
        (
            "providers.fast.config",
            {"c": [1, {"d": None}]},
            [
                '-  config: {a: 1, b: [x, "y"]}   # in one line',
                "+  config:   # in one line",
                "+    c:",
                "+      - 1",
                "+      - d: null",
            ],
        ),
        ("tools.1", {"module": "n"}, ["-  - tool-web", "+  - module: n"]),
        (
            "text",
            "short",
            ["-text: |", "-  # not a comment", "-", "-  indented", "+text: short"],
        ),
        ("new.deep", True, ["+new:", "+  deep: true"]),
    ],
)
def test_a_value_is_set_in_its_place(
    settings: Path, keys: str, value: Any, changed: list[str]
) -> None:
    assert set_value(settings, keys.split("."), value)
    assert changes(settings) == changed


def test_a_block_is_replaced_by_a_value(settings: Path) -> None:
    set_value(settings, ("tools",), [])
    assert changes(settings)[-1] == "+tools: []"
    assert yaml.safe_load(settings.read_text())["sources"] == {}


@pytest.mark.parametrize(
    ("keys", "changed"),
    [
        ("profile", ["-profile: default   # mine"]),
        ("tools.tool-web", ["-  - tool-web"]),
        (
            "tools.tool-bash.module",
            ["-  - module: tool-bash # the shell", "-    config:", "+  - config:"],
        ),
        (
            "tools.tool-bash.config.timeout",
            ["-    config:", "-      timeout: 5    # seconds"],
        ),
        (
            "providers.fast.config.a",
            [
                '-  config: {a: 1, b: [x, "y"]}   # in one line',
                '+  config: {b: [x, "y"]}   # in one line',
            ],
        ),
        (
            "providers.fast.config.b",
            [
                '-  config: {a: 1, b: [x, "y"]}   # in one line',
                "+  config: {a: 1}   # in one line",
            ],
        ),
        (
            "providers.fast",
            [
                "-providers:",
                "-- module: provider-x",
                "-  instance_id: fast",
                '-  config: {a: 1, b: [x, "y"]}   # in one line',
            ],
        ),
        ("text", ["-text: |", "-  # not a comment", "-", "-  indented"]),
    ],
)
def test_a_value_is_removed_with_collections_it_leaves_empty(
    settings: Path, keys: str, changed: list[str]
) -> None:
    assert remove_value(settings, keys.split("."))
    assert changes(settings) == changed


@pytest.mark.parametrize("keys", ["gone", "tools.gone", "profile.x", "empty.x", "tools.7"])
def test_removing_a_missing_value_changes_nothing(settings: Path, keys: str) -> None:
    before = settings.stat()
    assert not remove_value(settings, keys.split("."))
    after = settings.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_several_values_are_all_set_or_none_is(settings: Path) -> None:
    fast = ["providers", "fast", "config"]
    assert set_values(settings, [([*fast, "a"], 2), ([*fast, "c"], "new"), (["profile"], "mine")])
    text = settings.read_text()
    assert 'config: {a: 2, b: [x, "y"], c: new}   # in one line' in text
    assert "profile: mine   # mine" in text
    with pytest.raises(ConfigError):
        set_values(settings, [([*fast, "a"], 3), (["profile", "x"], 1)])
    assert settings.read_text() == text
    assert not set_values(settings, [([*fast, "a"], 2)])
    assert not set_values(settings, [])


def test_the_same_value_changes_nothing(settings: Path) -> None:
    def facts() -> dict[str, int]:
        """Everything but the time of the last access, which reading may change."""
        found = settings.stat()
        names = (name for name in dir(found) if name.startswith("st_") and "atime" not in name)
        return {name: getattr(found, name) for name in names}

    before = facts()
    assert not set_value(settings, ("profile",), "default")
    assert facts() == before


@pytest.mark.parametrize(
    ("keys", "changed"),
    [
        ("tools", ["+  - module: m", "+    config:", "+      a: 1"]),
        ("hooks", ["+hooks:", "+  - module: m", "+    config:", "+      a: 1"]),
        ("empty", ["+  - module: m", "+    config:", "+      a: 1"]),
        (
            "providers.fast.config.b",
            [
                '-  config: {a: 1, b: [x, "y"]}   # in one line',
                '+  config: {a: 1, b: [x, "y", {module: m, config: {a: 1}}]}   # in one line',
            ],
        ),
    ],
)
def test_an_entry_is_added_at_the_end(settings: Path, keys: str, changed: list[str]) -> None:
    assert append_value(settings, keys.split("."), {"module": "m", "config": {"a": 1}})
    assert changes(settings) == changed


def test_an_entry_is_added_to_lists_only(settings: Path) -> None:
    with pytest.raises(ConfigError, match=r":2:10: cannot change 'profile': it is not a list"):
        append_value(settings, ("profile",), "x")
    assert changes(settings) == []


def test_a_block_is_replaced_by_another(settings: Path) -> None:
    set_value(settings, ("tools",), [{"module": "one"}, "two"])
    assert changes(settings)[-2:] == ["+  - module: one", "+  - two"]
    assert yaml.safe_load(settings.read_text())["tools"] == [{"module": "one"}, "two"]


def test_an_explicit_key_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("? a\n: b\nc: d\n")
    with pytest.raises(ConfigError, match="cannot change 'a'"):
        remove_value(tmp_path / "f.yaml", ("a",))
    assert (tmp_path / "f.yaml").read_text() == "? a\n: b\nc: d\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "a:\n  b: 1\n"),
        ("# only this", "# only this\na:\n  b: 1\n"),
        ("{}\n", "{a: {b: 1}}\n"),
        ("---\n# x\na: {c: 2}\n...\n", "---\n# x\na: {c: 2, b: 1}\n...\n"),
        ("a:\r\n  c: 2 # x\r\nd: 3\r\n", "a:\r\n  c: 2 # x\r\n  b: 1\r\nd: 3\r\n"),
        ("a:\n  c: 2", "a:\n  c: 2\n  b: 1"),
        ("\ufeffa:\n  b: 2\n", "\ufeffa:\n  b: 1\n"),
        ("a: &x\n  b: 2\n", "a: &x\n  b: 1\n"),
        ('"a" : {"b":0}\n', '"a" : {"b":1}\n'),
        ("a: {\n  c: 2, # two\n}\n", "a: {\n  c: 2, b: 1, # two\n}\n"),
        ("a:\n    # four\n    c: 2\n\n\nd: 3\n", "a:\n    # four\n    c: 2\n    b: 1\n\n\nd: 3\n"),
        ("a: # none yet\nd: 3\n", "a: # none yet\n  b: 1\nd: 3\n"),
        ("x: &x {c: 1}\na:\n  <<: *x\n", "x: &x {c: 1}\na:\n  <<: *x\n  b: 1\n"),
        ("Ä: '🦉'\na: {b: é}\n", "Ä: '🦉'\na: {b: 1}\n"),
    ],
)
def test_forms_of_files(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(before.encode())
    assert set_value(path, ("a", "b"), 1)
    assert path.read_bytes().decode() == after


@pytest.mark.parametrize(
    ("text", "keys", "said"),
    [
        (
            "x: &x {b: 2}\na: *x\n",
            "a.b",
            "f.yaml:2:4: cannot change 'a.b': it is a YAML alias of another value",
        ),
        ("x: &x 2\na: *x\n", "x", "cannot change 'x' without changing something else"),
        (
            "a: text\n",
            "a.b",
            "f.yaml:1:4: cannot change 'a.b': it is inside a value that is not a mapping",
        ),
        ("a: [b]\n", "a.c.d", "f.yaml:1:4: cannot change 'a.c.d': the list has no 'c'"),
        ("a: {b, c: 1}\n", "a.b", "cannot change 'a.b' without changing something else"),
    ],
)
def test_what_cannot_be_changed_in_place_is_refused(
    tmp_path: Path, text: str, keys: str, said: str
) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        set_value(path, keys.split("."), 1)
    assert said in str(raised.value)
    assert raised.value.hint == "change the file by hand"
    assert path.read_text() == text


@pytest.mark.parametrize(
    "text", ["a: [1\n", "a: 1\na: 2\n", "- a\n", "text\n", "a: !!python/name:os.system\n", "\x00"]
)
def test_a_file_that_cannot_be_read_is_never_touched(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    for change in (
        lambda: set_value(path, ("a",), 1),
        lambda: append_value(path, ("a",), 1),
        lambda: remove_value(path, ("a",)),
    ):
        with pytest.raises(PlanError, match=r"f\.yaml:"):
            change()
    assert path.read_text() == text
    assert [path.name for path in tmp_path.glob("*.yaml*")] == ["f.yaml"]


# -- files -------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_of_the_user_is_private(home: Path, tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        set_value(home / "settings.yaml", ("profile",), "local")
        set_value(tmp_path / "repo" / ".amplifier" / "settings.yaml", ("profile",), "local")
    finally:
        os.umask(old)
    assert mode(home / "settings.yaml") == 0o600
    assert mode(home) == 0o700
    assert mode(tmp_path / "repo" / ".amplifier" / "settings.yaml") == 0o644
    assert (home / "settings.yaml").read_text() == "profile: local\n"


def test_a_file_keeps_its_mode(settings: Path) -> None:
    settings.chmod(0o640)
    set_value(settings, ("profile",), "local")
    assert mode(settings) == 0o640


def test_a_link_stays_a_link(settings: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    kept = settings.rename(tmp_path / "dotfiles" / "amplifier.yaml")
    settings.symlink_to("dotfiles/amplifier.yaml")
    set_value(settings, ("profile",), "local")
    assert settings.is_symlink()
    assert "profile: local" in kept.read_text()
    assert os.listdir(kept.parent) == ["amplifier.yaml"]


def test_a_key_below_a_number_in_a_list_is_refused(settings: Path) -> None:
    settings.write_text("tools: [1, tool-bash]\n")
    with pytest.raises(ConfigError, match="it is inside a value that is not a mapping"):
        set_value(settings, ("tools", "0", "config"), {"a": 1})
    assert settings.read_text() == "tools: [1, tool-bash]\n"


def test_a_folder_in_place_of_the_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"settings\.yaml: cannot write: "):
        set_value(tmp_path / "file" / "settings.yaml", ("a",), 1)


@pytest.mark.parametrize("text", ["\xa0", "a\xa0", "a\u3000"])
def test_a_text_that_ends_with_a_space_of_another_kind_is_replaced_whole(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(f"a: {text}\nb: 1\n".encode())
    set_value(path, ("a",), 2)
    assert path.read_text() == "a: 2\nb: 1\n"


# -- any file, any change ----------------------------------------------------------------

_KEYS = st.sampled_from(["a", "b", "c d", "é", "on", "1", "#x", "- y", "k: v"])
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=12), st.just("x # y")
)


def _collections(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(of, st.lists(of, max_size=3), st.dictionaries(_KEYS, of, max_size=3))


_VALUES = _collections(_collections(_SCALARS))


# No deadline: what is slow about it is the disk, which each change waits for.
@given(
    data=st.dictionaries(_KEYS, _VALUES, max_size=4),
    flow=st.sampled_from([True, False, None]),
    indent=st.sampled_from([2, 4]),
    keys=st.lists(_KEYS, min_size=1, max_size=3),
    value=_VALUES,
)
def test_any_change_is_made_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    data: dict[str, Any],
    flow: bool | None,
    indent: int,
    keys: list[str],
    value: Any,
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    before = yaml.safe_dump(data, default_flow_style=flow, indent=indent, allow_unicode=True)
    path.write_bytes(before.encode())
    # A value that is not a mapping must not be replaced.
    with contextlib.suppress(_InTheWay):
        _set_or_refuse(path, keys, value)
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        for key in keys:
            found = found[int(key)] if isinstance(found, list) else found[key]
        assert found == value
        return
    assert path.read_bytes().decode() == before


class _InTheWay(Exception):
    pass


def _set_or_refuse(path: Path, keys: list[str], value: Any) -> None:
    try:
        set_value(path, keys, value)
    except ConfigError as error:
        if re.search(": it is inside a value that is not a mapping|: the list has no", str(error)):
            raise _InTheWay from None
        raise
