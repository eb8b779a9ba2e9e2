"""What the three views share: how they are shown, and the still picture that stays when no kernel runs.

A notebook saved by JupyterLab keeps a widget's address but not its state, and after a restart the address leads
nowhere ("model not found"). So a view is shown as three outputs of one cell:

1. the live widget;
2. its picture (PNG), which GitHub, nbconvert and an untrusted JupyterLab show as well;
3. its numbers as an HTML table, folded, with a style that hides 2 and 3 while 1 is alive, and 1 when it is dead.

Outputs 2 and 3 have a display id, so a view that is shown before training gets its picture when the cell ends.
"""

from __future__ import annotations

import html
import math
import sys
import uuid
from pathlib import Path

import anywidget

HERE = Path(__file__).parent
BLUE, ORANGE, GREY = "#0067a5", "#c4570a", "#6b7480"

_CHILD = ".jp-OutputArea-child"
_STILL_FOLLOWS = f":has(+ {_CHILD} + {_CHILD} .art-nb-still)"
_STYLE = (
    f"<style>{_CHILD}:has(.art-nb){_STILL_FOLLOWS} + {_CHILD},"
    f"{_CHILD}:has(.art-nb){_STILL_FOLLOWS} + {_CHILD} + {_CHILD},"
    f"{_CHILD}:not(:has(.art-nb)){_STILL_FOLLOWS}{{display:none}}</style>"
)


def module(name: str) -> str:
    """The ES module of one view: common.js, then the view's own file (an anywidget module cannot import a neighbour)."""
    return (HERE / "common.js").read_text("utf-8") + (HERE / f"{name}.js").read_text("utf-8")


def plain(value):
    """`value` as JSON can hold it: arrays and tensors become lists, NaN and infinities become None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def record_list(records, wanted: tuple[str, ...] = ("step", "group", "index", "reward")) -> list[dict]:
    """The records as a list. Raises: ValueError when there is none or one lacks a key in `wanted`."""
    records = list(records)
    if not records:
        raise ValueError("There is no trajectory to show: `records` is empty. Pass e.g. model.records(step=1).")
    for record in records:
        missing = [key for key in wanted if not isinstance(record, dict) or key not in record]
        if missing:
            raise ValueError(
                f"A trajectory record lacks {missing}. Expected dicts as Trajectory.record() makes them, e.g. "
                f"model.records(); got {type(record).__name__}."
            )
    return records


def table(head: list[str], rows: list[list]) -> str:
    """An HTML table; every cell is escaped."""
    def line(tag, cells):
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"


def number(value) -> str:
    """A number for a table or a label: 3 significant digits, a dash when there is none."""
    return "–" if value is None else f"{value:.3g}" if abs(value) < 1e5 else f"{value:,.0f}"


def figure(width: float, height: float):
    """An empty matplotlib figure (inches) that no notebook backend shows by itself."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=80, layout="constrained", facecolor="white")


def calm(axes, title: str) -> None:
    """One look for every panel: title at the left, no box, quiet grid."""
    axes.set_title(title, loc="left", fontsize=9, parse_math=False)
    axes.tick_params(labelsize=7.5, length=0, colors=GREY)
    axes.grid(axis="y", color="#e6e8eb", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def png(fig) -> bytes:
    """The figure as PNG bytes, in 256 colours: a notebook holds many. A character that the font lacks comes out as a box,
    without a warning."""
    import io
    import warnings

    from PIL import Image

    drawn, out = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        fig.savefig(drawn, format="png")
    colours = Image.open(drawn).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    colours.save(out, format="png", optimize=True)
    return out.getvalue()


class View(anywidget.AnyWidget):
    """A widget with a still picture. Subclasses give `summary`, `static_png` and `static_html`."""

    _css = (HERE / "widgets.css").read_text("utf-8")

    def __init__(self, **traits) -> None:
        super().__init__(**traits)
        self._still_id = uuid.uuid4().hex
        self._shown = False

    def summary(self) -> str:
        """One line of text: what the view holds."""
        raise NotImplementedError

    def static_png(self) -> bytes | None:
        """The view as a picture, without a kernel or JavaScript; None while there is nothing to draw."""
        raise NotImplementedError

    def static_html(self) -> str:
        """The numbers behind the picture as an HTML table, all text escaped."""
        raise NotImplementedError

    def _still(self) -> tuple[dict, dict]:
        """The mime bundles of outputs 2 and 3 (see the top of this file)."""
        picture = self.static_png()
        shown = {"text/plain": ""} if picture is None else {"text/plain": self.summary(), "image/png": picture}
        fold = f"<details><summary>{html.escape(self.summary())}</summary>{self.static_html()}</details>"
        numbers = {"text/plain": "", "text/html": f'{_STYLE}<div class="art-nb-still">{fold if picture else ""}</div>'}
        return shown, numbers

    def _ipython_display_(self) -> None:
        from IPython.display import display

        data, metadata = self._repr_mimebundle_()
        display({**data, "text/plain": self.summary()}, metadata=metadata, raw=True)
        if "google.colab" in sys.modules:  # keeps widget state in the notebook by itself
            return
        for part, bundle in enumerate(self._still()):
            display(bundle, raw=True, display_id=f"{self._still_id}-{part}")
        self._shown = True

    def refresh_still(self) -> None:
        """Redraw the picture where the view was shown. Does nothing before it is shown."""
        from IPython.display import update_display

        if self._shown:
            for part, bundle in enumerate(self._still()):
                update_display(bundle, raw=True, display_id=f"{self._still_id}-{part}")
