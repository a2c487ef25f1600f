"""`wflow.compare`: in what two runs differ, in settings and in numbers."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import number, switch
from wflow._core.errors import InputError, RunFileError
from wflow._core.printable import printable
from wflow._core.reprs import value_text
from wflow.analysis.verify import turned_over
from wflow.plots.charts import escaped
from wflow.plots.figure import Style, evenly, grid, time_axis, width_in
from wflow.plots.style import style as settings
from wflow.runs.read import config_of, parse_config
from wflow.runs.schema import COORDINATES
from wflow.runs.snapshots import dataset_of, same_times
from wflow.transport.distances import over_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from xarray import DataArray, Dataset

__all__ = ["Comparison", "compare"]

_BLOCK = 2**22  # values of each run in memory at a time
_PAIRS = 2**23  # pairs of tokens in all distances that are computed unasked: some seconds
_PROVENANCE = ("wflow_version", "numpy_version", "numba_version")
_DRAWN = ("energy", "free_energy", "speed_sq", "upper_gradient_sq", "edi_residual")
_BUDGET = ("energy", "work_weights", "work_ito", "dissipated")
_MEANS = ("tokens_mean", "density_mean")  # over all paths
_ROWS = 12  # of a repr
_DIGITS = 12  # of a digest

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Result of `wflow.compare`: `same` if the numbers of two runs agree.

    Parameters
    ----------
    names : tuple of str
        What the runs are called.
    settings : dict
        Settings that differ, by name, as a pair of values; None where a run lacks it. Of arrays
        the digests are compared. The versions of wflow, NumPy and Numba are among them.
    quantities : xarray.Dataset
        Along `quantity`: the largest `absolute` difference, the same in units of the largest value
        of the quantity (`relative`; of a residual in units of the energy turned over), the `time`
        of it, and the `last` time of the comparison, NaN for what has no time.
    w2 : xarray.DataArray or None
        Distances W₂ between the tokens of both, (snapshot_path, snapshot); None where they were
        not computed.
    curves : dict
        Means over the common paths of the series that `plot` draws, by name: times, and a value of
        each run.
    notes : tuple of str
        What was not compared, and why.
    tolerance : float
        Relative difference that counts as none.

    Examples
    --------
    >>> import wflow
    >>> x0 = wflow.tokens.uniform(n=8, d=3, seed=0)
    >>> run = wflow.solve(x0, wflow.heads.Frozen(), heads=2, t_final=0.5, dt=0.05)
    >>> isinstance(wflow.compare(run, run), wflow.Comparison)
    True
    """

    names: tuple[str, str]
    settings: dict[str, tuple[Any, Any]]
    quantities: Dataset
    w2: DataArray | None
    curves: dict[str, tuple[Floats, Floats, Floats]]
    notes: tuple[str, ...]
    tolerance: float

    @property
    def same(self) -> bool:
        """Whether each quantity agrees to the tolerance, at least one of them after time 0."""
        found = self.quantities["relative"].values
        return self._decisive and bool((found <= self.tolerance).all())

    @property
    def _decisive(self) -> bool:
        return bool((self.quantities["last"].values > 0).any())

    def to_dataframe(self) -> DataFrame:
        """Return the differences as a table of pandas.

        Returns
        -------
        pandas.DataFrame
            A row for each quantity.
        """
        return self.quantities.to_dataframe()

    def plot(self, *, style: Style = "screen") -> Figure:
        """Draw the energy, the speed and the residuals of both runs, and W₂ along time.

        Parameters
        ----------
        style : {"screen", "paper"}, default: "screen"
            "screen" is 6.9 inches wide, both columns of a journal page; "paper" is 3.3 inches wide,
            one column.

        Returns
        -------
        matplotlib.figure.Figure
            A panel for each; curves are means over the common paths.

        Raises
        ------
        InputError
            For runs that have none of these in common, and another style.
        """
        width = width_in(style)
        count = len(self.curves) + (self.w2 is not None)
        if not count:
            raise InputError("the runs have no series or tokens in common to draw")
        with settings():
            figure, axes = grid(count, 1, width, 1.7 * count + 0.6, sharex=True)
            for axis, (name, (time, *values)) in zip(axes.flat, self.curves.items(), strict=False):
                for each, label, line in zip(values, self.names, ("-", "--"), strict=True):
                    axis.plot(time, each, line, label=printable(label, lines=False))
                axis.set_ylabel(name)
            last = axes.flat[-1]
            if self.w2 is not None:
                mean = self.w2.mean("snapshot_path")
                last.plot(mean["snapshot"], mean, ".-", color="0.3", label="distance")
                last.set_ylabel("$W_2$")
            time_axis(last)
            axes.flat[0].legend()
        return figure

    def _lines(self, most: int | None = None) -> Iterator[tuple[str, str]]:
        """Yield lines, names and texts, of what differs; of each kind at most so many."""
        pairs = list(self.settings.items())
        for name, values in pairs[:most]:
            yield name, " | ".join(_shown(name, value) for value in values)
        if len(pairs) > (most or len(pairs)):
            yield "...", f"{len(pairs)} settings in all"
        table = self.quantities
        order = np.argsort(-table["relative"].values, kind="stable")
        differ = [k for k in order if table["absolute"].values[k] > 0]
        for k in differ[:most]:
            absolute, relative, time = (
                float(table[key].values[k]) for key in ("absolute", "relative", "time")
            )
            at = "" if math.isnan(time) else f", at t = {time:g}"
            text = f"{absolute:.3g} absolute, {relative:.3g} relative{at}"
            yield str(table["quantity"].values[k]), text
        if len(differ) < order.size:
            equal = order.size - len(differ)
            yield ("equal", f"{equal} of {order.size} quantities, bit for bit")
        if len(differ) > (most or len(differ)):
            yield "...", f"{len(differ)} quantities in all"
        if self.w2 is not None:
            worst = self.w2.max("snapshot_path", skipna=False)
            place = int(np.argmax(worst.values))  # of the first NaN, if there is one
            at = f"at t = {float(worst['snapshot'][place]):g}"
            yield "W₂", f"{float(worst[place]):.3g} at most, {at}"
        yield from (("not compared", text) for text in self.notes)

    def _title(self) -> str:
        agree = "the same" if self.same else "different"
        return f"{' and '.join(self.names)}: {agree}"

    def _text(self, most: int | None = None) -> str:
        lines = list(self._lines(most))
        width = max((len(name) for name, _ in lines), default=0)
        texts = [self._title(), *(f"  {name:<{width}}  {text}" for name, text in lines)]
        return "\n".join(printable(text, lines=False) for text in texts)

    def __str__(self) -> str:
        return self._text()

    def __repr__(self) -> str:
        return self._text(_ROWS)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align: left">{escaped(name)}</td>'
            f'<td style="text-align: left">{escaped(text)}</td></tr>'
            for name, text in self._lines(_ROWS)
        )
        title = f"<strong>{escaped(self._title())}</strong>"
        return f"<div>{title}<table><tbody>{rows}</tbody></table></div>"


