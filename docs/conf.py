"""Settings of Sphinx for the documentation: ``sphinx-build -W docs docs/_build``.

Nothing is fetched from the network. The reference is read from the docstrings of the fastiter that
is imported, compiled modules included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sphinx.util.nodes import make_refnode

import fastiter

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

project = "fastiter"
copyright = "the fastiter developers"
release = version = fastiter.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

default_role = "py:obj"
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 88
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
autodoc_mock_imports = ["torch", "ray"]  # the reference is built without them
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_preprocess_types = True
napoleon_type_aliases = {"device": ":func:`device <fastiter.dataset.to_device>`"}

html_theme = "furo"
html_title = f"fastiter {version}"
html_static_path = ["_static"]
html_css_files = ["fastiter.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b62a8", "color-brand-content": "#0b62a8"},
    "dark_css_variables": {"color-brand-primary": "#6cb6f5", "color-brand-content": "#6cb6f5"},
}


def resolve_short_name(
    app: Sphinx, env: BuildEnvironment, node: Any, content: nodes.TextElement
) -> nodes.Element | None:
    """Let docstrings name a class or function without its module, as in `SerialIterator`."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    places = {
        (entry.docname, entry.node_id)
        for name, entry in env.domains["py"].objects.items()
        if name.endswith(f".{target}")
    }
    if len(places) != 1:
        return None
    docname, anchor = places.pop()
    return make_refnode(app.builder, node["refdoc"], docname, anchor, content, target)


def setup(app: Sphinx) -> None:
    app.connect("missing-reference", resolve_short_name)
