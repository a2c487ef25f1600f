"""Images of the gallery: every figure and animation of an example, with or without pyplot."""

import gc
import weakref
from pathlib import PurePosixPath
from typing import Any

from matplotlib import pyplot
from matplotlib.animation import Animation
from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

_SHOWN: weakref.WeakSet = weakref.WeakSet()


def figures(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the figures that are new since the last block of an example.

    The functions of `wflow.plots` return figures that pyplot does not know, which the scraper of
    sphinx-gallery does not see: here those count that a variable or the last expression of a block
    holds. An animation is saved as a GIF: the player of matplotlib loads a font from a network.
    """
    held = list({id(x): x for x in block_vars["example_globals"].values()}.values())
    new: list[Any] = [x for x in held if isinstance(x, Animation) and x not in _SHOWN]
    moving = [animation._fig for animation in new]
    still = [x for x in held if isinstance(x, Figure)]
    still += [pyplot.figure(number) for number in pyplot.get_fignums()]
    for figure in still:
        if figure not in _SHOWN and all(figure is not other for other in moving + new):
            new.append(figure)
    files = []
    for item, file in zip(new, block_vars["image_path_iterator"], strict=False):
        path = PurePosixPath(file)
        if isinstance(item, Animation):
            path = path.with_suffix(".gif")
            item.save(str(path), writer="pillow", dpi=80)
            _SHOWN.add(item._fig)
        else:
            item.savefig(str(path), dpi=120)
        _SHOWN.add(item)
        files.append(str(path))
    pyplot.close("all")
    gc.collect()
    return figure_rst(files, gallery_conf["src_dir"])