def compare(
    a: str | Path | Dataset,
    b: str | Path | Dataset,
    *,
    tolerance: float = 0.0,
    w2: bool | None = None,
) -> Comparison:
    r"""Compare two runs: settings, quantities and tokens, where both have them.

    Values are compared at the times, snapshots and paths that both runs have. What has other
    sizes, such as tokens of another number, is left out and named in `notes`. Settings and lengths
    do not decide whether the runs are the same; the numbers do, and at least one of them must
    belong to a time after 0.

    Parameters
    ----------
    a : str, pathlib.Path or xarray.Dataset
        Run file, or the Dataset of a run.
    b : str, pathlib.Path or xarray.Dataset
        The other run.
    tolerance : float, default 0.0
        Largest relative difference that counts as none. With 0 only equal values are the same.
    w2 : bool, optional
        Whether distances W₂ between the tokens are computed, at every common snapshot. None
        computes them at as many snapshots as take some seconds.

    Returns
    -------
    wflow.Comparison
        What differs; `same` if the numbers agree.

    Raises
    ------
    InputError
        For anything but run files and Datasets of runs, and a tolerance below zero.
    RunFileError
        For a file that is no run, or is damaged.

    See Also
    --------
    wflow.verify : Check that the numbers of one run are right.

    Notes
    -----
    With values :math:`q_a` and :math:`q_b` of a quantity, the differences are

    .. math::

        \max |q_a - q_b|, \qquad \frac{\max |q_a - q_b|}{\max(|q_a|, |q_b|)},

    with maxima over all common times, paths and entries. Two NaN are equal; a NaN and a number
    differ by infinity. What rounding leaves of larger terms is measured by these: the residuals of
    the balance by the energy turned over until the last common time, as in `wflow.verify`, and
    `edi_defect` by the dissipation. The tokens of both runs may differ in number for W₂, not in
    dimension.

    Examples
    --------
    >>> import wflow
    >>> x0, law = wflow.tokens.uniform(n=8, d=3, seed=0), wflow.heads.Frozen()
    >>> coarse = wflow.solve(x0, law, heads=2, t_final=0.5, dt=0.05)
    >>> fine = wflow.solve(x0, law, heads=2, t_final=0.5, dt=0.025)
    >>> found = wflow.compare(coarse, fine)
    >>> found.same, found.settings["dt"]
    (False, (0.05, 0.025))
    >>> float(found.w2[0, -1]) < 0.1
    True
    """
    tolerance = number(tolerance, "tolerance", least=0.0)
    w2 = None if w2 is None else switch(w2, "w2")
    with dataset_of(a, "a") as first, dataset_of(b, "b") as second:
        for ds, name in ((first, "a"), (second, "b")):
            config_of(ds, name)
        try:
            return _compared((_called(a, "a"), _called(b, "b")), (first, second), tolerance, w2)
        except (OSError, RuntimeError) as error:  # of HDF5, for values that cannot be read
            raise RunFileError(f"the runs cannot be read: {error}; `wflow verify` them") from None


