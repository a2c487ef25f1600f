"""Curves as SVG, and as data for the script of a report: charts with axes, and sparklines.

No library draws them. A chart of a report is in the page twice, once for its script and once as a
static figure in the colours of its style sheet; a sparkline is what `ds.wflow` shows of a curve.
"""

from __future__ import annotations

import base64
import html
import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.printable import printable
from wflow.plots.figure import BAND

Floats = NDArray[np.floating]

_WIDTH, _LEFT, _RIGHT, _TALL = 760.0, 62.0, 200.0, 190.0  # of a static figure and its panels


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of a chart, with its band; `role` names its colour in the style sheet."""

    name: str
    role: str
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    hidden: bool = False  # until its name in the legend is clicked
    x: Floats | None = None  # of the chart, where None

    @classmethod
    def of_paths(cls, name: str, role: str, values: Floats, hidden: bool = False) -> Curve:
        """Return the mean over the paths of (paths, k), and the band of the middle 80 % of them."""
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # times without any value have no mean
            mean = np.nanmean(values, axis=0)
            if values.shape[0] == 1:
                return cls(name, role, mean, hidden=hidden)
            low, high = np.nanpercentile(values, BAND, axis=0)
        return cls(name, role, mean, low, high, hidden)


@dataclass(frozen=True, eq=False)
class Panel:
    """Curves on one axis."""

    label: str
    curves: list[Curve]
    log: bool = False


@dataclass(frozen=True, eq=False)
class Chart:
    """Panels above each other with a common axis."""

    title: str
    xlabel: str
    x: Floats
    panels: list[Panel]
    caption: str

    def data(self) -> dict[str, Any]:
        """Return the chart for the script: texts, and numbers in base64."""
        return {
            "title": plain(self.title),
            "xlabel": self.xlabel,
            "x": _packed(self.x),
            "panels": [
                {
                    "label": plain(panel.label),
                    "log": panel.log,
                    "curves": [
                        {
                            "name": plain(curve.name),
                            "role": curve.role,
                            "hidden": curve.hidden,
                            "y": _packed(curve.y),
                        }
                        | ({} if curve.x is None else {"x": _packed(curve.x)})
                        | (
                            {}
                            if curve.low is None or curve.high is None
                            else {"low": _packed(curve.low), "high": _packed(curve.high)}
                        )
                        for curve in panel.curves
                    ],
                }
                for panel in self.panels
            ],
        }

    def svg(self) -> str:
        """Draw the chart as a static figure in the colours of the page."""
        height = len(self.panels) * (_TALL + 26) + 26
        own = [curve.x for panel in self.panels for curve in panel.curves if curve.x is not None]
        ends = _limits([self.x, *own], False)
        parts = [
            f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" '
            f'aria-label="{escaped(self.title)}: {escaped(self.caption)}">'
        ]
        for k, panel in enumerate(self.panels):
            parts += self._panel(panel, 8 + k * (_TALL + 26), ends, k == len(self.panels) - 1)
        middle = _LEFT + (_WIDTH - _LEFT - _RIGHT) / 2
        label = (
            f'<text class="axis" x="{middle:g}" y="{height - 6:g}">{escaped(self.xlabel)}</text>'
        )
        return "".join([*parts, label, "</svg>"])

    def _panel(
        self, panel: Panel, top: float, ends: tuple[float, float], last: bool
    ) -> Iterator[str]:
        """Yield the parts of one panel, whose upper edge is at `top`."""
        plot = _WIDTH - _LEFT - _RIGHT
        drawn = [curve for curve in panel.curves if not curve.hidden]
        bands = [v for c in drawn for v in (c.y, c.low, c.high) if v is not None]
        bottom, ceiling = _limits(bands, panel.log)

        def across(values: Any) -> Any:
            return _LEFT + plot * (values - ends[0]) / (ends[1] - ends[0])

        def up(values: Any) -> Any:
            return top + _TALL * (1 - (values - bottom) / (ceiling - bottom))

        def scaled(values: Floats) -> Any:
            with np.errstate(all="ignore"):
                return up(np.log10(values) if panel.log else values)

        for value, label in _ticks(bottom, ceiling, panel.log):
            yield (
                f'<path class="grid" d="M{_LEFT:g} {up(value):.1f}h{plot:g}"/>'
                f'<text class="tick end" x="{_LEFT - 6:g}" y="{up(value) + 4:.1f}">{label}</text>'
            )
        for value, label in _ticks(*ends, False):
            yield f'<path class="grid" d="M{across(value):.1f} {top:g}v{_TALL:g}"/>'
            if last:
                place = f'x="{across(value):.1f}" y="{top + _TALL + 16:g}"'
                yield f'<text class="tick mid" {place}>{label}</text>'
        yield (
            f'<text class="axis side" transform="translate(13 {top + _TALL / 2:g}) rotate(-90)">'
            f"{escaped(panel.label)}</text>"
        )
        for row, curve in enumerate(drawn):
            x = across(self.x if curve.x is None else curve.x)
            if curve.low is not None and curve.high is not None:
                yield _band_path(x, scaled(curve.low), scaled(curve.high), curve.role)
            yield _line_path(x, scaled(curve.y), curve.role)
            y, at = top + 12 + 18 * row, _WIDTH - _RIGHT + 14
            yield (
                f'<g class="legend"><path class="line {curve.role}" d="M{at:g} {y - 4:g}h22"/>'
                f'<text class="key" x="{at + 28:g}" y="{y:g}">{escaped(curve.name)}</text></g>'
            )

    def _keys(self) -> str:
        """Return the legend for narrow screens, on which that of the figure is too small."""
        rows = []
        for panel in self.panels:
            rows.append(f"<li>{escaped(panel.label)}:</li>")
            for curve in [curve for curve in panel.curves if not curve.hidden]:
                line = f'<path class="line {curve.role}" d="M0 2h22"/>'
                rows.append(
                    f'<li><svg viewBox="0 0 22 4" aria-hidden="true">{line}</svg> '
                    f"{escaped(curve.name)}</li>"
                )
        return f'<ul class="keys">{"".join(rows)}</ul>'

    def figure(self, name: str) -> str:
        """Return both forms of the chart, of which the page shows one."""
        title, caption = escaped(self.title), escaped(self.caption)
        panels = len(self.panels)
        return (
            f'<figure class="chart" data-chart="{name}"><div class="live" hidden role="img" '
            f'style="--panels:{panels}" aria-label="{title}: {caption}"></div>'
            f'<div class="static" style="--plot:{(_WIDTH - _RIGHT) / _WIDTH:.3f}">{self.svg()}'
            f"{self._keys()}</div><figcaption>{caption}</figcaption></figure>"
        )


def _packed(values: Floats) -> dict[str, str]:
    """Return numbers in base64, in single precision where their range admits it."""
    array = np.asarray(values, dtype=float)
    known = np.abs(array[np.isfinite(array) & (array != 0)])
    fits = not known.size or (known.max() < 1e37 and known.min() > 1e-35)
    kind = "f4" if fits else "f8"
    return {kind: base64.b64encode(array.astype(f"<{kind}").tobytes()).decode()}


def _limits(arrays: Iterable[Floats], log: bool) -> tuple[float, float]:
    """Return ends of an axis, in powers of ten for a log one."""
    low, high = math.inf, -math.inf
    for values in arrays:
        known = np.asarray(values, float)
        known = known[np.isfinite(known)]
        known = np.log10(known[known > 0]) if log else known
        if known.size:
            low, high = min(low, float(known.min())), max(high, float(known.max()))
    if low > high:
        return 0.0, 1.0
    pad = 0.04 * (high - low) or 0.5 * (abs(high) or 1.0)
    if log:
        pad = max(pad, (0.3 - (high - low)) / 2)
    return low - pad, high + pad


def _ticks(low: float, high: float, log: bool) -> list[tuple[float, str]]:
    """Return places and labels of round numbers between two ends."""
    if log and high - low > 1:
        step = max(1, round((high - low) / 5))
        powers = range(math.ceil(low), math.floor(high) + 1, step)
        return [(float(p), f"{10.0**p:g}" if -4 < p < 5 else f"1e{p}") for p in powers]
    if log:
        values = [
            m * 10.0**p for p in range(math.floor(low), math.ceil(high)) for m in (1, 2, 3, 5)
        ]
        return [(math.log10(v), f"{v:g}") for v in values if low <= math.log10(v) <= high]
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw)) if raw > 0 and math.isfinite(raw) else 1.0
    step_size = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw * 0.999)
    first = math.ceil(low / step_size - 1e-9)
    places = [k * step_size for k in range(first, first + 12) if k * step_size <= high]
    return [(p, f"{p:.6g}".replace("-", "\N{MINUS SIGN}")) for p in places]


def _pieces(*arrays: Floats) -> Iterator[slice]:
    """Yield the stretches without gaps of curves that share their places."""
    known = np.logical_and.reduce([np.isfinite(a) for a in arrays])
    edges = np.flatnonzero(np.diff(np.r_[0, known.astype(np.int8), 0]))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        yield slice(int(start), int(end))


def _points(x: Floats, y: Floats) -> str:
    return " ".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, np.clip(y, -1e4, 1e4), strict=True))


def _line_path(x: Floats, y: Floats, role: str) -> str:
    d = "".join(f"M{_points(x[part], y[part])}" for part in _pieces(x, y))
    return f'<path class="line {role}" d="{d}"/>'


def _band_path(x: Floats, low: Floats, high: Floats, role: str) -> str:
    d = ""
    for part in _pieces(x, low, high):
        back = slice(None, None, -1)
        d += f"M{_points(x[part], low[part])} {_points(x[part][back], high[part][back])}Z"
    return f'<path class="band {role}" d="{d}"/>'


def sparkline(time: ArrayLike, values: ArrayLike) -> str:
    """Draw a curve as a small SVG, without axes, in the colour of the text around it.

    Parameters
    ----------
    time, values : array_like, shape (k,)
        Points of the curve; those that are not finite are left out.

    Returns
    -------
    str
        An SVG element, with a line at zero where the values change sign; "" for fewer than two
        points.
    """
    width, height = 220, 44  # pixels
    x, y = np.asarray(time, float), np.asarray(values, float)
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < 2 or x[-1] <= x[0]:
        return ""
    low, high = float(y.min()), float(y.max())
    span = high - low if high > low else 1.0

    def at(value: NDArray[np.float64] | float) -> Any:
        return 3 + (height - 6) * (high - np.asarray(value)) / span

    across = 1 + (width - 2) * (x - x[0]) / (x[-1] - x[0])
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, at(y), strict=True))
    zero = ""
    if low < 0 < high:
        level = f"{float(at(0.0)):.1f}"
        zero = f'<line x1="0" x2="{width}" y1="{level}" y2="{level}" stroke-opacity="0.35"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" stroke="currentColor" fill="none" role="img" '
        f'aria-label="from {y[0]:.4g} to {y[-1]:.4g}">{zero}'
        f'<polyline points="{points}" stroke-width="1.3"/></svg>'
    )


def plain(value: Any, longest: int = 2000) -> str:
    """Convert any value to printable text, cut where it is long."""
    text = printable(value.decode(errors="replace") if isinstance(value, bytes) else str(value))
    return text if len(text) <= longest else f"{text[: longest - 4]} ..."


def escaped(value: Any) -> str:
    """Convert any value to text of a page."""
    return html.escape(plain(value), quote=True)
