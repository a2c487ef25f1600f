"""Images of the gallery: every figure and animation of an example, and a thumbnail of its idea.

`python docs/_ext/gallery_images.py` cuts the pictures of the cards of docs/results/index.md again.
"""

import gc
import re
import shutil
import textwrap
import weakref
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.animation import Animation
from matplotlib.figure import Figure
from PIL import Image
from sphinx_gallery.scrapers import figure_rst

# The axes that a thumbnail shows: number of the figure, from 1, and of its axes. Others: (1, 0).
THUMBNAILS = {
    "plot_1_first_flow": (2, 0),
    "plot_2_which_flow": (1, 1),
    "plot_4_which_method": (1, 1),
    "plot_2_gradient_against_heads": (2, 0),
    "plot_4_oscillating_heads": (1, 2),
    "plot_2_weighted_metric": (1, 1),
    "plot_3_straight_trajectories": (1, 1),
    "plot_4_maximum_principle": (1, 2),
    "plot_4_mean_field_equation": (1, 2),
    "plot_2_samplers": (1, 1),
}
# Cards: figure of docs/results -> its panel (left, top, right, bottom), in shares of its size.
CARDS = {
    "edi_defect_noise": (0.0, 0.13, 0.5, 1.0),
    "mnist_vit_paper_learning_curves": (0.505, 0.14, 1.0, 1.0),
    "rwpo_operator_layer": (0.0, 0.0, 0.505, 1.0),
}
# The look of the figures, which so is no part of an example.
STYLE = {"figure.constrained_layout.use": True, "figure.figsize": (6, 3.4), "legend.frameon": False}
_SHOWN: weakref.WeakSet = weakref.WeakSet()


def style(gallery_conf: dict[str, Any], example: str) -> None:
    """Set the look before an example runs."""
    matplotlib.rcParams.update(STYLE)


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
    example = Path(block_vars["src_file"]).stem
    chosen, axes = THUMBNAILS.get(example, (1, 0))
    for item, file in zip(new, block_vars["image_path_iterator"], strict=False):
        path = Path(file)
        thumbnail = path.parent / "thumb" / f"designed_{example}.png"
        thumbnail.parent.mkdir(exist_ok=True)
        first = path.stem.endswith(f"_{chosen:03}")
        if isinstance(item, Animation):
            path = path.with_suffix(".gif")
            item.save(str(path), writer="pillow", dpi=80)
            _SHOWN.add(item._fig)
            if first:
                _crop(path, item._fig, axes, thumbnail.with_suffix(".gif"))
        else:
            item.savefig(str(path), dpi=120)
            if first:
                _design(item, axes, thumbnail)
        _SHOWN.add(item)
        files.append(path.as_posix())
    pyplot.close("all")
    gc.collect()
    return figure_rst(files, gallery_conf["src_dir"])


def _design(figure: Figure, number: int, file: Path) -> None:
    """Draw one of the axes alone, with thick lines, large labels and no numbers."""
    axes = figure.axes[number]
    figure.suptitle("")
    for other in [*figure.axes, *figure.texts, *figure.legends]:
        if other is not axes:  # hidden: axes that share theirs need them
            other.set_visible(False)
    figure.set_layout_engine("none")
    figure.set_size_inches(4, 2.8)
    for place in ("left", "center", "right"):
        axes.set_title("", loc=place)
    if axes.get_legend():
        axes.get_legend().remove()
    for other in figure.axes:  # labels may be aligned with those of hidden axes
        ticks = ("bottom", "left", "labelbottom", "labelleft")
        other.tick_params(which="both", **dict.fromkeys(ticks, False))
    axes.spines[["top", "right"]].set_visible(False)
    for axis, width in ((axes.xaxis, 24), (axes.yaxis, 15)):  # in characters
        text = axis.label.get_text() if axes.name != "3d" else ""
        head = text.partition(",")[0]
        if head.count("$") % 2 == 0:  # the comma is not within a formula
            text = head
        if "$" not in text:
            text = textwrap.fill(text, width)
        shown = re.sub(r"[${}_^]", "", re.sub(r"\\[a-z]+", "x", text))
        longest = max(map(len, shown.splitlines()), default=1)
        axis.label.set(text=text, fontsize=18 * min(1, 1.2 * width / longest))
    below, beside = (len(axis.label.get_text().splitlines()) for axis in (axes.xaxis, axes.yaxis))
    left, bottom = 0.05 + 0.08 * beside, 0.05 + 0.11 * below
    axes.set_position((left, bottom, 0.97 - left, 0.96 - bottom))
    for line in axes.lines:
        line.set(linewidth=1.8 * line.get_linewidth(), markersize=1.5 * line.get_markersize())
    figure.savefig(file, dpi=150)


def _crop(film: Path, figure: Figure, number: int, file: Path) -> None:
    """Cut the frames of a film to one of its axes."""
    place = figure.axes[number].get_position()
    with Image.open(film) as frames:
        width, height = frames.size
        left, top = place.x0 * width, (1 - place.y1) * height
        right, bottom = place.x1 * width, (1 - place.y0) * height
        cut = []
        for k in range(frames.n_frames):
            frames.seek(k)
            cut.append(frames.convert("RGB").crop((left, top, right, bottom)))
        duration = frames.info["duration"]
    cut[0].save(file, save_all=True, append_images=cut[1:], duration=duration, loop=0)


def use_thumbnails(app: Any) -> None:
    """Put the designed thumbnails in the place of those that sphinx-gallery makes."""
    for designed in Path(app.srcdir, "gallery").rglob("images/thumb/designed_*"):
        name = designed.name.replace("designed", "sphx_glr", 1)
        shutil.copyfile(designed, designed.with_name(f"{Path(name).stem}_thumb{designed.suffix}"))


def cards(folder: Path) -> None:
    """Cut the pictures of the cards from figures of a folder."""
    for name, box in CARDS.items():
        with Image.open(folder / f"{name}.png") as figure:
            place = [share * size for share, size in zip(box, 2 * figure.size, strict=True)]
            figure.crop(tuple(map(round, place))).save(folder / f"card_{name}.png", optimize=True)


if __name__ == "__main__":
    cards(Path(__file__).parents[1] / "results" / "figures")
