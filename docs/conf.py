"""How Sphinx builds the manual: `make docs`. Nothing is fetched while it does."""

import os
import sys
from importlib.metadata import version as installed
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_extensions")]

project = "revremat"
author = "The revremat authors"
copyright = author
release = version = installed("revremat")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "public_names",
    "command_help",
]
exclude_patterns = ["_build", "_extensions", "examples"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# Snippets are run, and their outputs compared, by tools/pages.py.
nb_execution_mode = "off"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = True
napoleon_use_ivar = True
default_role = "code"
nitpicky = True
# Names of other projects, and private types in signatures.
nitpick_ignore_regex = [(r"py:.*", r"(?!revremat\.?$).*")]

if os.environ.get("REVREMAT_DOCS_ONLINE"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "jax": ("https://docs.jax.dev/en/latest", None),
        "flax": ("https://flax.readthedocs.io/en/latest", None),
    }

html_theme = "furo"
html_title = "revremat"
html_static_path = []
html_show_sourcelink = False
html_copy_source = False
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
