"""`ds.wflow`: what a run shows of itself, and its figures, checks and distances.

xarray gives the accessor to every Dataset, and to every node of a tree, once this module is loaded.
The root of the package loads it with the names that make or open runs (`wflow.solve`, `sweep`,
`rerun`, `open`, `open_study`, `distributed`), so that `import wflow` loads neither xarray nor this.
It stands on the floor of the figures, since it reaches everything below: figures, `verify`,
clusters and distances.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray
from numpy.typing import ArrayLike

from wflow._core.checks import check_choice
from wflow._core.errors import InputError
from wflow._core.printable import printable
from wflow.analysis.description import with_error
from wflow.distributed.sweep import AXES, FAILURE
from wflow.plots.charts import escaped, sparkline
from wflow.plots.figure import budget_advice, require
from wflow.runs.schema import flow_name, head_count, is_movement, law_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import DataArray, Dataset

    from wflow.analysis.verify import Report

__all__ = ["RunAccessor"]

SCALE = 0.0447
"""Radians within which two tokens are of one cluster: their inner product is 0.999."""
_POINTS = 200  # of a small curve: more cannot be seen
_LEVELS = {  # variable -> what the table calls it, at both ends
    "energy": "energy",
    "speed_sq": "mean squared speed",
    "ess": "effective tokens of the attention",
    "absorbed": "share of coordinates absorbed",
}
_TERMS = {  # variable -> what the table calls its integral, and the sign of it in the balance
    "work_weights": ("drift of the heads", 1),
    "work_ito": ("Itô correction", 1),
    "work_diffusion": ("diffusion of the tokens", 1),
    "martingale": ("martingale", 1),
    "martingale_tokens": ("martingale of the tokens", 1),
    "dissipated": ("minus dissipation", -1),
}
_RESIDUALS = {
    "edi_residual": "residual",
    "edi_residual_upper_gradient": "residual with G² for the dissipation",
    "edi_residual_stratonovich": "residual with the Stratonovich integral",
}


class RunAccessor:
    """A run of `wflow.solve`, `wflow.open` or `wflow.open_study` as an object: `run.wflow`.

    Shown by itself, in a notebook or by `print`, it says what was run and accounts for the energy.
    The table of `wflow.sweep` has it as well: it shows the axes, and `plot` draws a quantity.

    Parameters
    ----------
    ds : xarray.Dataset
        The run.

    Examples
    --------
    >>> import wflow
    >>> x0 = wflow.tokens.uniform(n=8, d=3, seed=0)
    >>> run = wflow.solve(x0, wflow.heads.Frozen(), heads=2, t_final=0.5, dt=0.05)
    >>> print(str(run.wflow).splitlines()[0])
    <wflow run: Frozen heads, softmax, descent, euler>
    >>> run.wflow.verify().passed
    True
    >>> run.wflow.w2().dims
    ('snapshot_path', 'snapshot')
    >>> run.wflow.clusters()["count"].values.shape
    (1, 2)
    """

    def __init__(self, ds: Dataset) -> None:
        self._ds = ds

    # What was run
    # ------------

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the run, from which `wflow.rerun` repeats it.

        Raises
        ------
        InputError
            For a Dataset without the attributes of a run.
        """
        try:
            found = json.loads(self._ds.attrs["config"])
        except (KeyError, TypeError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise InputError(
                "the Dataset is no run of wflow: it lacks the attribute config; take the one of "
                "wflow.solve or wflow.open (arithmetic on a Dataset drops attributes)"
            )
        return found

    def budget(self) -> Dataset:
        r"""Return the energy at both ends of the run, and what each term of the balance added.

        Returns
        -------
        xarray.Dataset
            Variables `mean` and `standard_error` over the paths, along `term`: `energy_start`,
            `energy_end`, and the variables of the run file at the last time, with the sign with
            which they enter the balance. NaN where the run recorded nothing, and for the error of
            a single path.

        Raises
        ------
        InputError
            For a run without an energy.

        Notes
        -----
        .. math::

            E(T) - E(0) = \int \text{weight power} + \int \text{Itô power}
            - \int \text{dissipation} + \text{martingale} + \text{residual}
        """
        _ = self.config
        require(self._ds, ["energy"], budget_advice(self._ds))
        rows = self._rows()
        values = np.array([(mean, error) for _, _, mean, error in rows]).reshape(-1, 2)
        attrs = {"long_name": "mean over the paths", "units": "1"}
        return xarray.Dataset(
            {
                "mean": ("term", values[:, 0], attrs),
                "standard_error": ("term", values[:, 1], attrs | {"long_name": "standard error"}),
            },
            {"term": [name for name, *_ in rows]},
        )

    # What can be asked of it
    # -----------------------

    def plot(self, kind: str | None = None, *, ax: Axes | None = None, **options: Any) -> Figure:
        """Draw a figure of the run, or of the table of `wflow.sweep`.

        Parameters
        ----------
        kind : {"energy_balance", "gradient_over_time", "speed", "tokens", "density", \
                "free_energy"}, optional
            Which one; by default the energy balance, and the speed of a run without an energy. Of a
            sweep the variable that `wflow.plots.sweep` draws.
        ax : matplotlib.axes.Axes, optional
            Existing Axes to draw in, in its own style. Default: a new figure in the style of wflow.
        **options
            Of `wflow.plots.energy_balance`, `wflow.plots.gradient_over_time` (also for "speed"),
            `wflow.plots.token_snapshots`, `wflow.plots.density_snapshots`
            or `wflow.plots.free_energy_over_time`.

        Returns
        -------
        matplotlib.figure.Figure
            The new figure, or the one of `ax`.

        Raises
        ------
        InputError
            For another kind, and for a figure of which the run lacks the data; the message names
            the option of `wflow.solve` that records it.
        """
        from wflow.plots import runs, sweeps

        if AXES in self._ds.attrs:
            return sweeps.sweep(self._ds, kind, ax=ax, **options)
        ds, _ = self._ds, self.config
        if kind is None:
            kind = "energy_balance" if "energy" in ds else "speed"
        if kind in ("gradient_over_time", "speed"):
            name = "speed_sq" if kind == "speed" else "upper_gradient_sq"
            return runs.gradient_over_time(ds, name, ax=ax, **options)
        figures = {
            "energy_balance": runs.energy_balance,
            "tokens": runs.token_snapshots,
            "density": runs.density_snapshots,
            "free_energy": runs.free_energy_over_time,
        }
        check_choice("kind", kind, ("gradient_over_time", "speed", *figures))
        return figures[kind](ds, ax=ax, **options)

    def verify(self, tolerance: float | None = None) -> Report:
        """Check that the numbers of the run follow from its configuration, and its balance closes.

        Parameters
        ----------
        tolerance : float, optional
            Of `wflow.verify`: mean residual that passes, as a share of the energy turned
            over.

        Returns
        -------
        wflow.verify.Report
            One `Check` for each statement. A Dataset has no digests; those of a file are compared
            by ``wflow.verify(file)``.
        """
        from wflow.analysis.verify import TOLERANCE, verify

        return verify(self._ds, TOLERANCE if tolerance is None else tolerance)

    def w2(self, to: str | Path | ArrayLike | Dataset = "final", **options: Any) -> DataArray:
        """Return Wasserstein distances W₂ of the token snapshots along the run.

        Parameters
        ----------
        to : {"final", "initial", "previous"}, array_like, path or xarray.Dataset
            From what: a snapshot of the same path, a cloud (m, d), or another run.
        **options
            Of `wflow.transport.over_time`, such as `paths` and `cost`.

        Returns
        -------
        xarray.DataArray
            Distances (snapshot_path, snapshot).

        Raises
        ------
        InputError
            For a run without snapshots of tokens, and what `wflow.transport.over_time` refuses.
        """
        from wflow.transport.distances import over_time

        return over_time(self._ds, to=to, p=2.0, **options)

    def clusters(
        self, scale: float = SCALE, *, quantities: Sequence[str] | None = None, **options: Any
    ) -> Dataset:
        """Return clusters, order and entropy of the tokens at every snapshot of the run.

        Parameters
        ----------
        scale : float
            Radians up to which tokens are linked. By default their inner product is 0.999, as in
            the study `clustering`.
        quantities : sequence of str, optional
            Names of `wflow.clusters.QUANTITIES`; by default all of them.
        **options
            Of `wflow.clusters.over_time`.

        Returns
        -------
        xarray.Dataset
            A variable (snapshot_path, snapshot) for each quantity.

        Raises
        ------
        InputError
            For a run without snapshots of tokens, and what `wflow.clusters.over_time` refuses.
        """
        from wflow.analysis.clusters import over_time

        return over_time(self._ds, scale, quantities=quantities, **options)

    # What it shows of itself
    # -----------------------

    def __repr__(self) -> str:
        if AXES in self._ds.attrs:
            return "\n".join(printable(line, lines=False) for line in self._sweep_lines())
        try:
            title, facts = self._title(), self._facts()
        except InputError:
            return "<wflow: not a run>"
        lines = [f"<wflow run: {title}>", *(f"  {text}" for text in facts)]
        rows = self._rows()
        width = max((len(words) for _, words, _, _ in rows), default=0)
        lines += [f"  {words:<{width}}  {_number(mean, error)}" for _, words, mean, error in rows]
        return "\n".join(printable(line, lines=False) for line in lines)

    def _repr_html_(self) -> str:
        if AXES in self._ds.attrs:
            return f"<div>{'<br/>'.join(map(escaped, self._sweep_lines()))}</div>"
        try:
            title, facts = self._title(), self._facts()
        except InputError as error:
            return f"<div>{escaped(str(error))}</div>"
        body = "".join(
            f'<tr><td style="text-align: left">{escaped(words)}</td>'
            f'<td style="text-align: right">{escaped(_number(mean, error))}</td></tr>'
            for _, words, mean, error in self._rows()
        )
        table = f"<table><tbody>{body}</tbody></table>" if body else ""
        curves = "".join(
            f'<figure style="margin: 0">{svg}<figcaption>{escaped(words)}</figcaption></figure>'
            for words, svg in self._curves()
        )
        return (
            f"<div><strong>wflow run: {escaped(title)}</strong>"
            f"<div>{'<br/>'.join(map(escaped, facts))}</div>"
            f'<div style="display: flex; gap: 2em; align-items: center">{table}'
            f"<div>{curves}</div></div></div>"
        )

    def _sweep_lines(self) -> list[str]:
        """Return what the table of a sweep is: its axes and quantities, and how many failed."""
        ds = self._ds
        axes = [f"{name} ({ds.sizes.get(name, 1)})" for name in str(ds.attrs[AXES]).split()]
        lines = [f"<wflow sweep: {', '.join(axes)}>", f"  {', '.join(map(str, ds.data_vars))}"]
        if FAILURE in ds.coords and (failed := int((ds[FAILURE] != "").sum())):
            lines.append(f"  {failed} of {ds[FAILURE].size} points failed, see {FAILURE}")
        return lines

    def _title(self) -> str:
        """Return law, flow, direction and scheme."""
        config, attrs = self.config, self._ds.attrs
        if is_movement(config):
            metric, direction = attrs.get("metric", "?"), config.get("direction", "?")
            return f"minimizing movements, metric {metric}, {direction}"
        if "sampler" in config:
            return (
                f"sampler {config['sampler']}, h = {config.get('h')}, beta = {config.get('beta')}"
            )
        scheme = config.get("scheme", "?")
        words = [f"{law_name(config) or 'unnamed'} heads", flow_name(config)]
        words.append(str(config.get("direction", "?")))
        words.append(str(scheme.get("name", "?") if isinstance(scheme, dict) else scheme))
        words += ["causal mask"] if config.get("causal") else []
        words += [f"kappa = {config['kappa']:g}"] if config.get("kappa") else []
        return ", ".join(words)

    def _facts(self) -> list[str]:
        """Return sizes, times, and whether the run is complete."""
        ds, config = self._ds, self.config
        sizes = ds.sizes
        paths = sizes.get("path", 1)
        count = head_count(config, sizes)
        sampler = "sampler" in config
        words = [] if sampler else [f"{count or '?'} head{'s' if count != 1 else ''}"]
        words.append(f"{sizes.get('token', '?')} tokens, d = {sizes.get('axis', '?')}")
        words.append(f"{paths} path{'s' if paths != 1 else ''}")
        recorded = sizes.get("time", 0)
        end = f"t = 0 to {config.get('t_final', '?')}, dt = {config.get('dt', '?')}"
        end = f"{config.get('steps', '?')} steps" if sampler else end
        words += [end, f"seed {config.get('seed', '?')}"]
        facts = [", ".join(words), f"{recorded} recorded times"]
        if "snapshot" in ds.sizes:
            facts[-1] += f", {sizes['snapshot']} snapshots"
        if not ds.attrs.get("complete", 1):
            facts.append("NOT COMPLETE: finish it with --resume")
        return facts

    def _rows(self) -> list[tuple[str, str, float, float]]:
        """Return lines of the table: name, name in words, mean over the paths, standard error."""
        ds = self._ds
        if not ds.sizes.get("time"):
            return []
        rows = []
        for name, words in _LEVELS.items():
            for place, when in ((0, "start"), (-1, "end")) if name in ds else ():
                rows.append((f"{name}_{when}", f"{words} at the {when}", *_mean(ds, name, place)))
        for name, (words, sign) in _TERMS.items():
            if name in ds:
                mean, error = _mean(ds, name, -1)
                rows.append((name, words, sign * mean if mean else mean, error))
        for name, words in _RESIDUALS.items():
            rows += [(name, words, *_mean(ds, name, -1))] if name in ds else []
        return rows

    def _curves(self) -> list[tuple[str, str]]:
        """Return captions and drawings of what goes over time."""
        captions = _LEVELS | {"edi_residual": "residual"}
        curves = []
        for name, words in captions.items():
            ds = self._ds
            if name not in ds or ds.sizes.get("time", 0) < 2:
                continue
            step = max(1, math.ceil(ds.sizes["time"] / _POINTS))
            part = ds[name][..., ::step]
            with np.errstate(invalid="ignore"):
                mean = part.mean("path") if "path" in part.dims else part
            drawn = sparkline(part["time"].values, mean.values)
            if drawn:
                curves.append((f"{words} over time", drawn))
        return curves


def _mean(ds: Dataset, name: str, place: int) -> tuple[float, float]:
    """Return mean and standard error over the paths at a place in time; NaN where unknown."""
    from wflow.analysis.fits import mean_and_error

    values = np.atleast_1d(np.asarray(ds[name].isel(time=place).values, float))
    known = values[np.isfinite(values)]
    if not known.size:
        return math.nan, math.nan
    mean, error = mean_and_error(known)
    return float(mean), float(error)


def _number(mean: float, error: float) -> str:
    return "not recorded" if math.isnan(mean) else with_error(mean, error)


def _of_node(node: xarray.DataTree) -> RunAccessor:
    """Return the accessor of the Dataset in a node of a tree."""
    return RunAccessor(node.to_dataset())


xarray.register_dataset_accessor("wflow")(RunAccessor)
xarray.register_datatree_accessor("wflow")(_of_node)
