"""Colours of a session: `display.theme`, which is built in, in a file, or for the background of the terminal.

    # theme.yaml
    base: dark                # dark or light
    accent: "#d7875f"         # or a number of the 256 colours
    message: 255 on 237       # what the user sent

A theme gives the styles of `amplifier_app.render.ansi.paint` their colours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from amplifier_app.base.errors import ConfigError
from amplifier_app.plan.schema.grammar import THEMES
from amplifier_app.plan.tree.nodes import MapNode, Scalar
from amplifier_app.plan.tree.problems import Problems, suggest
from amplifier_app.plan.tree.yaml_reader import read_yaml
from amplifier_app.render.ansi import has_colours, use_colours
from amplifier_support.files import open_regular

_UNKNOWN = {"message": "255 on 237"}
"""For any background: the usual colours, and text that brings its own background."""
# Changed words have a text colour of their own: syntax colours are hard to read on these shades.
_DARK = {
    **{"accent": "75", "message": "255 on 237", "added": "on #16301d", "removed": "on #3a1a1c"},
    **{"added-part": "255 on #2a6438", "removed-part": "255 on #7a2f33"},
}
_LIGHT = {
    **{"accent": "25", "message": "234 on 254", "added": "on #dafbe1", "removed": "on #ffebe9"},
    **{"added-part": "234 on #9be9a8", "removed-part": "234 on #ffc1bc"},
    **{"red": "124", "green": "28", "yellow": "94", "magenta": "90", "cyan": "30"},
}
_BASES = {"dark": _DARK, "light": _LIGHT}
_BY_BACKGROUND = {"0": _DARK, "8": _DARK, "7": _LIGHT, "15": _LIGHT}
"""The theme for the last number of `COLORFGBG`, which some terminals set that do not answer."""

_COLOUR = r"#[0-9a-fA-F]{6}|[01]?[0-9]?[0-9]|2[0-4][0-9]|25[0-5]"
_VALUE = re.compile(rf"(?P<text>{_COLOUR})?\s*(?:on (?P<back>{_COLOUR}))?")
_EXPECTED = (
    "write a colour, 'on COLOUR' or 'COLOUR on COLOUR': '#rrggbb', or a number from 0 to 255"
)
_MAX_BYTES = 64 * 1024

BACKGROUND_QUERY = "\x1b]11;?\x1b\\"
_REPORT = re.compile(r"(?:rgb:|rgba:|#)?([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")


_used: str | None = None


def use_theme(setting: str) -> bool:
    """Use the colours of a theme for everything that is painted from now on.

    Args:
        setting: One of `THEMES`, or the path of a file.

    Returns:
        True if the terminal has to be asked for its background, see `use_background`.

    Raises:
        ConfigError: The file cannot be used.
    """
    global _used
    if setting == _used:  # in another session of the chat
        return False
    if setting not in THEMES:
        _use(_read(setting))
    elif setting == "plain":
        use_colours(None)
    else:
        background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
        _use(_BASES.get(setting) or _BY_BACKGROUND.get(background, _UNKNOWN))
    _used = setting
    # These show the question instead of answering it.
    is_old = os.environ.get("TERM", "").startswith(("linux", "vt"))
    return setting == "auto" and has_colours() and not is_old


def use_background(report: str) -> None:
    """Use the theme for a background as the terminal has reported it, such as `rgb:1e1e/1e1e/1e1e`."""
    match = _REPORT.match(report)
    if match is not None:
        red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in match.groups())
        # Perceived lightness: green counts most.
        _use(_LIGHT if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else _DARK)


def _use(theme: Mapping[str, str]) -> None:
    use_colours({name: code for name, value in theme.items() if (code := _code(value))})


def _code(value: str) -> str:
    """The parameters of a colour sequence; empty if the terminal does not have the colour."""
    environment = os.environ
    has_all = environment.get("COLORTERM") in ("truecolor", "24bit")
    has_256 = has_all or "TMUX" in environment or "256color" in environment.get("TERM", "")
    match = _VALUE.fullmatch(value)
    assert match is not None
    codes: list[str] = []
    for layer, colour in (("38", match["text"]), ("48", match["back"])):
        if colour is None:
            continue
        if not (has_all if colour.startswith("#") else has_256):
            return ""
        parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)] if colour[0] == "#" else []
        codes += [layer, *(["2", *map(str, parts)] if parts else ["5", colour])]
    return ";".join(codes)


def _read(path: str) -> dict[str, str]:
    """
    Raises:
        ConfigError: It cannot be read, or is invalid.
    """
    problems = Problems()
    try:
        with open(open_regular(os.path.realpath(path), os.O_RDONLY), "rb") as file:
            tree = read_yaml(file.read(_MAX_BYTES), path, problems)
    except OSError as error:
        names = ", ".join(THEMES)
        raise ConfigError(
            f"cannot read the theme {path!r}: {error.strerror}",
            hint=f"Set display.theme to {names} or to a file.",
        ) from error
    problems.raise_if_any()
    if not isinstance(tree, MapNode):
        raise ConfigError(f"the theme {path!r} is not a mapping of names to colours")
    base = tree.items.get("base")
    theme = dict(_BASES.get(str(base.value), _DARK) if isinstance(base, Scalar) else _DARK)
    known = ("base", *_LIGHT)
    for name, node in tree.items.items():
        value = str(node.value).strip() if isinstance(node, Scalar) else ""
        if name not in known:
            problems.add(f"unknown colour {name!r}", tree.key_at(name), suggest(name, known))
        elif name == "base":
            if value not in _BASES:
                problems.add("'base' must be dark or light", node.at)
        elif not value or not _VALUE.fullmatch(value):
            problems.add(f"{name!r} is not a colour", node.at, _EXPECTED)
        else:
            theme[name] = value
    problems.raise_if_any()
    return theme
