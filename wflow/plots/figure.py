"""Shared parts of figures: style, layout, reading of a Dataset, curves with bands, files."""

import contextlib
import io
import json
import math
import os
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import check_choice, path_of, reals, shown, whole
from wflow._core.errors import InputError
from wflow.analysis.description import mean_and_spread
from wflow.plots.style import STYLE as STYLE
from wflow.plots.style import style as style
from wflow.runs import schema
from wflow.runs.results import CREATOR, replace_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import DataArray, Dataset

COLUMN = 3.3  # inches: one column of a journal page
PAGE = 6.9  # inches: both columns
MAX_POINTS = 2000  # of a curve: more cannot be seen at 200 dpi and make the PDF heavy
MAX_PANELS = 6  # of snapshots, unless their times are given
MAX_FRAMES, MAX_TOKENS = 150, 2000  # of clouds in motion, in an animation and in a report
BAND = (10.0, 90.0)  # percentiles over the paths

Band = Literal["percentiles", "error", "range", "logarithms"]
Style = Literal["screen", "paper"]


def save(figure: "Figure", out_dir: str | Path, stem: str) -> list[Path]:
    """Write a figure as `stem`.png (200 dpi) and `stem`.pdf into a folder, made if missing.

    Each file appears under its name only when it is whole; an earlier file is kept until then.

    Raises
    ------
    InputError
        Where the folder cannot be written, or a file that wflow did not write has one of the names.
    """
    folder = path_of(out_dir, "out_dir")
    made = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    files = [folder / f"{stem}.png", folder / f"{stem}.pdf"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_files(folder, {file.name: partial(draw, figure, file.suffix[1:]) for file in files})
    except BaseException as error:
        for place in made:  # innermost first; one that is not empty stays, and those around it
            with contextlib.suppress(OSError):
                place.rmdir()
        if not isinstance(error, OSError):
            raise
        raise InputError(
            f"cannot write the figure {files[0]}: {error.strerror or error}; correct this, or "
            "give another folder. The runs are kept: `wflow plot` draws their figures again, and "
            "so does a study with --resume"
        ) from None
    return files


def draw(figure: "Figure", kind: str, file: Path) -> None:
    """Write a figure as a PNG or PDF that names wflow as its creator."""
    # Without a date the same run gives the same bytes.
    pdf = {"CreationDate": None, "Creator": CREATOR}
    drawn = io.BytesIO()  # on a full disk Matplotlib's own clean-up fails in turn
    with style():
        figure.savefig(drawn, format=kind, metadata=pdf if kind == "pdf" else {"Software": CREATOR})
    file.write_bytes(drawn.getvalue())


def check_run(ds: Any, name: str = "ds") -> None:
    """Raise InputError unless `ds` is a Dataset whose configuration can be read."""
    if not hasattr(ds, "data_vars"):
        raise InputError(
            f"{name} is {shown(ds)}: expected the Dataset of a run, from wflow.solve or wflow.open"
        )
    try:
        fits = isinstance(json.loads(ds.attrs.get("config", "{}")), dict)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise InputError(f"the attribute config of {name} is no configuration of a run")
    if "inequality_gap" in ds:
        raise InputError(
            f"{name} are minimizing movements, which have no paths to draw: draw a variable over "
            "time (ds.energy.plot()), or write a page of them by wflow.report"
        )


def require(ds: "Dataset", names: Sequence[str], advice: str) -> None:
    """Raise InputError unless the run holds these variables; the advice says what records them."""
    missing = [name for name in names if name not in ds.variables]
    if missing:
        stored = ", ".join(sorted(map(str, ds.data_vars)))
        raise InputError(
            f"the run holds no {', '.join(missing)[:200]}; it holds {stored or 'nothing'}. {advice}"
        )


def budget_advice(ds: "Dataset", name: str = "") -> str:
    """Return advice for a run without a variable, or some terms, of the energy budget."""
    if name == "speed_sq":
        return schema.solve_with("budget=False")
    advice = schema.solve_with("budget=True")
    if "energy" in ds:
        return advice
    return (
        f"{advice}; general (Q, K, V) or causal heads have no energy: of those draw the speed, "
        'wflow.plots.gradient_over_time(run, "speed_sq")'
    )


def head_count(ds: "Dataset") -> int:
    """Return the number H of heads of a run.

    Raises
    ------
    InputError
        For a Dataset that does not record it.
    """
    count = schema.head_count(config(ds), ds.sizes)
    if count is None and "sampler" in config(ds):
        raise InputError(
            "the run is that of a sampler, which has no heads: draw its sample_variance, ess and "
            "speed_sq over time, or its samples"
        )
    if count is None:
        raise InputError("the number of heads is not in the run: no dim head, none in config")
    return count


def config(ds: "Dataset") -> dict[str, Any]:
    return dict(json.loads(ds.attrs.get("config", "{}")))


def series(ds: "Dataset", name: str) -> tuple[NDArray, NDArray]:
    """Return times (k,) and values (paths, k) of a variable, thinned, infinities as NaN."""
    if name not in ds or set(ds[name].dims) != {"path", "time"}:
        known = name in schema.VARIABLES
        require(
            ds.drop_vars(name, errors="ignore"),
            [name],
            budget_advice(ds, name) if known else "Give the name of a variable (path, time)",
        )
    length = ds.sizes["time"]
    if not ds[name].size:
        raise InputError(
            f"the run has no values of {name}: no time was recorded; finish it with --resume"
        )
    step = max(1, math.ceil(length / MAX_POINTS))
    keep = np.unique(np.append(np.arange(0, length, step), length - 1))  # the end always shows
    part = ds[name].transpose("path", "time").isel(time=keep)
    values = np.array(part.values, dtype=float)
    values[~np.isfinite(values)] = np.nan
    return np.asarray(part["time"].values, dtype=float), values


def stored_path(ds: "Dataset", path: Any, what: str) -> int:
    """Return the place of a path among those whose snapshots a run keeps.

    Raises
    ------
    InputError
        For a path that is not stored.
    """
    stored = [int(p) for p in np.atleast_1d(ds["snapshot_path"].values)]
    if isinstance(path, str) or whole(path, "path", 0) not in stored:
        save = "paths=[the paths to draw]" + (", heads=True" if what == "heads" else "")
        raise InputError(
            f"no {what} of path {shown(path)} in the run: stored are paths {stored}. "
            f"{schema.solve_with(save)}"
        )
    return stored.index(int(path))


def snapshots(
    ds: "Dataset",
    name: str,
    which: Any,
    times: Sequence[float] | None = None,
    *,
    most: int = MAX_PANELS,
    least: int = 1,
) -> tuple[NDArray, "DataArray"]:
    """Return times (k,) and values (snapshot, ...) to draw, of snapshots that were reached.

    Parameters
    ----------
    ds : a run
    name : "tokens" or "density"
    which : "mean" over the paths, or the number of a path
    times : of the snapshots; None for all, or `most` of them, spread evenly
    least : how many are needed

    Raises
    ------
    InputError
        For snapshots that are not stored.
    """
    what = {"tokens": "tokens", "density": "densities"}[name]
    mean = isinstance(which, str) and which == "mean"
    name = f"{name}_mean" if mean else name
    save = "snapshots=[times]" if least == 1 else "snapshots=np.linspace(0, t_final, 100)"
    advice = schema.solve_with(save if mean else f"{save}, paths=[the path]")
    require(ds, ["snapshot", name] if mean else ["snapshot", "snapshot_path", name], advice)
    if not ds[name].size:
        raise InputError(f"the run holds no snapshot of the {what}. {advice}")
    stored = ds[name] if mean else ds[name].isel(snapshot_path=stored_path(ds, which, what))
    stored = stored.transpose("snapshot", ...)
    at = np.asarray(ds["snapshot"].values, float)
    first = stored.isel({dim: 0 for dim in stored.dims[1:]})
    reached = np.flatnonzero(np.isfinite(first.values))
    if len(reached) < least:
        raise InputError(
            f"the run holds {what} at {len(reached)} times, and needs {least} or more. {advice}"
        )
    if times is None:
        reached = reached[evenly(len(reached), most)]
        return at[reached], stored.isel(snapshot=reached)
    wanted = reals(times, "times")
    if wanted.ndim != 1 or not wanted.size:
        raise InputError(f"times are {shown(times)}: expected a list of snapshot times")
    gaps = np.abs(at[reached, None] - wanted)
    lost = wanted[gaps.min(axis=0) > 1e-6 * max(1.0, float(np.abs(at).max()))]
    if lost.size:
        known = ", ".join(f"{t:g}" for t in at)
        raise InputError(f"no snapshot at t = {lost[0]:g}: stored are {known}. {advice}")
    reached = reached[gaps.argmin(axis=0)]
    return at[reached], stored.isel(snapshot=reached)


def check_one_time(count: int) -> None:
    """Raise InputError for several times that were asked for, to be drawn in one Axes."""
    if count > 1:
        raise InputError(f"ax is one Axes, and there are {count} times to draw: give one of times")


def width_in(style: Style, screen: float = PAGE) -> float:
    """Return the width of a figure in inches, on paper one column; refuses other styles."""
    check_choice("style", style, ("screen", "paper"))
    return screen if style == "screen" else COLUMN


def rounded(times: ArrayLike) -> list[float]:
    """Return times to about a hundredth of the last, and finer where two would be equal."""
    at = np.asarray(times, float)
    decimals = 2 - math.floor(math.log10(max(np.abs(at).max(initial=0.0), 1e-300)))
    distinct = len(set(at.tolist()))
    while len({round(t, decimals) for t in at.tolist()}) < distinct and decimals < 300:
        decimals += 1
    return [round(t, decimals) for t in at.tolist()]


def time_texts(times: ArrayLike) -> list[str]:
    """Return the times that `rounded` returns as text, with all of their digits."""
    return [f"{t:.15g}" for t in rounded(times)]


def rectangle(count: int, most: int) -> tuple[int, int]:
    """Return rows and columns, at most so many, that so many panels fill or nearly fill."""
    if count <= most:
        return 1, count
    columns = min(range(most, most // 2, -1), key=lambda columns: -count % columns)
    return math.ceil(count / columns), columns


def snapshot_panels(
    times: NDArray, note: str, style: Style, height_of: Callable[[float, int], float]
) -> tuple["Figure", NDArray]:
    """Make a panel for each time, in a rectangle, and a note below; returns figure and Axes.

    Parameters
    ----------
    times : (k,)
    note : it is broken into lines
    style : of the figure
    height_of : (width of a panel, rows) -> height of a row, inches
    """
    full = width_in(style)
    rows, columns = rectangle(len(times), 5 if full > COLUMN else 3)
    width = full if columns > 2 else COLUMN
    note = textwrap.fill(note, int(17 * width))
    height = rows * height_of(width / columns, rows) + 0.25 + 0.14 * note.count("\n")
    figure, axes = grid(rows, columns, width, height)
    for axis, t in zip(axes.flat, time_texts(times), strict=False):
        axis.set_title(f"$t$ = {t}", loc="center", pad=2)
    for empty in axes.flat[len(times) :]:
        empty.set_axis_off()
    figure.supxlabel(note, fontsize=8.0, color="0.25")
    return figure, axes


def grid(
    rows: int, columns: int, width: float, height: float, **options: Any
) -> tuple["Figure", NDArray]:
    from wflow.plots.inline import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


@contextmanager
def panel(ax: "Axes | None", width: float, height: float) -> Iterator[tuple["Figure", "Axes"]]:
    """Give a figure of one panel in the style of wflow, or the given Axes in their own style.

    Raises
    ------
    InputError
        For something that is no Axes.
    """
    if ax is None:
        with style():
            figure, axes = grid(1, 1, width, height)
            yield figure, axes[0, 0]
        return
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    if not isinstance(ax, Axes):
        raise InputError(
            f"ax is {shown(ax)}: expected one Axes of Matplotlib, as from plt.subplots(), or None"
        )
    owner: Figure | SubFigure | None = ax.figure
    while isinstance(owner, SubFigure):
        owner = owner.figure
    if owner is None:
        raise InputError("ax was removed from its figure: give an Axes that is still in one")
    yield owner, ax


def curve(
    axis: "Axes",
    time: NDArray,
    values: NDArray,
    *,
    band: Band = "percentiles",
    band_alpha: float,
    **line: Any,
) -> None:
    """Draw the mean over the paths of (paths, k), and a band: percentiles, its error, the range.

    Percentiles and error leave out values that are not finite, the range does not; "logarithms" is
    the range around the geometric mean.
    """
    recorded = np.isfinite(values).any(axis=0)
    time, values = time[recorded], values[:, recorded]
    marked = line.get("markevery")
    if not len(time):
        line.pop("markevery", None)  # nothing to mark: the label alone shows
    elif marked is not None:
        line["markevery"] = [k for k in marked if k < len(time)]
    if band == "logarithms":
        mean = np.exp(np.log(values).mean(axis=0))
    else:
        mean = (np.mean if band == "range" else np.nanmean)(values, axis=0)
    axis.plot(time, mean, zorder=3, **line)
    if values.shape[0] > 1 and values.size:
        if band == "percentiles":
            low, high = np.nanpercentile(values, BAND, axis=0)
        elif band != "error":
            low, high = values.min(axis=0), values.max(axis=0)
        else:
            error = np.nanstd(values, axis=0, ddof=1) / math.sqrt(values.shape[0])
            low, high = mean - error, mean + error
        axis.fill_between(
            time, low, high, color=line["color"], alpha=band_alpha, linewidth=0, zorder=1
        )


def evenly(count: int, most: int) -> NDArray[np.intp]:
    """Return at most so many of `count` places at even distances, with the first and the last."""
    return np.unique(np.round(np.linspace(0, count - 1, min(count, most))).astype(np.intp))


def spaced(length: int, marks: int, curve: int, curves: int) -> list[int]:
    """Return places of some markers of a curve, shifted from curve to curve so that none meet."""
    offset = (curve + 0.5) / max(curves, 1)
    places = (np.arange(marks) + offset) / marks * (length - 1)
    return [int(p) for p in np.unique(np.round(places))]


def shade(place: int, count: int) -> tuple[float, float, float, float]:
    """Return the colour of one of several curves that have an order."""
    from matplotlib import colormaps

    return colormaps["viridis"](0.84 * place / max(count - 1, 1))


def caption(figure: "Figure", text: str) -> None:
    """Write what all panels share above them."""
    figure.suptitle(text, fontsize=8.5, x=0.01, ha="left")


def legend_below(figure: "Figure", axis: "Axes", ncols: int, **options: Any) -> None:
    """Put the legend of one panel below all."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=ncols, **options)


def log_log(axis: "Axes") -> None:
    """Make both axes logarithmic, after the curves are drawn."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    log_axis(axis)


def time_axis(axis: "Axes") -> None:
    """Label the axis of time, with ticks at round numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.margins(x=0.01)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axis.set_xlabel("Time $t$")


def log_axis(axis: "Axes") -> None:
    """Give a log axis of y at least a decade, so that a flat curve looks flat, and plain ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_ylim()
    margin = max(0.0, 1.0 - math.log10(high / low)) / 2
    low, high = low / 10**margin, high * 10**margin
    axis.set_ylim(low, high)
    if high / low < 50:  # one or two powers of ten say little about a scale
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def facts(ds: "Dataset", heads: bool = True, paths: bool = True) -> str:
    """Return sizes of the run, for the title of a figure."""
    facts = [f"$H$ = {head_count(ds)}"] if heads else []
    facts += [f"${s}$ = {ds.sizes[k]}" for s, k in (("n", "token"), ("d", "axis")) if k in ds.sizes]
    kappa = config(ds).get("kappa")
    facts += [rf"$\kappa$ = {kappa:g}"] if kappa else []
    count = ds.sizes.get("path", 1)
    if paths:
        facts.append(f"{count} paths" if count > 1 else "1 path")
    if not ds.attrs.get("complete", 1):
        facts.append("run not complete")
    return ", ".join(facts)


def step_error(ds: "Dataset") -> str:
    """Say what the residual of the energy balance of a run is, and how to check it."""
    from wflow.analysis.verify import stepping

    settings = config(ds)
    try:
        scheme, chosen = stepping(ds, settings)
    except (InputError, KeyError, TypeError):
        return "Error of the steps: halve dt to check"
    if chosen and "token" in ds.sizes:
        return f"Error of the steps that {scheme.name} chooses: lower its tolerances to check"
    noisy = "work_ito" in ds and bool(np.any(np.nan_to_num(ds["work_ito"].values)))
    noisy |= bool(settings.get("kappa")) and "token" in ds.sizes
    power = {2: "²", 3: "³", 4: "⁴", 5: "⁵"}.get(1 if noisy else scheme.order, "")
    name = f"{scheme.name} with noise" if noisy else scheme.name
    if "numerical_diffusion" in ds:
        return f"Error of steps and cells, dt{power} ({name}): refine both to check"
    return f"Step error, order dt{power} ({name}): halve dt to check"


def band_note(band: Band) -> str:
    """Return the meaning of a curve and its band, for the end of a title."""
    if band == "error":
        return "; line: mean, band: ± standard error"
    return f"; line: mean, band: {BAND[0]:.0f}\N{EN DASH}{BAND[1]:.0f} % of paths"


def mean_label(values: NDArray) -> str:
    """Return mean ± standard error of (paths,), with the digits that the error leaves."""
    return minus(mean_and_spread(values)) if np.isfinite(values).any() else "not finite"


def at_end(values: NDArray) -> NDArray:
    """Return values (paths,) of (paths, k) at the last time at which any is finite; or NaN."""
    known = np.flatnonzero(np.isfinite(values).any(axis=0))
    return values[:, known[-1]] if known.size else np.full(len(values), np.nan)


def last_mean(values: NDArray) -> float:
    """Return the mean over the paths of (paths, k) at the last recorded time; -inf for none."""
    last = at_end(values)
    known = last[np.isfinite(last)]
    return float(known.mean()) if known.size else -math.inf


def minus(number: str) -> str:
    return number.replace("-", "\N{MINUS SIGN}")
