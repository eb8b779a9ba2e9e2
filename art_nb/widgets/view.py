"""`View`, the base class of all widgets: a live widget with a static picture for use without a kernel.

JupyterLab saves a widget's model id but not its state, so after a restart it displays "model not found". A view is therefore
displayed as three outputs of one cell:

1. the live widget;
2. its picture (PNG), which GitHub, nbconvert and, for an untrusted notebook, JupyterLab also display;
3. its numbers as a collapsed HTML table, with a style sheet that hides 2 and 3 while 1 is rendered, and 1 otherwise.

Outputs 2 and 3 have a display id, so a view that is displayed before training gets its picture when the cell ends.
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


def module(name: str, folder: Path = HERE) -> str:
    """Return a view's ES module, common.js followed by `folder`/{name}.js: anywidget modules cannot import each other."""
    return (HERE / "common.js").read_text("utf-8") + (folder / f"{name}.js").read_text("utf-8")


def stylesheet(*files: Path) -> str:
    """Return the CSS that all views share, followed by these files."""
    return "".join(path.read_text("utf-8") for path in (HERE / "widgets.css", *files))


def plain(value):
    """Convert `value` for JSON: keys become strings, tuples, arrays and tensors lists, NaN and infinities None."""
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
    """Return the records as a list. Raises: ValueError when there is none or one lacks a key in `wanted`."""
    records = list(records)
    if not records:
        raise ValueError("`records` is empty: expected at least one trajectory record, e.g. model.records(step=1)")
    for record in records:
        missing = [key for key in wanted if not isinstance(record, dict) or key not in record]
        if missing:
            raise ValueError(f"a {type(record).__name__} in `records` lacks {missing}: expected trajectory records from "
                             "Trajectory.record(), e.g. model.records()")  # fmt: skip
    return records


def table(head: list[str], rows: list[list]) -> str:
    """Return an HTML table with escaped cells."""
    def line(tag, cells):
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"


def number(value) -> str:
    """Format a number with 3 significant digits, from 100,000 on as an integer; None as a dash."""
    return "–" if value is None else f"{value:.3g}" if abs(value) < 1e5 else f"{value:,.0f}"


def figure(width: float, height: float):
    """Return an empty matplotlib figure (size in inches) that no notebook backend displays."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=80, layout="constrained", facecolor="white")


def style_axes(axes, title: str) -> None:
    """Style a panel: title at the left, no box, a light grid."""
    axes.set_title(title, loc="left", fontsize=9, parse_math=False)
    axes.tick_params(labelsize=7.5, length=0, colors=GREY)
    axes.grid(axis="y", color="#e6e8eb", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def png(fig) -> bytes:
    """Return the figure as PNG bytes, in 256 colours to save space. Characters that the font lacks become boxes."""
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
    """A widget with a static picture. Subclasses implement `summary`, `static_png` and `static_html`."""

    _css = stylesheet()

    def __init__(self, **traits) -> None:
        super().__init__(**traits)
        self._still_id = uuid.uuid4().hex
        self._shown = False

    def summary(self) -> str:
        """Return one line of text that describes the contents."""
        raise NotImplementedError

    def static_png(self) -> bytes | None:
        """Return the view as a static picture; None while there is nothing to draw."""
        raise NotImplementedError

    def static_html(self) -> str:
        """Return the picture's numbers as an HTML table, all text escaped."""
        raise NotImplementedError

    def _still(self) -> tuple[dict, dict]:
        """Return the mime bundles of outputs 2 and 3 (see the module's docstring)."""
        picture = self.static_png()
        shown = {"text/plain": ""} if picture is None else {"text/plain": self.summary(), "image/png": picture}
        fold = f"<details><summary>{html.escape(self.summary())}</summary>{self.static_html()}</details>"
        numbers = {"text/plain": "", "text/html": f'{_STYLE}<div class="art-nb-still">{fold if picture else ""}</div>'}
        return shown, numbers

    def _ipython_display_(self) -> None:
        from IPython.display import display

        data, metadata = self._repr_mimebundle_()
        display({**data, "text/plain": self.summary()}, metadata=metadata, raw=True)
        if "google.colab" in sys.modules:  # Colab saves widget state in the notebook
            return
        for part, bundle in enumerate(self._still()):
            display(bundle, raw=True, display_id=f"{self._still_id}-{part}")
        self._shown = True

    def refresh_still(self) -> None:
        """Update the static picture and the table in the view's outputs, if the view is displayed."""
        from IPython.display import update_display

        if self._shown:
            for part, bundle in enumerate(self._still()):
                update_display(bundle, raw=True, display_id=f"{self._still_id}-{part}")
