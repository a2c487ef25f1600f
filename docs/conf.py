"""The site: `make docs` builds it into build/site, `make docs-fast` without running the gallery.

Nothing is loaded from a network, neither by the build nor by a page of the result.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

from gallery_images import use_thumbnails  # noqa: E402

from wflow._version import __version__  # noqa: E402

project = "wflow"
author = "The wflow developers"
project_copyright = author
version = release = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "myst_parser",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx-mathjax-offline",  # the files of MathJax, in place of those of a content network
    "sphinx_gallery.gen_gallery",
    "api_pages",  # docs/_ext: a page for every public name
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = [
    "_ext",
    "_static",
    "_templates",
    "**/sg_execution_times.rst",
    "sg_execution_times.rst",
]
templates_path = ["_templates"]
default_role = "obj"  # `wflow.solve` in a docstring is a link where it names something

# Markdown
myst_enable_extensions = [
    "amsmath",
    "attrs_block",
    "attrs_inline",
    "colon_fence",
    "deflist",
    "dollarmath",
]
myst_heading_anchors = 3  # [a flow](extending.md#a-flow)
myst_dmath_double_inline = True
math_number_all = False
math_eqref_format = "({number})"
numfig = math_numfig = True  # equations are numbered by chapters: (4.2)
numfig_secnum_depth = 1

# Docstrings
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autosummary_generate = False  # `api_pages` writes the pages
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"  # `api_pages` says what is linked
python_maximum_signature_line_length = 80

# Gallery
sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("gallery_images.figures",),
    "reset_modules": ("matplotlib", "gallery_images.style"),
    "capture_repr": ("_repr_html_", "__repr__"),
    "ignore_repr_types": r"matplotlib|Animation",
    "doc_module": ("wflow",),
    "backreferences_dir": "api/examples",
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1,
    "plot_gallery": True,
}

# Pages
html_theme = "pydata_sphinx_theme"
html_title = f"wflow {release}"
html_logo = html_favicon = "_static/logo.svg"
html_search_scorer = str(HERE / "_ext" / "scorer.js")
# The page explore.md shows the explorer that notebooks have.
_EXPLORER = [f"../wflow/study/{name}" for name in ("globe.js", "explore.js", "explore.css")]
html_static_path = ["_static", *_EXPLORER]
html_css_files = ["wflow.css", "predictions.css"]
html_js_files = ["wflow.js"]
html_sidebars = {page: [] for page in ["index", "start", "explore", "extending", "performance"]}
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False  # a page opened from disk may not read the others
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": f"wflow {release}", "alt_text": "wflow"},
    "icon_links": [
        {
            "name": "Repository",
            "url": PROJECT["urls"]["Repository"],
            "icon": "fa-brands fa-github",
            "type": "fontawesome",
        }
    ],
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "navbar_end": ["theme-switcher", "navbar-icon-links"],
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    # Pages of results have none: their tables take the room.
    "secondary_sidebar_items": {
        **{page: ["page-toc"] for page in ["api/**", "gallery/**", "guide/**", "theory/**"]},
        **{page: ["page-toc"] for page in ["development/**", "tutorials/**", "start", "extending"]},
        **{page: [] for page in ["results/**", "theory/energy_balance", "performance**"]},
        **{page: [] for page in ["index", "explore"]},
    },
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def setup(app: Any) -> None:
    app.connect("config-inited", _prepare_gallery, priority=1)
    app.connect("builder-inited", use_thumbnails, priority=900)  # after the gallery has run


def _prepare_gallery(app: Any, config: Any) -> None:
    """Read `-D plot_gallery=0`, a text, as a flag, and drop pages of examples that are gone."""
    config.plot_gallery = str(config.plot_gallery).lower() in ("1", "true")
    gallery = HERE / "gallery"
    for page in gallery.rglob("plot_*.rst"):
        example = HERE.parent / "examples" / page.relative_to(gallery).with_suffix(".py")
        if not example.exists():
            page.unlink()
