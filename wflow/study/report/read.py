"""What the report says of a run (`Section`) and of a study (`Study`): numbers, curves, checks.

Sizes are limited so that a page stays small, and the work so that it is quick: at most `FRAMES`
times and `TOKENS` tokens of a run are drawn, and `RUNS` runs of a study have a section.
"""

from __future__ import annotations

import io
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wflow._core.errors import RunFileError, WflowError
from wflow._core.files import opened
from wflow._core.invocation import shell_line
from wflow.analysis.description import describe, mean_and_spread
from wflow.plots.charts import Chart, Curve, Floats, Panel, plain
from wflow.plots.figure import MAX_FRAMES as FRAMES
from wflow.plots.figure import MAX_TOKENS as TOKENS
from wflow.plots.figure import evenly
from wflow.plots.networks import thinned
from wflow.plots.runs import RESIDUALS, TERMS, balance_terms, residual_notes
from wflow.plots.tokens import principal_axes
from wflow.runs.read import open_run
from wflow.runs.results import CREATOR, OF_ONE_RUN, summary_document
from wflow.runs.schema import VARIABLES, head_count, is_movement, law_name, single, solve_with
from wflow.runs.studies import open_study

if TYPE_CHECKING:
    from xarray import Dataset

    from wflow.analysis.verify import Check

