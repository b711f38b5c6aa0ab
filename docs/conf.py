"""How Sphinx builds these pages: ``make docs``."""

from __future__ import annotations

import re
from importlib.metadata import version as version_of

from sphinx.application import Sphinx

project = "Farpool"
author = "The Farpool authors"
copyright = "The Farpool authors"  # noqa: A001  Sphinx's name
version = release = version_of("farpool")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Farpool {version}"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True, "exclude-members": "__init__"}

RAISED = re.compile(r"^    (?P<kind>\w+): (?P<when>.*)$")


def turn_raises_into_fields(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Write a ``Raises:`` section as the field list that Sphinx knows."""
    if "Raises:" not in lines:
        return
    start = lines.index("Raises:")
    section = [RAISED.sub(r":raises \g<kind>: \g<when>", line) for line in lines[start + 1 :]]
    lines[start:] = ["", *section]


def setup(app: Sphinx) -> None:
    """Register the above."""
    app.connect("autodoc-process-docstring", turn_raises_into_fields)
