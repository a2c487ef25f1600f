"""Figures and animations that display themselves once in a notebook."""

import io
from functools import cached_property
from typing import Any

import matplotlib
import matplotlib.animation
import matplotlib.figure
import numpy as np
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image

from wflow._core.printable import printable
from wflow.plots.style import style

_CSS = 100.0  # pixels per inch at which a notebook shows a figure; the image has twice as many


class Figure(matplotlib.figure.Figure):
    """Matplotlib figure made without pyplot that a notebook shows as the value of a cell.

    A plain `matplotlib.figure.Figure` is shown only by the inline backend, which `import
    matplotlib.pyplot` or `%matplotlib inline` sets up. That backend knows this class by its base
    and takes precedence over `_repr_png_`, so that one image is shown in either case; and it does
    not know the figure itself, which pyplot has not made, and does not show it again at the end of
    the cell.
    """

    def draw(self, renderer: Any) -> None:
        """Draw the figure, with the texts printable that come from files."""
        for text in self.findobj(Text):
            text.set_text(printable(text.get_text()))
        super().draw(renderer)

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]] | None:
        if not self.axes:
            return None
        drawn = io.BytesIO()
        with style():
            self.savefig(drawn, format="png")
        width, height = (round(_CSS * float(side)) for side in self.get_size_inches())
        return drawn.getvalue(), {"width": width, "height": height}


class _Canvas(FigureCanvasAgg):
    def draw_idle(self, *args: Any, **options: Any) -> None:
        """Draw nothing between the frames, at which `Animation.save` asks for it."""


class AnimatedFigure(Figure):
    """Figure of an animation: moving artists are drawn over a picture of the others.

    The writers of Matplotlib save every frame, and drawing all of a figure takes most of the time.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._moving: list[Artist] = []
        self._scenery: tuple[float, Any] | None = None
        self._palette: Image.Image | None = None
        self._agg = _Canvas(self)
        self._later: Any = None

    def shows(self, colours: Any) -> None:
        """Declare colours (n, 3), 0 to 255, that later frames show and the first may lack."""
        self._later = np.asarray(colours, np.uint8)

    def moves(self, *artists: Artist) -> None:
        """Declare artists that change from frame to frame; nothing else may change later."""
        self._moving.extend(artists)

    def savefig(self, fname: Any, **options: Any) -> None:
        """Save as any figure does, and a frame for a writer in less time."""
        kind, dpi = options.get("format"), options.get("dpi") or self.dpi
        if not self._moving or kind not in ("rgba", "raw", "png") or dpi == "figure":
            super().savefig(fname, **options)
            return
        if kind == "png":
            self.picture(float(dpi)).save(fname, format="png")
        else:
            fname.write(self._frame(float(dpi)).tobytes())

    def picture(self, dpi: float) -> Image.Image:
        """Return the frame in the 256 colours of the first one, which takes less space and time."""
        frame = Image.fromarray(self._frame(dpi)).convert("RGB")
        if self._palette is None:
            self._palette = self._with_later(frame).quantize(256)
            colours = np.array(self._palette.getpalette() or [], dtype=int).reshape(-1, 3)
            colours[colours.min(axis=1) > 247] = 255  # white stays white
            self._palette.putpalette(colours.ravel().tolist())
        return frame.quantize(palette=self._palette, dither=Image.Dither.NONE)

    def _with_later(self, frame: Image.Image) -> Image.Image:
        """Return the frame beside as large a field of the colours of later frames."""
        if self._later is None:
            return frame
        rows = np.repeat(self._later, -(-frame.height // len(self._later)), axis=0)[: frame.height]
        field = np.broadcast_to(rows[:, None], (frame.height, frame.width, 3))
        return Image.fromarray(np.concatenate([np.asarray(frame), field], axis=1))

    def _frame(self, dpi: float) -> Any:
        if self._scenery is None or self._scenery[0] != dpi:
            self.set_dpi(dpi)
            self.set_canvas(self._agg)
            for artist in self._moving:
                artist.set_visible(False)
            self._agg.draw()
            for artist in self._moving:
                artist.set_visible(True)
            self._scenery = dpi, self._agg.copy_from_bbox(self.bbox)
        self._agg.restore_region(self._scenery[1])
        for artist in self._moving:
            self.draw_artist(artist)
        return np.asarray(self._agg.buffer_rgba())


class Animation(matplotlib.animation.FuncAnimation):
    """Animation that plays in a notebook, whatever `rcParams["animation.html"]` says."""

    dpi = 100.0  # of the frames in a notebook

    @cached_property
    def _player(self) -> str:
        # The frames are limited already, so that the limit of Matplotlib is not needed.
        settings: Any = {"animation.embed_limit": 1024.0, "savefig.dpi": self.dpi}
        with style(), matplotlib.rc_context(settings):
            return str(self.to_jshtml(default_mode="loop"))

    def _repr_html_(self) -> str:
        return self._player


class GifWriter(matplotlib.animation.AbstractMovieWriter):
    """Writer of GIF whose frames share the colours of the first, in figures of wflow.

    That of Matplotlib chooses colours for each frame, which takes longer than drawing it.
    """

    def setup(self, fig: Any, outfile: Any, dpi: float | None = None) -> None:
        """Begin a file."""
        super().setup(fig, outfile, dpi=dpi)
        self._pictures: list[Image.Image] = []

    def grab_frame(self, **savefig_kwargs: Any) -> None:
        """Draw a frame."""
        if isinstance(self.fig, AnimatedFigure):
            self._pictures.append(self.fig.picture(float(self.dpi)))
            return
        drawn = io.BytesIO()
        self.fig.savefig(drawn, format="png", dpi=self.dpi)
        self._pictures.append(Image.open(drawn).convert("RGB"))

    def finish(self) -> None:
        """Write the file; the animation is repeated without end, and pauses at its end."""
        first, *others = self._pictures
        step = round(1000 / self.fps)
        first.save(
            self.outfile,
            save_all=True,
            append_images=others,
            duration=[step] * len(others) + [max(step, 1500)],
            loop=0,
        )