RUNS = 12  # of a study that have a section
POSITIONS = 150_000  # of tokens, on the whole page
PICTURES = 700_000  # bytes of the figures of a study on its page
SECONDS = 30.0  # of checks and clusters, on the whole page
SCALE = 0.1  # radians, of the clusters
_PAIRS_PER_SECOND, _BYTES_PER_SECOND, _SECONDS_PER_READ = 1e9, 3e8, 2.5e-3
_REFINED = 2000  # evaluations: 64 paths, up to 15 steps of two stages
_LOADED = 2**26  # bytes of a run that is read at once: each read takes a millisecond
_FAULTS = (WflowError, OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_OTHERS = "all other checks"
_SHORT = 60  # points of a curve of a light page
_SMALL = 250_000  # bytes of the figures of a study on a light page


class Clock:
    """The seconds that checks and clusters of the whole page may take.

    They are estimated from sizes and not measured, so that a page is the same on every machine.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._left = seconds

    def grant(self, seconds: float) -> bool:
        """Whether there is time for a task of so many seconds, which is then taken."""
        if not seconds <= self._left:
            return False
        self._left -= seconds
        return True


# A run
# -----


@dataclass(eq=False)
class Section:
    """What the page shows of one run.

    Attributes
    ----------
    name : title of the section
    file : the run file, None for a run in memory
    complete : whether the run reached its end
    conclusion : what the run found, in a sentence
    partial : whether only the checks of the energy balance were made
    missing : why something is not shown
    facts : the lines of `wflow info`
    charts : curves by their place on the page
    no_tokens : why no tokens are drawn
    density : caption and picture (PNG) of the densities
    balance : terms of the energy balance at the last time
    spectrum : eigenvalues of the heads at the start and at the end
    """

    name: str
    file: Path | None
    config: dict[str, Any]
    facts: list[tuple[str, str]]
    complete: bool
    conclusion: str = ""
    partial: bool = False
    missing: list[str] = field(default_factory=list)
    charts: dict[str, Chart] = field(default_factory=dict)
    cloud: DrawnTokens | None = None
    no_tokens: str = ""
    density: tuple[str, bytes] | None = None
    balance: list[tuple[str, str]] = field(default_factory=list)
    spectrum: list[tuple[str, ...]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    provenance: list[tuple[str, str]] = field(default_factory=list)

    def fact(self, key: str) -> str:
        """Return a line of `wflow info`, or nothing."""
        return dict(self.facts).get(key, "")

    def verdict(self) -> str:
        """Say in words how the checks ended."""
        made = [check for check in self.checks if check.passed is not None]
        failed = sum(not check.passed for check in made)
        if not made:
            return "not checked"
        count = failed or len(made)
        text = f"{count} of {len(made)} checks {'fail' if failed else 'hold'}"
        skipped = len(self.checks) - len(made)
        if self.partial:
            return f"{text}; wflow verify makes the others"
        return text + (f", {skipped} could not be made" if skipped else "")


def read_file(path: Path, clock: Clock, light: bool = False) -> Section:
    """Read a run file, also the .partial of an unfinished run.

    Raises
    ------
    RunFileError
        For a file that is no run, or is damaged.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the page says that a run is not complete
        ds = open_run(path)
    with ds:
        return read_run(ds, path.name.removesuffix(".partial"), clock, light=light)


def read_run(
    ds: Dataset,
    name: str,
    clock: Clock,
    positions: int = POSITIONS,
    points: int = FRAMES,
    *,
    light: bool = False,
) -> Section:
    """Read what the page shows of a run.

    Parameters
    ----------
    ds : a run
    name : title of the section
    clock : seconds left for checks and clusters
    positions : of tokens that may be drawn
    points : of a curve
    light : whether the page is to be small

    Raises
    ------
    RunFileError
        For values that cannot be read, or are not those of a run.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return _section(ds, name, clock, positions, points, light)
    except _FAULTS as error:
        if isinstance(error, WflowError):
            raise
        raise RunFileError(f"{name} cannot be read: {error or type(error).__name__}") from None


def _section(
    ds: Dataset, name: str, clock: Clock, positions: int, points: int, light: bool
) -> Section:
    source = ds.encoding.get("source")
    file = Path(source) if isinstance(source, str) and Path(source).is_file() else None
    if ds.nbytes <= _LOADED:
        ds = ds.load()
    config = json.loads(ds.attrs["config"])
    section = Section(name, file, config, describe(ds), bool(ds.attrs["complete"]))
    if not section.complete:
        reached = f"up to t = {float(ds['time'][-1]):g}" if ds.sizes["time"] else "nowhere yet"
        end = section.fact("time").removeprefix("to ").partition(" in ")[0] or "?"
        section.missing.append(
            f"The run is not complete: it was recorded {reached} of t = {end}. Finish it with "
            "--resume."
        )
    stored = ds
    if is_movement(config):
        ds = _with_paths(ds, config)
    section.conclusion = _conclusion(ds)
    series = _Series(ds, min(points, _SHORT) if light else points)
    notes = residual_notes(ds) if "edi_residual" in ds else []
    step = "".join(f"{note}. " for note in notes)
    step = step and f"The residual is the {step[0].lower()}{step[1:]}"
    cloud = DrawnTokens.read(ds, positions)
    charts = {
        "budget": _budget_chart(series, config, step),
        "gradient": _gradient_chart(series, config),
        "sampler": _sampler_chart(series),
        "movements": _movements_chart(series),
        "free_energy": _free_energy_chart(series),
        "clusters": _cluster_chart(cloud, config, clock),
        "heads": _heads_chart(ds),
    }
    section.charts = {key: chart for key, chart in charts.items() if chart is not None}
    section.cloud = cloud
    if {"tokens", "tokens_mean"} & set(ds):
        section.no_tokens = "None of the recorded tokens can be drawn."
    else:
        advice = solve_with("snapshots=[times]")
        section.no_tokens = f"The run holds no snapshots of tokens. {advice}."
    section.density = _density(ds, light)
    section.balance = _balance(ds)
    section.spectrum = _spectrum(ds)
    section.checks = _checks(stored, file, config, clock)
    section.partial = bool(section.checks) and section.checks[-1].name == _OTHERS
    if any(check.passed is False for check in section.checks):
        section.missing.append(f"{section.verdict()}: see the verification below.")
    section.provenance = _provenance(ds, config, file)
    return section


def _conclusion(ds: Dataset) -> str:
    """Say in a sentence what happened to the energy of a run, or to the speed of its tokens."""
    named = {"energy": "The energy", "speed_sq": "The mean squared speed of the tokens"}
    name = next((name for name in named if name in ds and ds.sizes.get("time")), None)
    if name is None:
        return ""
    values = ds[name].transpose("path", "time").values
    known = np.flatnonzero(np.isfinite(values).any(axis=0))
    if not known.size:
        return f"{named[name]} is not finite."
    last = known[-1]
    start, end = values[:, known[0]], values[:, last]
    verb = "rises" if np.nanmean(end) > np.nanmean(start) else "falls"
    text = f"{named[name]} {verb} from {mean_and_spread(start)} to {mean_and_spread(end)}"
    if name == "energy" and "edi_residual" in ds:
        residual = mean_and_spread(ds["edi_residual"][:, last].values)
        text += f"; the residual of its balance is {residual}"
    return f"{text}."


def _with_paths(ds: Dataset, config: Mapping[str, Any]) -> Dataset:
    """Minimizing movements with axes for their path, as the curves and tokens of a run have."""
    path = [int(config.get("path", 0))]
    series = [name for name in ds.data_vars if ds[name].dims == ("time",)]
    tokens = ds["tokens"].rename(time="snapshot").expand_dims(snapshot_path=path)
    rest = ds.drop_vars([*series, "tokens"])
    return rest.assign(ds[series].expand_dims(path=path)).assign(tokens=tokens)


class _Series:
    """Recorded quantities (paths, k) at times that are few enough to be drawn."""

    def __init__(self, ds: Dataset, points: int) -> None:
        self._ds = ds
        self._paths, total = ds.sizes.get("path", 0), ds.sizes.get("time", 0)
        self._places = evenly(total, points)
        self.time = np.asarray(ds["time"].values[self._places], float) if total else np.empty(0)
        drawn = f"{len(self._places)} of the {total}" if len(self._places) < total else None
        times = f"{drawn or f'All {total}'} recorded times are drawn."
        self.caption = f"The curves are of one path. {times}"
        if self._paths > 1:
            self.caption = (
                f"Curves are means over {self._paths} paths, and bands hold the middle 80 % of "
                f"them. {times}"
            )

    def has(self, name: str) -> bool:
        return len(self.time) > 0 and self._paths > 0 and name in self._ds

    def __getitem__(self, name: str) -> Floats:
        stored = self._ds[name]
        if "axis" in stored.dims:
            stored = stored.mean("axis")
        values = np.asarray(stored.transpose("path", "time").values, float)[:, self._places]
        values[~np.isfinite(values)] = np.nan
        return values

    def curves(self, *named: tuple[str, str, str]) -> list[Curve]:
        """Return curves of those of the variables (name, label, role) that were recorded."""
        return [
            Curve.of_paths(label, role, self[name]) for name, label, role in named if self.has(name)
        ]


def _budget_chart(series: _Series, config: Mapping[str, Any], step: str) -> Chart | None:
    """Draw the terms of the energy balance and, below them, its residuals."""
    if not series.has("energy"):
        return None
    recorded = {name: series[name] for name in TERMS if series.has(name)}
    parts, zero = balance_terms(recorded, config.get("direction") == "ascent")
    both = any(role == "weights" for role, _, _ in parts)
    terms = [
        Curve.of_paths(words, role, values, hidden=both and role in ("drift", "ito"))
        for role, words, values in parts
    ]
    named = ((name, f"residual {words}", role) for name, (role, words) in RESIDUALS.items())
    residuals = series.curves(*named)
    panels = [Panel("energy", terms)]
    panels += [Panel("residual", residuals)] if residuals else []
    caption = (
        "E(t) − E(0) is the work of the weights, the martingale and minus the integrated "
        f"dissipation, up to the residual. {step}{series.caption}"
    )
    if zero:
        caption += f" These terms are zero throughout: {', '.join(zero)}."
    if both:
        caption += " Weight drift and Itô correction nearly cancel and are drawn as their sum."
    return Chart("Energy budget", "time t", series.time, panels, caption)


def _gradient_chart(series: _Series, config: Mapping[str, Any]) -> Chart | None:
    """Draw dissipation and G² on a log scale, or the mean squared speed without an energy."""
    sign = 1 if config.get("direction") == "ascent" else -1
    named = [
        ("dissipation", "dissipation" if sign < 0 else "−dissipation", "dissipated", -sign),
        ("upper_gradient_sq", "G²", "gradient", 1),  # above the other
        ("speed_sq", "mean squared speed", "gradient", 1),
    ]
    curves = []
    for name, label, role, factor in named:
        if not series.has(name):
            continue
        values = factor * series[name]
        values[~(values > 0)] = np.nan  # zero has no place on a log scale
        if np.isfinite(values).any():
            curves.append(Curve.of_paths(label, role, values))
    if not curves:
        return None
    words = " and ".join(curve.name for curve in curves)
    caption = f"The scale is logarithmic. {series.caption}"
    if any(curve.name == "G²" for curve in curves):
        caption = f"G² is the squared upper gradient of the energy. {caption}"
    panels = [Panel("per unit time", curves, log=True)]
    return Chart(words, "time t", series.time, panels, caption)


def _free_energy_chart(series: _Series) -> Chart | None:
    """Draw free energy and entropy of densities, and signs of errors in space."""
    if not series.has("entropy"):
        return None
    named = (
        ("free_energy", "free energy", "energy"),
        ("entropy", "entropy", "diffusion"),
        ("numerical_diffusion", "numerical diffusion", "dissipated"),
        ("spectral_tail", "spectral tail", "dissipated"),
    )
    panels = [Panel(curve.name, [curve]) for curve in series.curves(*named)]
    caption = "The free energy is F = −s E − κ S, with the entropy S = −∫ ρ log ρ. "
    return Chart("Free energy", "time t", series.time, panels, caption + series.caption)


def _sampler_chart(series: _Series) -> Chart | None:
    """Draw the mean variance of the tokens of a sampler, and diagnostics of its attention."""
    variance = series.curves(("sample_variance", "variance, mean over the axes", "gradient"))
    sizes = series.curves(
        ("ess", "effective tokens, mean", "gradient"),
        ("ess_min", "effective tokens, smallest", "dissipated"),
    )
    absorbed = series.curves(("absorbed", "share of coordinates absorbed", "gradient"))
    panels = [
        Panel("variance", variance, log=True),
        Panel("attention", sizes, log=True),
        Panel("absorbed", absorbed),
    ]
    panels = [panel for panel in panels if panel.curves]
    if not panels:
        return None
    return Chart("Diagnostics of the sampler", "time k h", series.time, panels, series.caption)


def _movements_chart(series: _Series) -> Chart | None:
    """Draw energy and distances of minimizing movements, and the work of their steps."""
    if not series.has("distance_sq"):
        return None
    named = (
        ("energy", "energy E(t, x)", "energy"),
        ("distance_sq", "squared distance of a step", "gradient"),
        ("inequality_gap", "inequality gap of a step", "dissipated"),
        ("iterations", "iterations of a step", "weights"),
    )
    panels = [Panel(curve.name, [curve]) for curve in series.curves(*named)]
    caption = "The inequality gap is what the energy changes by beyond W²/(2τ), never negative. "
    return Chart("Steps", "time t", series.time, panels, caption + series.caption)


def _balance(ds: Dataset) -> list[tuple[str, str]]:
    """Return the terms of the energy balance, and its residuals, at the last time."""
    if "energy" not in ds or not ds.sizes["time"]:
        return []
    energy = ds["energy"].transpose("path", "time")
    rows = [("E(T) − E(0)", mean_and_spread(energy[:, -1].values - energy[:, 0].values))]
    return rows + [
        (f"{VARIABLES[name].long_name} ({name})", mean_and_spread(ds[name].isel(time=-1).values))
        for name in (*TERMS[1:], *RESIDUALS)
        if name in ds
    ]


def _density(ds: Dataset, light: bool) -> tuple[str, bytes] | None:
    """Return caption and picture (PNG) of densities at up to six times, or None."""
    if not {"density", "density_mean"} & set(ds):
        return None
    from wflow.plots.densities import density_snapshots
    from wflow.plots.style import style

    alone = ds.sizes["path"] == 1 and "density" in ds
    path = int(ds["snapshot_path"][0]) if alone else None
    figure = density_snapshots(ds, which="mean" if path is None else path, style="paper")
    drawn = io.BytesIO()
    with style():
        figure.savefig(drawn, format="png", dpi=150, metadata={"Software": CREATOR})
    whose = "mean over the paths" if path is None else f"path {path}"
    content = _smaller(drawn.getvalue()) if light else drawn.getvalue()
    return f"The density is drawn at times of the snapshots, {whose}.", content


# Tokens and heads at the snapshots
# ---------------------------------


@dataclass(frozen=True, eq=False)
class DrawnTokens:
    """Tokens that are drawn, of a run on S^(d-1).

    Attributes
    ----------
    times : (frames,)
    points : (frames, tokens, 2 or 3), on principal axes for d > 3
    unit : (frames, tokens, d), as they were recorded
    caption : what is drawn of what
    means : whether they are means over the paths, which are no tokens
    """

    times: Floats
    points: Floats
    unit: Floats
    caption: str
    means: bool

    @property
    def d(self) -> int:
        return self.unit.shape[-1]

    @classmethod
    def read(cls, ds: Dataset, positions: int) -> DrawnTokens | None:
        """Read tokens of the first path, or their means over the paths, or None."""
        means = "tokens" not in ds or not ds["tokens"].size
        name = "tokens_mean" if means else "tokens"
        if name not in ds or not ds[name].size:
            return None
        stored = ds[name] if means else ds[name].isel(snapshot_path=0)
        frames, n = ds.sizes["snapshot"], ds.sizes["token"]
        at = evenly(frames, FRAMES)
        step = max(1, math.ceil(n / min(TOKENS, max(1, positions // len(at)))))
        unit = _at_snapshots(stored.isel(token=slice(None, None, step)), at)
        reached = np.isfinite(unit).all(axis=(1, 2)) & (np.abs(unit) <= 1.5).all(axis=(1, 2))
        unit, times = unit[reached], np.asarray(ds["snapshot"].values, float)[at][reached]
        if not len(unit):
            return None
        drawn, d = unit.shape[1:]
        whose = f"{'all' if drawn == n else f'{drawn:,} of the'} {n:,} tokens"
        if means:
            whose = f"Means over the paths of {whose}"
        else:
            whose = f"{whose[0].upper()}{whose[1:]} of path {int(ds['snapshot_path'][0])}"
        part = "" if len(times) == frames else f" at {len(times)} of the {frames} snapshots"
        caption = f"{whose} are drawn{part}."
        points = unit
        if d > 3:
            axes, shares = principal_axes(unit.reshape(-1, d), 3)
            points = unit @ axes.T
            caption += (
                f" They are projected on the first three principal axes of all clouds drawn, which "
                f"have {100 * shares.sum():.0f} % of their second moment; d = {d}."
            )
        return cls(times, points, unit, caption, means)


def _at_snapshots(stored: Any, places: Sequence[int] | np.ndarray) -> Floats:
    """Return values of a variable at some snapshots, which are read one by one."""
    stored = stored.transpose("snapshot", ...)
    return np.stack([np.asarray(stored[int(k)].values, float) for k in places])


def _cluster_chart(
    cloud: DrawnTokens | None, config: Mapping[str, Any], clock: Clock
) -> Chart | None:
    """Draw numbers of clusters and order of the tokens that are drawn."""
    from wflow.analysis import clusters

    if cloud is None or cloud.means:
        return None
    norms = np.linalg.norm(cloud.unit, axis=-1, keepdims=True)
    if not (np.abs(norms - 1) < 1e-3).all():
        return None
    unit = (cloud.unit / norms).astype(np.float32 if single(config) else np.float64)
    frames, n, _ = unit.shape
    order = np.linalg.norm(unit.mean(axis=1), axis=-1)
    nematic = np.linalg.eigvalsh(np.einsum("tni,tnj->tij", unit, unit) / n)[:, -1]
    cost = n**2 * cloud.d / _PAIRS_PER_SECOND + 5e-4
    counted = (k for k in (frames, 75, 40, 20, 10, 5, 2) if k <= frames and clock.grant(k * cost))
    places = evenly(frames, next(counted, 0))
    found = [clusters.persistent_count(unit[k]).count for k in places]
    persistent = np.array([count if count < n else np.nan for count in found])
    linked = np.array([float(clusters.count(unit[k], SCALE)) for k in places])
    x = cloud.times[places]
    caption = (
        f"Clusters of the {n:,} tokens drawn are counted at {len(places)} times: by single linkage "
        f"at {SCALE:g} rad, and in the partition that persists over the widest range of scales (a "
        "gap where none stands out). The order is 1 for one point; the nematic order is 1 for one "
        f"axis and {1 / cloud.d:.3g} for none."
    )
    numbers = [
        Curve(f"at {SCALE:g} rad", "dissipated", linked, x=x),
        Curve("most persistent", "weights", persistent, x=x),
    ]
    orders = [
        Curve("order |mean token|", "energy", order),
        Curve("nematic order", "martingale", nematic),
    ]
    panels = [Panel("clusters", numbers), Panel("order", orders)]
    return Chart("Clusters and order", "time t", cloud.times, panels, caption)


def _symmetric(heads: Floats) -> bool:
    return np.allclose(heads, heads.swapaxes(-1, -2), rtol=1e-6, atol=1e-9)


def _eigenvalues(heads: Floats) -> Floats:
    """Return eigenvalues (..., d), largest first; singular values where not symmetric."""
    if _symmetric(heads):
        return np.linalg.eigvalsh(heads)[..., ::-1]
    return np.linalg.svd(heads, compute_uv=False)


def _heads_chart(ds: Dataset) -> Chart | None:
    """Draw eigenvalues and norms of the heads over time, where they were recorded."""
    if "heads" not in ds or not ds["heads"].size:
        return None
    stored = ds["heads"].isel(snapshot_path=0)
    count, d = stored.sizes["head"], stored.sizes["axis"]
    at = evenly(stored.sizes["snapshot"], FRAMES)
    step = max(1, math.ceil(count * d**3 * len(at) / 2e7))
    heads = _at_snapshots(stored.isel(head=slice(None, None, step)), at)
    reached = np.isfinite(heads).all(axis=(1, 2, 3))
    heads, times = heads[reached], np.asarray(ds["snapshot"].values, float)[at][reached]
    if not len(heads):
        return None
    values = _eigenvalues(heads)  # (frames, heads, d)
    ranks = range(d) if d <= 4 else (0, d // 2, d - 1)
    roles = ("gradient", "dissipated", "weights", "martingale")
    curves = [
        Curve.of_paths(f"eigenvalue {rank + 1} of {d}", role, values[..., rank].T)
        for rank, role in zip(ranks, roles, strict=False)
    ]
    norms = Curve.of_paths("Frobenius norm", "energy", np.sqrt(np.sum(heads**2, axis=(2, 3))).T)
    what = "Eigenvalues" if _symmetric(heads) else "Singular values"
    whose = "are those of the head"
    if count > 1:
        whose = f"are means over {heads.shape[1]} of the {count} heads of a path"
        whose += ", and bands hold the middle 80 % of them"
    return Chart(
        "Heads", "time t", times, [Panel(what.lower(), curves), Panel("norm", [norms])],
        f"{what} of D_h, largest first, and the Frobenius norm {whose}, at {len(times)} times.",
    )  # fmt: skip


def _spectrum(ds: Dataset) -> list[tuple[str, ...]]:
    """Return least, mean and largest eigenvalue of the initial heads and of those at the end."""
    stored = {}
    if "initial_heads" in ds:
        stored["initial heads"] = ds["initial_heads"]
    if "heads" in ds and ds["heads"].size:
        stored["heads at the last snapshot"] = ds["heads"].isel(snapshot_path=0, snapshot=-1)
    rows = []
    for text, part in stored.items():
        heads = np.asarray(part[:4096].values, float)
        heads = heads[np.isfinite(heads).all(axis=(1, 2))]
        if heads.size:
            values = _eigenvalues(heads)
            norm = np.sqrt((heads**2).sum(axis=(1, 2))).mean()
            numbers = (values.min(), values.mean(), values.max(), norm)
            rows.append((text, *(f"{float(value):.4g}" for value in numbers)))
    return rows


# Checks and provenance
# ---------------------


def _checks(ds: Dataset, file: Path | None, config: Mapping[str, Any], clock: Clock) -> list[Check]:
    """Make the checks of `verify`; where they take too long, those of the energy budget alone."""
    from wflow.analysis import verify

    if clock.grant(_cost(ds, file, config)):
        return verify.verify(ds if file is None else file).checks
    command = shell_line(["wflow", "verify", "NAME.h5" if file is None else file.name])
    reason = "the checks of all runs on this page would take too long"
    left = verify.Check(_OTHERS, None, note=f"not made here: {reason}; see `{command}`")
    if "edi_residual" not in ds or not ds.sizes["time"]:
        return [left]
    settings = dict(config)
    budget = verify.complete_budget(ds, settings)
    ended = ds.isel(path=np.isfinite(ds["edi_residual"][:, -1].values))
    if not budget.passed or not ended.sizes["path"]:
        return [budget, left]
    balance = verify.balance(ended, settings, verify.TOLERANCE)
    return [budget, *verify.columns(ended, settings), balance, left]


def _cost(ds: Dataset, file: Path | None, config: Mapping[str, Any]) -> float:
    """Estimate the seconds that `verify` takes: kernel values, and bytes that are read."""
    heads, cells = float(head_count(config, ds.sizes) or 1), ds.sizes.get("cell", 0)
    pairs = heads * ds.sizes.get("token", 0) ** 2 * max(1.0, ds.sizes.get("axis", 3) / 8)
    pairs += heads * cells * min(cells, 3000)  # many cells: series, linear in their number
    snapshots = ds.sizes.get("snapshot", 0) * ds.sizes.get("snapshot_path", 0)
    first = "initial_density" if cells else "initial_tokens"
    clouds = ds.sizes["path"] if "path" in ds.get(first, ds).sizes else 1
    if "heads" in ds or law_name(config) == "Frozen":
        clouds += snapshots
    if is_movement(config):
        clouds += 2 * ds.sizes.get("time", 0)
    replay = 8 * config.get("save", {}).get("every", 1) * pairs  # two paths, up to four stages
    work = clouds * pairs + (replay if replay < 4e10 else 0.0)
    work += min(_REFINED * pairs, 5e9)  # the first step in finer ones
    size = ds.nbytes if file is None else file.stat().st_size
    reads = 60 + 4 * snapshots
    return work / _PAIRS_PER_SECOND + 2 * size / _BYTES_PER_SECOND + reads * _SECONDS_PER_READ


def _provenance(ds: Dataset, config: Mapping[str, Any], file: Path | None) -> list[tuple[str, str]]:
    """Return where the run comes from: versions, seed, date, digests of its start."""
    names = ("schema", "wflow_version", "numpy_version", "numba_version", "seed",
             "created", "Conventions", "platform", "references", "history")  # fmt: skip
    rows = [(name, plain(ds.attrs[name])) for name in names if name in ds.attrs]
    starts = {"x0": "initial tokens x0", "density": "initial density", "heads": "initial heads"}
    for key, text in starts.items():
        value = config.get(key)
        if isinstance(value, dict) and "sha256" in value:
            rows.append((text, f"shape {value.get('shape')}, SHA-256 {value['sha256']}"))
    if file is not None:
        rows.append(("file", f"{file.name}, {file.stat().st_size:,} bytes"))
    return rows


# A study
# -------


@dataclass(eq=False)
class Study:
    """What the page shows of the folder of a study.

    Attributes
    ----------
    name : name of the study
    document : its summary.json
    missing : why something is not shown
    sections : runs that are shown
    rest : names of the other runs
    text : tables of the study, Markdown
    charts : learning curves of networks, by variable
    networks : rows (model, seeds, steps, last loss)
    pictures : figures (PNG) by name
    """

    name: str
    document: dict[str, Any]
    missing: list[str] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    text: str = ""
    charts: dict[str, Chart] = field(default_factory=dict)
    networks: list[tuple[str, ...]] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)


def read_study(folder: Path, clock: Clock, light: bool = False) -> Study:
    """Read the summary of a study, its runs, the histories of its networks, and its figures.

    Of a `light` page few runs have a section, and the figures are small.

    Raises
    ------
    RunFileError
        For a folder that holds nothing of wflow.
    """
    document = summary_document(folder / "summary.json")
    study = Study(plain(document.get("study") or folder.resolve().name or "study"), document)
    if not document:
        study.missing.append(
            "summary.json is missing or damaged: the study did not reach its end, or its summary "
            "was removed. Findings and tables are not shown; give the same command with --resume."
        )
    with _nodes(folder) as (nodes, left_out):
        if left_out:
            study.missing.append(f"Left out: {left_out}.")
        histories = {name: ds for name, ds in nodes.items() if "step" in ds.dims}
        runs = {name: ds for name, ds in nodes.items() if name not in histories}
        _read_runs(study, runs, clock, light)
        _read_histories(study, histories)
    if document:
        _read_text(study, folder / "summary.md")
        _read_pictures(study, folder, light)
    return study


@contextmanager
def _nodes(folder: Path) -> Iterator[tuple[dict[str, Dataset], str]]:
    """Open the runs and histories of a study by name, and say what could not be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the page says what is missing
        tree = open_study(folder)
    with closing(tree):
        nodes = {name: node.to_dataset() for name, node in tree.children.items()}
        for name, ds in nodes.items():
            ds.encoding |= tree[name].encoding
        nodes.pop("summary", None)
        yield nodes, tree.attrs.get("left_out", "")


def _read_runs(study: Study, runs: Mapping[str, Dataset], clock: Clock, light: bool) -> None:
    """Add the sections of the runs: in the order of the summary, then others."""
    listed = study.document.get("runs", {})
    files = listed.values() if isinstance(listed, dict) else [row.get("file") for row in listed]
    order = [stem for stem in (Path(str(name)).stem for name in files) if stem in runs]
    others = [name for name in runs if name not in order]
    if study.document and others:
        text = ", ".join(others[:8]) + (" and others" if len(others) > 8 else "")
        study.missing.append(f"In the folder, and not in the summary of the study: {text}.")
    names = order + others
    places = evenly(len(names), 3 if light else RUNS)  # some of each kind, where these follow
    study.rest = [name for k, name in enumerate(names) if k not in places]
    with_tokens = {names[k] for k in places[[0, -1]]} if names else set()
    points = FRAMES if len(places) < 9 else 80
    for name in [names[k] for k in places]:
        positions = POSITIONS // len(with_tokens) if name in with_tokens else 1000
        try:
            section = read_run(runs[name], name, clock, positions, points, light=light)
        except WflowError as error:
            study.missing.append(str(error))
            continue
        if section.cloud and name not in with_tokens:
            section.cloud = None
            section.no_tokens = (
                "Tokens are drawn for the first and the last section of a study; "
                "`wflow report` of the run file draws these."
            )
        study.sections.append(section)


def _read_histories(study: Study, histories: Mapping[str, Dataset]) -> None:
    """Add learning curves of the networks, whose histories are named MODEL-SEED."""
    models: dict[str, list[Dataset]] = {}
    for name, history in histories.items():
        if found := re.fullmatch(r"(.+)-(\d+)", name):
            models.setdefault(found[1], []).append(history)
            if not history.attrs.get("complete", 0):
                study.missing.append(
                    f"{name}: the training did not reach its end; the curves of this model end "
                    "with the shortest history."
                )
    columns: dict[str, dict[str, list[Any]]] = {}  # variable -> model -> one for each seed
    for model, runs in models.items():
        for run in runs:
            for key, column in run.data_vars.items():
                if column.ndim == 1 and column.size and column.dtype.kind in "fiu":
                    columns.setdefault(str(key), {}).setdefault(model, []).append(column)
    columns.pop("seconds", None)
    places = list(models)
    for name in list(columns)[:8]:
        curves = [
            _learning_curve(model, places.index(model), seeds)
            for model, seeds in columns[name].items()
        ]
        longest = max((curve.x for curve in curves if curve.x is not None), key=np.size)
        study.charts[name] = Chart(
            name.replace("_", " "), "training step", longest, [Panel(name, curves)],
            "Curves are means over the seeds of a model, and bands reach from the least to the "
            "largest; of long histories, means over neighbouring steps are drawn.",
        )  # fmt: skip
    for model, runs in models.items():
        steps = max(run.sizes["step"] for run in runs)
        losses = [float(run["loss"][-1]) for run in runs if "loss" in run and run["loss"].size]
        last = f"{np.mean(losses):.4g}" if losses else "–"
        study.networks.append((model, str(len(runs)), str(steps), last))


def _learning_curve(model: str, place: int, columns: Sequence[Any]) -> Curve:
    """Draw mean and range over the seeds of a column of the histories of a model."""
    roles = ("gradient", "dissipated", "weights", "martingale", "energy", "ito", "diffusion")
    dim = columns[0].dims[0]
    shortest = min(column.sizes[dim] for column in columns)
    values = np.array([column.values[:shortest] for column in columns], float)
    x, values = thinned(np.asarray(columns[0][dim].values[:shortest], float), values, FRAMES)
    curve = Curve(model, roles[place % len(roles)], values.mean(axis=0), x=x)
    if len(values) == 1:
        return curve
    return replace(curve, low=values.min(axis=0), high=values.max(axis=0))


def _read_text(study: Study, file: Path) -> None:
    """Add the report of the study's end, without its head and its findings."""
    if not file.exists() and isinstance(study.document.get("runs"), list):
        return  # a study over head counts, which writes none
    try:
        with opened(file, "the text of a summary") as raw:
            text = raw.read(2**20).decode(errors="replace")
    except (WflowError, OSError) as error:
        study.missing.append(f"The tables of the study are not shown: {error}")
        return
    blocks = text.split("\n\n")
    while blocks and (blocks[0].startswith(("# ", "    ")) or "; wflow " in blocks[0]):
        blocks.pop(0)
    kept = [block for block in blocks if not re.match(r"- \*\*[a-z ]+\*\*: ", block)]
    study.text = "\n\n".join(kept)


def _read_pictures(study: Study, folder: Path, light: bool) -> None:
    """Add the figures of the study's end, as far as they fit on the page."""
    # The section of a run has its own curves and tokens.
    drawn = {section.name for section in study.sections}
    left, out = _SMALL if light else PICTURES, []
    for stem in study.document.get("figures", []):
        if (one := OF_ONE_RUN.fullmatch(stem)) and one[1] in drawn:
            continue
        try:
            with opened(folder / f"{Path(stem).name}.png", "a figure") as raw:
                content = raw.read(PICTURES + 1)
            content = _smaller(content) if light else content
        except (WflowError, OSError) as error:
            out.append(f"{stem} ({error})")
            continue
        if len(content) > left:
            out.append(f"{stem} (in the folder: the page has no room for it)")
            continue
        study.pictures[stem] = content
        left -= len(content)
    if out:
        study.missing.append(f"Figures that are not shown: {', '.join(out)}.")


def _smaller(content: bytes) -> bytes:
    """Return a PNG at most 900 pixels wide, in 64 colours."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as picture:
        page = Image.new("RGB", picture.size, "white")
        page.paste(picture, mask=picture.getchannel("A") if picture.mode == "RGBA" else None)
    page.thumbnail((900, 1800))
    drawn = io.BytesIO()
    page.quantize(64).save(drawn, format="png", optimize=True)
    return drawn.getvalue()
