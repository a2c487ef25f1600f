"""The images that the gallery takes from an example."""

import importlib
from pathlib import Path

import matplotlib
import numpy as np
import pytest

matplotlib.use("agg")
pytest.importorskip("sphinx_gallery", reason="the extra docs is not installed")
ROOT = Path(__file__).resolve().parents[2]


def test_each_figure_is_saved_once_with_or_without_pyplot(tmp_path, monkeypatch):
    from matplotlib import pyplot
    from matplotlib.animation import FuncAnimation
    from matplotlib.figure import Figure
    from PIL import Image

    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    scraper = importlib.import_module("gallery_images")
    alone = Figure()
    alone.subplots().plot(np.arange(3))
    moving, axis = pyplot.subplots()
    (line,) = axis.plot([0, 1])
    animation = FuncAnimation(moving, lambda i: line.set_ydata([0, i]), frames=2)
    pyplot.figure()
    names = {"alone": alone, "___": alone, "animation": animation, "again": animation, "x": 1}
    paths = iter(str(tmp_path / f"image_{i:03}.png") for i in range(1, 9))
    block_vars = {"example_globals": names, "image_path_iterator": paths, "src_file": "plot_x.py"}
    text = scraper.figures(None, block_vars, {"src_dir": str(tmp_path)})
    assert sorted(file.suffix for file in tmp_path.glob("*.*")) == [".gif", ".png", ".png"]
    (designed,) = (tmp_path / "thumb").iterdir()  # of the first figure, cut to its axes
    with Image.open(designed) as thumbnail, Image.open(tmp_path / "image_001.gif") as film:
        assert thumbnail.n_frames == film.n_frames == 2
        assert thumbnail.width < film.width and thumbnail.height < film.height
    assert text.count("image_") >= 3
    assert not pyplot.get_fignums()
    assert scraper.figures(None, block_vars, {"src_dir": str(tmp_path)}).strip() == ""
