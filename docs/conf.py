"""Sphinx: every warning is an error, and nothing is fetched from the network."""

from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from guideloom import __version__

project = "GuideLoom"
author = "The GuideLoom developers"
copyright = "2026, The GuideLoom developers"
release = __version__

extensions = ["sphinx.ext.autodoc", "numpydoc", "myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3

# Single backticks in docstrings: a documented name becomes a link; parameters are named so too.
default_role = "py:obj"
nitpick_ignore_regex = [
    ("py:obj", r"[a-z_.]+"),
    ("py:obj", r"(Schema|Partition|Order|ReadJob|Output)(\..*)?"),  # of inner layers
    ("py:class", r"(asyncio|collections|numpy|os|torch|typing)\..*"),  # of other projects
]

autodoc_typehints = "none"  # numpydoc's sections say it, with shapes and units
autodoc_member_order = "bysource"
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = "GuideLoom"
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}


def setup(app: Sphinx) -> None:
    """Let a docstring of any module name what the package exports, without its module."""
    app.connect("missing-reference", resolve_exported)


def resolve_exported(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement) -> Any:
    """Return a reference to the target as a name of the package itself, if it is one."""
    if node["refdomain"] != "py":
        return None
    target = f"guideloom.{node['reftarget']}"
    return env.domains.python_domain.resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, text)
