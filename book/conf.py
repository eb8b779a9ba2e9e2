"""Sphinx's configuration of the book, used by build.py. Formulas become MathML, which browsers render without a script."""

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

project = html_title = "art_nb"
extensions = ["myst_nb"]
html_theme = "furo"
html_favicon = "pictures/icon.svg"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = [("live.js", {"defer": "defer"})]
html_copy_source = html_use_index = False
html_show_copyright = False
html_math_renderer = "mathml"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"
pygments_style = "friendly"
pygments_dark_style = "monokai"


def draw_formula(translator, node):
    is_block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), as_block=is_block)
    translator.body.append(f'<div class="math">{formula}</div>' if is_block else formula)
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (draw_formula, None), (draw_formula, None))
