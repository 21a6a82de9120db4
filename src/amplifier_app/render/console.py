"""Rich as a maker of text for a `Screen`."""

from __future__ import annotations

import io

from rich.console import Console, ConsoleDimensions, RenderableType

from amplifier_app.render.ansi import has_colours
from amplifier_app.render.screen import Screen


class ScreenConsole(Console):
    """Turns renderables into lines with colour sequences, as wide as the screen is now."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        super().__init__(
            file=io.StringIO(),
            force_terminal=True,
            no_color=not has_colours(),
            markup=False,
            emoji=False,
            highlight=False,
        )

    @property
    def size(self) -> ConsoleDimensions:
        return ConsoleDimensions(self._screen.width, self._screen.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        raise AttributeError("the size is set by the terminal")

    def lines(self, renderable: RenderableType) -> str:
        """Return the lines of a renderable, each with its line break."""
        with self.capture() as captured:
            self.print(renderable)
        return captured.get()