def _shown(name: str, value: Any) -> str:
    if name.endswith("sha256") and isinstance(value, str):
        return value[:_DIGITS]
    return "-" if value is None else value_text(value)


def _called(run: Any, name: str) -> str:
    return os.fspath(run) if isinstance(run, str | os.PathLike) else name


def _compared(
    names: tuple[str, str], runs: tuple[Dataset, Dataset], tolerance: float, w2: bool | None
) -> Comparison:
    import xarray

    settings = _settings(*(_flat_settings(ds, name) for ds, name in zip(runs, names, strict=True)))
    notes = []
    shared, left_out = _shared(*runs)
    rows: dict[str, tuple[float, float, float, float]] = {}
    curves = {}
    for name in sorted(map(str, {*runs[0].data_vars} | {*runs[1].data_vars})):
        if name in COORDINATES:
            continue
        missing = [called for ds, called in zip(runs, names, strict=True) if name not in ds]
        if missing:
            notes.append(f"{name}, which {missing[0]} does not hold")
            continue
        pair = [ds[name] for ds in shared]
        reason = _unlike(*pair)
        if name in _MEANS and left_out.get("path"):
            reason = "means over other paths"
        if reason:
            notes.append(f"{name}: {reason}")
            continue
        rows[name] = _difference(*pair)
        if scale := max(_scale_of_terms(name, ds) for ds in shared):
            rows[name] = (rows[name][0], rows[name][0] / scale, *rows[name][2:])
        if name in _DRAWN and "time" in pair[0].dims and pair[0].size:
            means = [each.mean("path") if "path" in each.dims else each for each in pair]
            curves[name] = (pair[0]["time"].values, means[0].values, means[1].values)
    notes += [text for text in left_out.values() if text]
    distances, note = _distances(*shared, w2)
    notes += [f"W₂: {note}"] if note else []
    table = np.array(list(rows.values())).reshape(-1, 4)
    if not (table[:, 3] > 0).any():
        notes.append("any quantity after time 0, of which the runs have none in common")
    words = (
        "largest absolute difference",
        "largest relative difference",
        "time of it",
        "last time",
    )
    columns = {
        key: ("quantity", table[:, k], {"long_name": words[k], "units": "1"})
        for k, key in enumerate(("absolute", "relative", "time", "last"))
    }
    quantities = xarray.Dataset(columns, {"quantity": ("quantity", list(rows))})
    drawn = {name: curves[name] for name in _DRAWN if name in curves}
    return Comparison(names, settings, quantities, distances, drawn, tuple(notes), tolerance)


def _flat_settings(ds: Dataset, name: str) -> dict[str, Any]:
    """Return the settings of a run by dotted names."""

    def flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, Mapping):
            for inner, each in value.items():
                yield from flat(each, f"{key}.{inner}" if key else str(inner))
        else:
            yield key, value

    config = parse_config(ds.attrs.get("config", "{}"), name)
    return dict(flat(config, "")) | {key: ds.attrs[key] for key in _PROVENANCE if key in ds.attrs}


