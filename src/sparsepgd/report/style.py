"""The style of all figures, with the colours of Okabe and Ito, which the colour-blind can distinguish.

Each figure is drawn once, by matplotlib. In files it has the colours below; on the page each of them becomes a variable
of the style sheet, and text takes the font of the page, so figures follow a dark or light theme.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO, StringIO
from typing import Any

INK, MUTED, LINE, PAPER = "#1c2127", "#5f6973", "#dfe4e9", "#fefefe"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (5, 1.4, 1.2, 1.4)))  # so that lines differ in more than colour
VARIABLES = {INK: "ink", MUTED: "muted", LINE: "line", PAPER: "surface"} | {
    colour: f"series-{index}" for index, colour in enumerate(SERIES)
}
SETTINGS: Any = {  # as matplotlib names them
    "font.family": "DejaVu Sans",  # part of matplotlib, so files are the same everywhere
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.borderaxespad": 0,
    "legend.handlelength": 2.2,
    "figure.facecolor": PAPER,
    "svg.hashsalt": "sparsepgd",  # the same ids in every run
}
NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
DPI = 200


@contextmanager
def figure_style() -> Iterator[None]:
    """Use the settings above, without warnings of glyphs that the font lacks; the browser supplies them."""
    from matplotlib import rc_context  # slow to import

    with rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font", category=UserWarning)
        yield


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib Figure; sizes are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def colour(index: int) -> str:
    return SERIES[index % len(SERIES)]


def dash(index: int) -> Any:
    return DASHES[(index + index // len(SERIES)) % len(DASHES)]


def shades(of: str) -> Any:
    """A colour map from transparent to the colour, for dark and light backgrounds."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    red, green, blue = to_rgb(of)
    return LinearSegmentedColormap.from_list("shades", [(red, green, blue, 0.0), (red, green, blue, 1.0)])


def plain(words: str, most: int = 40) -> str:
    """Text that matplotlib shows literally, without mathematics or hidden labels, shortened to `most` characters."""
    shown = " ".join(words.split())
    shown = shown if len(shown) <= most else f"{shown[: most - 1]}…"
    shown = f" {shown}" if shown.startswith("_") else shown
    return shown.replace("$", r"\$")


def hint(words: str) -> str:
    """The gid of an artist for which the page shows `words` as a tooltip."""
    return f"hint:{words}"


def png(figure: Any) -> bytes:
    with figure_style():
        file = BytesIO()
        figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    return file.getvalue()


def svg(figure: Any) -> bytes:
    """An SVG file that looks the same everywhere, because text is drawn as outlines."""
    with figure_style():
        file = BytesIO()
        figure.savefig(file, format="svg", metadata=NO_METADATA)
    return _with_hints(file.getvalue().decode()).encode()


def inline_svg(figure: Any, name: str) -> str:
    """SVG to embed in a page, with the colours and font of the page; all ids begin with `name`."""
    from matplotlib import rc_context

    with figure_style(), rc_context({"svg.fonttype": "none", "figure.facecolor": "none"}):
        file = StringIO()
        figure.savefig(file, format="svg", metadata=NO_METADATA, transparent=True)
    text = _with_hints(file.getvalue())
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"font-family: [^;\"]+", "font-family: inherit", text)
    text = re.sub(r"font: ([^;\"]*?)'DejaVu Sans'", r"font: \1inherit", text)
    for hexadecimal, variable in VARIABLES.items():
        text = text.replace(f": {hexadecimal}", f": var(--{variable})")
    return text.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)


def _with_hints(text: str) -> str:
    return re.sub(r'<g id="hint:([^"]*)">', r"<g><title>\1</title>", text)