def _settings(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = [*a, *(key for key in b if key not in a)]
    return {key: (a.get(key), b.get(key)) for key in keys if _text(a.get(key)) != _text(b.get(key))}


def _text(value: Any) -> str:
    return json.dumps(value, default=repr)


def _shared(a: Dataset, b: Dataset) -> tuple[tuple[Dataset, Dataset], dict[str, str]]:
    """Return the parts of two runs at common times, snapshots and paths, and what is left out."""
    places: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    left_out = {}
    for dim in COORDINATES:
        if dim not in a.dims or dim not in b.dims or dim not in a.coords or dim not in b.coords:
            continue
        x, y = a[dim].values, b[dim].values
        if x.dtype.kind not in "iuf" or y.dtype.kind not in "iuf":
            raise InputError(f"{dim} holds {x.dtype} and {y.dtype}: expected numbers in both runs")
        x, y = same_times(x, y)
        found = np.intersect1d(x, y, return_indices=True)[1:]
        for each, indices in zip(places, found, strict=True):
            each[dim] = _sliced(indices)
        count = len(found[0])
        more = len(x) + len(y) - 2 * count
        word = {"time": "times", "path": "paths"}.get(dim, f"{dim}s".replace("_", " "))
        left_out[dim] = f"{more} {word} that only one run has" if more else ""
    return (a.isel(places[0]), b.isel(places[1])), left_out


def _sliced(places: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Return places without gaps as a slice, by which a file is read faster."""
    gaps = len(places) and places[-1] - places[0] + 1 != len(places)
    return places if gaps else slice(*(places[[0, -1]] + [0, 1] if len(places) else (0, 0)))


def _unlike(x: DataArray, y: DataArray) -> str:
    """Say why two variables cannot be compared; "" where they can."""
    if x.dims != y.dims:
        return f"dimensions {', '.join(map(str, x.dims))}, and {', '.join(map(str, y.dims))}"
    if x.dtype.kind not in "biuf" or y.dtype.kind not in "biuf":
        return "no numbers"
    for dim in x.dims:
        if x.sizes[dim] != y.sizes[dim]:
            return f"{x.sizes[dim]} and {y.sizes[dim]} along {dim}"
    return "" if x.size else "no values in common"


def _difference(x: DataArray, y: DataArray) -> tuple[float, float, float, float]:
    """Return largest absolute and relative difference, its time, and the last, NaN without one."""
    along = next((dim for dim in ("time", "snapshot") if dim in x.dims), None)
    count = 1 if along is None else x.sizes[along]
    step = max(1, _BLOCK * count // x.size)
    largest, scale, when = 0.0, 0.0, math.nan
    for first in range(0, count, step):
        part = {} if along is None else {along: slice(first, first + step)}
        p, q = (np.asarray(each.isel(part).values, np.float64) for each in (x, y))
        with np.errstate(invalid="ignore"):
            gap = np.where((p == q) | (np.isnan(p) & np.isnan(q)), 0.0, np.abs(p - q))
        gap[np.isnan(gap)] = np.inf
        sizes = np.maximum(np.abs(p), np.abs(q))
        scale = max(scale, float(np.max(sizes, where=np.isfinite(sizes), initial=0.0)))
        if (here := float(gap.max(initial=0.0))) > largest:
            largest = here
            if along is not None:
                place = np.unravel_index(np.argmax(gap), gap.shape)[x.dims.index(along)]
                when = float(x[along].values[first + place])
    last = math.nan if along is None else float(x[along].values[-1])
    return largest, largest / scale if scale else largest and math.inf, when, last


def _scale_of_terms(name: str, ds: Dataset) -> float:
    """Return the size of the terms that a residual is what remains of; 0 where it is not known."""
    if name == "edi_defect" and "dissipation" in ds:
        sizes = np.abs(ds["dissipation"].values)
        return float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))
    if name.startswith("edi_residual") and {*_BUDGET} <= {*ds.data_vars}:
        turnover = turned_over(ds)
        known = turnover[np.isfinite(turnover)]
        return float(known.mean()) if known.size else 0.0
    return 0.0


def _distances(a: Dataset, b: Dataset, w2: bool | None) -> tuple[DataArray | None, str]:
    """Return distances between the tokens of two runs, or None and the reason."""
    if w2 is False or any("tokens" not in ds for ds in (a, b)):
        return None, ""
    if not {"snapshot", "snapshot_path"} <= {*a.dims} & {*b.dims}:
        return None, "the tokens of one run have no snapshots"
    n, m, d = a.sizes["token"], b.sizes["token"], a.sizes["axis"]
    if b.sizes["axis"] != d:
        return None, f"tokens of dimensions {d} and {b.sizes['axis']}"
    count, paths = a.sizes["snapshot"], a.sizes["snapshot_path"]
    if not (count and paths and n and m):
        return None, "no snapshot in common"
    most = count if w2 else _PAIRS // (n * m * paths)
    if not most:
        return None, f"{n} and {m} tokens of {paths} paths would take long; w2=True computes it"
    chosen = evenly(count, most)
    times = {"snapshot": a["snapshot"].values[chosen]}
    found = over_time(
        a.isel(snapshot=chosen), to=b.isel(snapshot=chosen).assign_coords(times), p=2.0
    )
    return found, ""
