"""The report of a run or of a study: one HTML page that opens from disk and asks no network.

Two parts: what is shown (`Section`, one for each run, and `Study`) and the page. Its curves are
those of `wflow.plots.charts`, and damaged files are read by `wflow.io.salvage`. The template is
`_report.html`, with `_report.css` and `_report.js`, beside this module. Everything that comes from
a file is text for the page and never markup, and the policy of the page admits no script but the
two that this module puts into it, by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import math
import os
import platform
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from wflow._core.checks import path_of, shown
from wflow._core.errors import InputError, RunFileError, WflowError
from wflow._core.files import check_claims, check_stored, open_hdf5, opened
from wflow._core.invocation import shell_line
from wflow._core.printable import printable
from wflow._version import __version__
from wflow.analysis.description import describe, mean_and_spread
from wflow.io import digests, reading
from wflow.io.reading import final_of
from wflow.io.results import CREATOR, OF_ONE_RUN, REPORT, replace_files, summary_document
from wflow.io.salvage import FAULTS, LARGEST, opened_in_part
from wflow.io.schema import FAMILY, VARIABLES, head_count, law_name, single, solve_with
from wflow.plots.charts import Chart, Curve, Floats, Panel, escaped, plain
from wflow.plots.figure import MAX_FRAMES as FRAMES  # of the times of a curve or cloud
from wflow.plots.figure import MAX_TOKENS as TOKENS
from wflow.plots.figure import evenly
from wflow.plots.tokens import principal_axes

if TYPE_CHECKING:
    import h5py
    from xarray import Dataset

    from wflow.analysis.verify import Check

__all__ = ["write"]

RUNS = 12  # of a study that have a section
BYTES = 6_900_000  # of the page, the script of the plots included
_POSITIONS = 150_000  # of tokens, on the whole page
_PICTURES = 700_000  # bytes of the figures of a study on its page
_SECONDS = 1.5  # of checks and clusters, on the whole page
_PAIRS_PER_SECOND, _BYTES_PER_SECOND, _SECONDS_PER_READ = 1e9, 3e8, 2.5e-3
_LOADED = 2**26  # bytes of a run that is read at once
_HISTORIES = 2**30  # bytes of the histories of networks that are read, one column at a time
_SCALE = 0.1  # radians, of the clusters
_ENTRIES, _WORDS = 500, 300  # of a foreign file: variables or attributes, and characters of each

Rows = Sequence[tuple[str, str]]
Made = TypeVar("Made")


def write(source: Dataset | str | os.PathLike[str], out: str | Path | None = None) -> Path:
    """Write the report of a run or of a study, one HTML page, and return where it is.

    The page holds what was run and how to run it again, the energy budget, the tokens at most 150
    times, their clusters, the heads, the checks of `wflow.verify` and, for a study, its tables,
    figures and findings. It opens from disk, without a network. What cannot be read is named on
    the page; of an HDF5 file that is no run the page lists variables and attributes.

    Parameters
    ----------
    source : path_like or xarray.Dataset
        Run file, ``.partial`` of an unfinished run, folder of a study, or a run in memory; also
        any HDF5 file.
    out : path_like, optional
        The page, ``*.html``. Default: ``report.html`` in the folder, ``RUN.html`` beside the run
        file, and ``report.html`` in the current folder for a run in memory. An earlier report is
        replaced.

    Returns
    -------
    pathlib.Path
        Where the page is.

    Raises
    ------
    InputError
        For a file that is not HDF5, a folder that holds nothing of wflow, and a page that cannot be
        written or would replace a file that wflow did not write.

    Examples
    --------
    >>> import tempfile, wflow
    >>> x0 = wflow.tokens.cross_polytope(n=20, d=3, seed=0)
    >>> run = wflow.solve(x0, wflow.heads.Frozen(), heads=2, t_final=0.1, dt=0.01, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = wflow.report(run, f"{folder}/run.html")
    ...     page.stat().st_size < 7_000_000
    True
    """
    clock = Clock(_SECONDS)  # of the whole page
    if hasattr(source, "data_vars"):
        place = Path(REPORT)
        page = _page_of_run(_in_memory(source, clock))  # type: ignore[arg-type]
    else:
        if not isinstance(source, str | os.PathLike):
            raise InputError(
                f"source is {shown(source)}: expected a run file, the folder of a study, or the "
                "Dataset of wflow.solve"
            )
        path = path_of(source, "source")
        if path.is_dir():
            place, page = path / REPORT, _page_of_study(path, clock)
        else:
            final = final_of(path)
            known = final.suffix in (".h5", ".hdf5", ".nc")  # dt0.01 must not become dt0
            place = final.with_name(f"{final.stem if known else final.name}.html")
            page = _page_of_file(path, clock)
    if out is not None:
        place = path_of(out, "out")
        if place.suffix != ".html" or place.is_dir():
            raise InputError(f"out is {place}: expected the name of a page, such as report.html")
    text = page.html()
    try:
        replace_files(place.parent, {place.name: lambda file: file.write_text(text, "utf-8")})
    except OSError as error:
        raise InputError(
            f"cannot write the report {place}: {error.strerror or error}; choose another --out"
        ) from None
    return place


class Clock:
    """The seconds that checks and clusters of the whole page may take.

    They are estimated from sizes and not measured, so that a page holds the same on every machine.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def grant(self, seconds: float) -> bool:
        """Whether there is time for a task of so many seconds, which is then taken."""
        if not seconds <= self._left:
            return False
        self._left -= seconds
        return True


# Reading: runs in files and in memory
# ------------------------------------


def _one_run(path: Path, clock: Clock) -> Section:
    """The section of one run file; raises RunFileError where nothing can be shown."""
    notes: list[str] = []
    with opened_in_part(path, notes) as ds:
        return Section.read(ds, final_of(path).name, path, notes, clock, _POSITIONS)


def _in_memory(ds: Dataset, clock: Clock) -> Section:
    if not isinstance(ds.attrs.get("config"), str) or "path" not in ds.sizes:
        raise InputError(
            "source is a Dataset that is no run: expected that of wflow.solve or wflow.open"
        )
    file = ds.encoding.get("source")
    place = Path(file) if isinstance(file, str) and os.path.isfile(file) else None
    name = place.name if place else "run"
    return Section.read(ds, name, place, [], clock, _POSITIONS)


# Tokens: what is drawn of them
# -----------------------------

_AZIMUTH, _ELEVATION = np.radians(32.0), np.radians(24.0)


@dataclass(frozen=True, eq=False)
class Cloud:
    """Tokens (frames, tokens, 2 or 3) at times (frames,), of a run on S^(d-1)."""

    times: Floats
    points: Floats
    unit: Floats  # (frames, tokens, d), as they were read
    d: int
    caption: str
    clusters: bool  # whether they are tokens and no means

    @classmethod
    def read(cls, ds: Dataset, positions: int) -> Cloud | None:
        """Tokens of the first path, or their means over the paths; None where there are none."""
        if "snapshot" not in ds.coords:
            return None
        if "tokens" in ds and ds["tokens"].size:
            path = int(np.ravel(ds["snapshot_path"].values)[0])
            stored = ds["tokens"].isel(snapshot_path=0).transpose("snapshot", "token", "axis")
            whose, of_one = f"Tokens of path {path}", True
        elif "tokens_mean" in ds and ds["tokens_mean"].size:
            stored = ds["tokens_mean"].transpose("snapshot", "token", "axis")
            whose, of_one = "Means of the tokens over the paths", False
        else:
            return None
        frames, n, d = stored.shape
        at = evenly(frames, FRAMES)
        room = max(1, positions // len(at))
        step = max(1, math.ceil(n / min(TOKENS, room)))
        part = stored.isel(token=slice(None, None, step))
        unit = np.stack([np.asarray(part[int(k)].values, float) for k in at])
        reached = np.isfinite(unit).all(axis=(1, 2)) & (np.abs(unit) <= 1.5).all(axis=(1, 2))
        unit, times = unit[reached], np.asarray(ds["snapshot"].values, float)[at][reached]
        if not len(unit):
            return None
        points, note = unit, ""
        if d > 3:
            axes, shares = principal_axes(unit.reshape(-1, d), 3)
            points = unit @ axes.T
            note = (
                f" Projected on the first three principal axes of all clouds drawn, with "
                f"{100 * shares.sum():.0f} % of their second moment; d = {d}."
            )
        drawn = unit.shape[1]
        number = f"all {n:,}" if drawn == n else f"{drawn:,} of the {n:,}"
        caption = f"{whose}: {number} tokens at {len(times)} of the {frames} recorded times."
        return cls(times, points, unit, d, caption + note, of_one)

    def data(self) -> dict[str, Any]:
        """The cloud for the script: positions as 16-bit integers, 32767 for 1.5."""
        whole = np.round(np.clip(self.points / 1.5, -1, 1) * 32767).astype("<i2")
        return {
            "times": [float(f"{t:.6g}") for t in self.times],
            "tokens": self.points.shape[1],
            "axes": self.points.shape[2],
            "d": self.d,
            "xyz": base64.b64encode(whole.tobytes()).decode(),
        }

    def svg(self) -> str:
        """The tokens at up to five times, seen from one side."""
        frames = evenly(len(self.times), 5)
        size = 150.0
        ca, sa, ce, se = np.cos(_AZIMUTH), np.sin(_AZIMUTH), np.cos(_ELEVATION), np.sin(_ELEVATION)
        view = np.array([[-sa, ca, 0.0], [-se * ca, -se * sa, ce], [ce * ca, ce * sa, se]])
        width = size * len(frames)
        parts = [
            f'<svg viewBox="0 0 {width:g} {size + 22:g}" role="img" style="max-width:{width:g}px" '
            f'aria-label="{escaped(self.caption)}">'
        ]
        step = max(1, math.ceil(self.points.shape[1] / 250))
        for k, frame in enumerate(frames):
            points = self.points[frame, ::step]
            seen = points @ view.T if points.shape[1] == 3 else np.c_[points, np.ones(len(points))]
            centre, radius = size * (k + 0.5), size / 2 - 8
            parts.append(f'<circle class="ball" cx="{centre:g}" cy="{size / 2:g}" r="{radius:g}"/>')
            for side in ("far", "near"):
                there = seen[seen[:, 2] >= 0] if side == "near" else seen[seen[:, 2] < 0]
                d = "".join(
                    f"M{centre + radius * x:.1f} {size / 2 - radius * y:.1f}h0"
                    for x, y in there[:, :2]
                )
                parts.append(f'<path class="token {side}" d="{d}"/>')
            parts.append(
                f'<text class="tick mid" x="{centre:g}" y="{size + 14:g}">'
                f"t = {self.times[frame]:.4g}</text>"
            )
        return "".join([*parts, "</svg>"])

    def figure(self, name: str) -> str:
        """The viewer, and the static figure in its place."""
        last = len(self.times) - 1
        caption = escaped(self.caption)
        start = f"t = {self.times[0]:.4g}"
        turn = (
            '<label class="check"><input type="checkbox" class="turn"> turn</label>'
            "<p>Drag the sphere, or use the arrow keys on it.</p>"
            if self.points.shape[2] == 3
            else ""
        )
        return (
            f'<figure class="cloud" data-cloud="{name}"><div class="live" hidden>'
            f'<canvas tabindex="0" role="img" aria-label="{caption}"></canvas>'
            '<div class="controls"><button type="button" class="play" aria-pressed="false">'
            f'Play</button><input type="range" min="0" max="{last}" value="0" step="1" '
            f'aria-label="Time of the snapshot" aria-valuetext="{start}"><output>{start}</output>'
            '<label>colour <select class="tint"><option value="depth">depth</option>'
            '<option value="start">place at the first time</option></select></label>'
            f'{turn}</div></div><div class="static">{self.svg()}</div>'
            f"<figcaption>{caption}</figcaption></figure>"
        )


# A run: everything that its section shows
# ----------------------------------------


@dataclass(eq=False)
class Section:
    """What the page shows of one run.

    Attributes
    ----------
    name : title of the section
    missing : why nothing, or not everything, is shown
    facts : lines of `wflow info`; of a file that was cut, those that are known
    cut : whether the file was cut
    no_tokens : why no tokens are drawn
    density : figure of the densities, "" for none
    """

    name: str
    missing: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    charts: dict[str, Chart] = field(default_factory=dict)
    cloud: Cloud | None = None
    balance: list[tuple[str, str]] = field(default_factory=list)
    spectrum: list[tuple[str, ...]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    provenance: list[tuple[str, str]] = field(default_factory=list)
    hashes: list[tuple[str, str]] = field(default_factory=list)
    readable: bool = True
    cut: bool = False
    no_tokens: str = ""
    density: str = ""

    @classmethod
    def unreadable(cls, name: str, reason: str) -> Section:
        """The section of a file of which nothing can be shown."""
        return cls(name, missing=[reason], readable=False)

    @classmethod
    def read(
        cls,
        ds: Dataset,
        name: str,
        file: Path | None,
        notes: list[str],
        clock: Clock,
        positions: int,
        points: int = FRAMES,
    ) -> Section:
        """Read what the page shows of a run; what cannot be read is named.

        Parameters
        ----------
        ds : a run, perhaps damaged
        name : title of the section
        file : where it is, None for a run in memory
        notes : what is known to be missing of a file that was cut
        clock : seconds left for checks and clusters
        positions : of tokens that may be drawn
        points : of a curve
        """
        self = cls(name, missing=list(notes), cut=bool(notes))
        if ds.nbytes <= _LOADED:  # each read of a file takes a millisecond, whatever its size
            ds = self._try("the values", ds.load) or ds
        self.config = self._try("the configuration", lambda: _config_of(ds)) or {}
        self.facts = self._try("the description", lambda: describe(ds)) or []
        if self.cut:  # defaults of a configuration that is gone are no facts
            known = [(k, v) for k, v in self.facts if k not in ("status", "sums") and "?" not in v]
            self.facts = [("status", "truncated"), *known]
        elif not ds.attrs.get("complete", 0):
            reached = float(ds["time"].values[-1]) if ds.sizes.get("time") else None
            where = f"up to t = {reached:g}" if reached is not None else "nowhere yet"
            self.missing.append(
                f"The run is not complete: it was recorded {where} of "
                f"t = {self.config.get('t_final', '?')}. Finish it with --resume."
            )
        series = _Series(ds, points)
        self._chart("budget", "the energy budget", lambda: _budget_chart(series, self.config))
        self._chart("gradient", "the upper gradient", lambda: _gradient_chart(series, self.config))
        self._chart("sampler", "the diagnostics", lambda: _sampler_chart(series))
        self._chart("free_energy", "the free energy", lambda: _free_energy_chart(series))
        self.balance = self._try("the balance", lambda: _balance_rows(ds, self.config)) or []
        if "density" in ds or "density_mean" in ds:
            self.density = self._try("the densities", lambda: _density(ds)) or ""
        self.cloud = self._try("the tokens", lambda: Cloud.read(ds, positions))
        if self.cloud is None:
            advice = solve_with("snapshots=[times]")
            self.no_tokens = self.lacks(f"The run holds no snapshots of tokens. {advice}.")
            if {"tokens", "tokens_mean"} & set(ds):
                self.no_tokens = "None of the recorded tokens can be drawn."
                if "snapshot" not in ds.coords:
                    self.no_tokens = "The times of the tokens are not in what is left of the file."
        elif self.cloud.clusters:
            cloud = self.cloud
            draw = lambda: _cluster_chart(cloud, self.config, clock)  # noqa: E731
            self._chart("clusters", "the clusters", draw)
        self._chart("heads", "the heads", lambda: _heads_chart(ds))
        self.spectrum = self._try("the heads", lambda: _spectrum(ds)) or []
        self.checks = self._try("the checks", lambda: _checks(ds, file, self.config, clock)) or []
        if self.cut:  # reasons of `verify` would name settings that are unknown
            gone = "Not made: not all that it needs is in what is left of the file."
            self.checks = [
                c if c.passed is not None else replace(c, note=gone) for c in self.checks
            ]
        if any(check.passed is False for check in self.checks):
            self.missing.append(f"{self.verdict()}: see the verification below.")
        self.provenance = self._try("the provenance", lambda: _provenance(ds, file)) or []
        if file is not None:
            self.hashes = self._try("the digests", lambda: _hashes(ds, file)) or []
        self.missing += series.notes
        return self

    def _try(self, what: str, make: Callable[[], Made]) -> Made | None:
        try:
            return make()
        except FAULTS as error:
            self.missing.append(f"Not shown: {what} ({error or type(error).__name__}).")
            return None

    def _chart(self, key: str, what: str, make: Callable[[], Chart | None]) -> None:
        chart = self._try(what, make)
        if chart is not None:
            self.charts[key] = chart

    def lacks(self, why: str) -> str:
        """Why something is not shown, which of a file that was cut is not known."""
        return "Not in what is left of the file." if self.cut else why

    def fact(self, key: str) -> str:
        """A line of `wflow info`, or nothing."""
        return dict(self.facts).get(key, "")

    def verdict(self) -> str:
        """How the checks ended, in words."""
        made = [check for check in self.checks if check.passed is not None]
        failed = sum(not check.passed for check in made)
        state, left = ("truncated; ", " of what is left") if self.cut else ("", "")
        if not made:
            return f"{state}not checked"
        if failed:
            return f"{state}{failed} of {len(made)} checks{left} fail"
        return f"{state}{len(made)} checks{left} hold"


def _config_of(ds: Dataset) -> dict[str, Any]:
    config = json.loads(ds.attrs["config"])
    if not isinstance(config, dict):
        raise ValueError("it is no JSON object")
    return config


class _Series:
    """Recorded quantities (paths, k) at times that are few enough to be drawn."""

    def __init__(self, ds: Dataset, points: int) -> None:
        self.ds, self.notes = ds, list[str]()
        self.total = ds.sizes.get("time", 0)
        self._keep = evenly(self.total, points)
        self.paths = ds.sizes.get("path", 0)
        whole = 8 * self.total * self.paths
        self._rows = slice(None, None, max(1, math.ceil(whole / LARGEST)))
        if self._rows.step > 1:
            drawn = len(range(0, self.paths, self._rows.step))
            self.notes.append(f"The curves show {drawn} of the {self.paths} paths.")
        self.time = np.asarray(ds["time"].values[self._keep], float) if self.total else np.empty(0)

    def has(self, *names: str) -> bool:
        return self.total > 0 and self.paths > 0 and all(name in self.ds for name in names)

    def __getitem__(self, name: str) -> Floats:
        part = self.ds[name].transpose("path", "time")[self._rows]
        values = np.asarray(part.values, dtype=float)[:, self._keep]
        values[~np.isfinite(values)] = np.nan
        return values

    @property
    def caption(self) -> str:
        """Paths, band and times of a chart."""
        text = f"{len(self._keep)} of the {self.total} recorded times are drawn."
        if len(self._keep) == self.total:
            text = f"All {self.total} recorded times are drawn."
        if self.paths > 1:
            return f"Mean over {self.paths} paths; bands: the middle 80 % of the paths. {text}"
        return f"One path. {text}"


def _sign(config: Mapping[str, Any]) -> int:
    return 1 if config.get("direction") == "ascent" else -1


def _budget_chart(series: _Series, config: Mapping[str, Any]) -> Chart | None:
    """The terms of the energy balance and, below them, its residuals."""
    if not series.has("energy"):
        return None
    sign = _sign(config)
    found = {
        name: series[name]
        for name in ("energy", "work_weights", "work_ito", "work_diffusion", "martingale",
                     "martingale_tokens", "dissipated", "dissipated_upper_gradient")
        if series.has(name)
    }  # fmt: skip
    energy = found["energy"]
    terms = [Curve.of_paths("E(t) − E(0)", "energy", energy - energy[:, :1])]
    moved = {k: v for k, v in found.items() if np.nanmax(np.abs(v), initial=0.0) > 0}
    both = {"work_weights", "work_ito"} <= moved.keys()
    if both:
        net = moved["work_weights"] + moved["work_ito"]
        terms.append(Curve.of_paths("weight drift + Itô", "weights", net))
    if "work_weights" in moved:
        terms.append(Curve.of_paths("weight drift", "drift", moved["work_weights"], hidden=both))
    if "work_ito" in moved:
        terms.append(Curve.of_paths("Itô correction", "ito", moved["work_ito"], hidden=both))
    if "work_diffusion" in moved:
        terms.append(Curve.of_paths("diffusion of tokens", "diffusion", moved["work_diffusion"]))
    noise = [moved[name] for name in ("martingale", "martingale_tokens") if name in moved]
    if noise:
        terms.append(Curve.of_paths("martingale", "martingale", sum(noise[1:], noise[0])))
    if "dissipated" in moved:
        terms.append(Curve.of_paths("−∫ dissipation", "dissipated", -moved["dissipated"]))
    if "dissipated_upper_gradient" in moved:
        name = "∫ G²" if sign > 0 else "−∫ G²"
        upper = sign * moved["dissipated_upper_gradient"]
        terms.append(Curve.of_paths(name, "gradient", upper))
    panels = [Panel("energy", terms)]
    residuals = [
        Curve.of_paths(label, role, series[name])
        for name, label, role in (
            ("edi_residual", "residual, dissipation", "dissipated"),
            ("edi_residual_upper_gradient", "residual, G²", "gradient"),
        )
        if series.has(name)
    ]
    panels += [Panel("residual", residuals)] if residuals else []
    caption = (
        "Balance of the energy: E(t) − E(0) is the sum of the work of the weights, the martingale "
        "and minus the integrated dissipation, up to the residual. " + series.caption
    )
    if both:
        caption += " Weight drift and Itô correction nearly cancel and are drawn as their sum."
    return Chart("Energy budget", "time t", series.time, panels, caption)


def _gradient_chart(series: _Series, config: Mapping[str, Any]) -> Chart | None:
    """Dissipation and G² on a log scale, or the mean squared speed of a run without an energy."""
    sign = _sign(config)
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
    label = "per unit time"
    return Chart(
        words, "time t", series.time, [Panel(label, curves, log=True)],
        f"{words[0].upper()}{words[1:]}, log scale. {series.caption}",
    )  # fmt: skip


def _free_energy_chart(series: _Series) -> Chart | None:
    """Free energy and entropy of densities, and what tells of errors in space."""
    panels = [
        Panel(label, [Curve.of_paths(label, role, series[name])])
        for name, label, role in (
            ("free_energy", "free energy", "energy"),
            ("entropy", "entropy", "diffusion"),
            ("numerical_diffusion", "numerical diffusion", "dissipated"),
            ("spectral_tail", "spectral tail", "dissipated"),
        )
        if series.has(name)
    ]
    if not series.has("entropy"):
        return None
    caption = "Free energy F = −s E − κ S, entropy S = −∫ ρ log ρ, and a sign of errors in space. "
    return Chart("Free energy", "time t", series.time, panels, caption + series.caption)


def _sampler_chart(series: _Series) -> Chart | None:
    """Mean variance of the tokens of a sampler, and diagnostics of its attention."""
    panels = []
    if "sample_variance" in series.ds:
        variance = series.ds["sample_variance"].mean("axis")
        other = _Series(series.ds.assign(variance=variance), max(len(series.time), 1))
        curve = Curve.of_paths("variance, mean over the axes", "gradient", other["variance"])
        panels.append(Panel("variance", [curve], log=True))
    sizes = [
        Curve.of_paths(name, role, series[key])
        for key, name, role in (
            ("ess", "effective tokens, mean", "gradient"),
            ("ess_min", "effective tokens, smallest", "dissipated"),
        )
        if series.has(key)
    ]
    panels += [Panel("attention", sizes, log=True)] if sizes else []
    if series.has("absorbed"):
        curve = Curve.of_paths("share of coordinates absorbed", "gradient", series["absorbed"])
        panels.append(Panel("absorbed", [curve]))
    if not panels or not len(series.time):
        return None
    return Chart("Diagnostics of the sampler", "time k h", series.time, panels, series.caption)


def _density(ds: Dataset) -> str:
    """Densities at up to five times, as a picture."""
    from wflow.plots.densities import density_snapshots
    from wflow.plots.style import style

    alone = ds.sizes.get("path", 1) == 1 and "density" in ds
    whose = f"path {int(ds['snapshot_path'][0])}" if alone else "mean over the paths"
    figure = density_snapshots(ds, which=int(ds["snapshot_path"][0]) if alone else "mean")
    drawn = io.BytesIO()
    with style():
        figure.savefig(drawn, format="png", dpi=110, metadata={"Software": CREATOR})
    words = f"Density at times of the snapshots, {whose}."
    return (
        f'<div class="pictures"><figure><img alt="{escaped(words)}" src="data:image/png;base64,'
        f'{base64.b64encode(drawn.getvalue()).decode()}"><figcaption>{escaped(words)}</figcaption>'
        "</figure></div>"
    )


def _balance_rows(ds: Dataset, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Terms of the balance at the last time."""
    if "energy" not in ds or not ds.sizes.get("time"):
        return []
    energy = ds["energy"].transpose("path", "time")
    rows = [("E(T) − E(0)", mean_and_spread(energy[:, -1].values - energy[:, 0].values))]
    for name in (
        "work_weights", "work_ito", "work_diffusion", "martingale", "martingale_tokens",
        "dissipated", "dissipated_upper_gradient", "edi_residual", "edi_residual_upper_gradient",
    ):  # fmt: skip
        if name in ds:
            values = ds[name].transpose("path", "time")[:, -1].values
            rows.append((f"{VARIABLES[name].long_name} ({name})", mean_and_spread(values)))
    return rows


def _cluster_chart(cloud: Cloud, config: Mapping[str, Any], clock: Clock) -> Chart | None:
    """Numbers of clusters and order of the tokens that are drawn."""
    from wflow.analysis import clusters

    norms = np.linalg.norm(cloud.unit, axis=-1, keepdims=True)
    if not (np.abs(norms - 1) < 1e-3).all():
        return None
    unit = (cloud.unit / norms).astype(np.float32 if single(config) else np.float64)
    frames, n, _ = unit.shape
    mean = np.linalg.norm(unit.mean(axis=1), axis=-1)
    second = np.einsum("tni,tnj->tij", unit, unit) / n
    nematic = np.linalg.eigvalsh(second)[:, -1]
    counts = np.full((2, frames), np.nan)
    cost = n**2 * cloud.d / _PAIRS_PER_SECOND + 5e-4
    most = next(
        (m for m in (frames, 75, 40, 20, 10, 5, 2) if m <= frames and clock.grant(m * cost)), 0
    )
    for k in evenly(frames, most):
        found = clusters.persistent_count(unit[k]).count
        counts[:, k] = clusters.count(unit[k], _SCALE), found if found < n else np.nan
    done = np.isfinite(counts[0])
    curves = [
        Curve(f"at {_SCALE:g} rad", "dissipated", counts[0, done], x=cloud.times[done]),
        Curve("most persistent", "weights", counts[1, done], x=cloud.times[done]),
    ]
    orders = [
        Curve("order |mean token|", "energy", mean),
        Curve("nematic order", "martingale", nematic),
    ]
    caption = (
        f"Clusters of the {n:,} tokens drawn, at {done.sum()} times: by single linkage at "
        f"{_SCALE:g} rad, and of the partition that persists over the widest range of scales "
        "(a gap where none stands out). Order parameter: 1 for one point; nematic order: 1 for "
        f"one axis, {1 / cloud.d:.3g} for none."
    )
    panels = [Panel("clusters", curves), Panel("order", orders)]
    return Chart("Clusters and order", "time t", cloud.times, panels, caption)


def _eigenvalues(heads: Floats) -> Floats:
    """Eigenvalues (..., d), largest first; singular values of heads that are not symmetric."""
    if np.allclose(heads, heads.swapaxes(-1, -2), rtol=1e-6, atol=1e-9):
        return np.linalg.eigvalsh(heads)[..., ::-1]
    return np.linalg.svd(heads, compute_uv=False)


def _heads_chart(ds: Dataset) -> Chart | None:
    """Eigenvalues and norms of the heads over time, where they were recorded."""
    if "heads" not in ds or not ds["heads"].size:
        return None
    stored = ds["heads"].isel(snapshot_path=0)
    stored = stored.transpose("snapshot", "head", "axis", "axis_out")
    frames, count, d, _ = stored.shape
    step = max(1, math.ceil(count * d**3 * min(frames, FRAMES) / 2e7))
    at = evenly(frames, FRAMES)
    part = stored.isel(head=slice(None, None, step))
    heads = np.stack([np.asarray(part[int(k)].values, float) for k in at])
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
    norms = np.sqrt(np.sum(heads**2, axis=(2, 3)))
    symmetric = np.allclose(heads, heads.swapaxes(-1, -2), rtol=1e-6, atol=1e-9)
    what = "Eigenvalues" if symmetric else "Singular values"
    several = f"mean over {heads.shape[1]} of the {count} heads of a path, bands: 80 % of them"
    return Chart(
        "Heads", "time t", times,
        [
            Panel(what.lower(), curves),
            Panel("norm", [Curve.of_paths("Frobenius norm", "energy", norms.T)]),
        ],
        f"{what} of D_h, largest first, and Frobenius norm"
        f"{': ' + several if count > 1 else ' of the head'}; {len(times)} recorded times.",
    )  # fmt: skip


def _spectrum(ds: Dataset) -> list[tuple[str, ...]]:
    """Least, mean and largest eigenvalue of the initial heads and of those at the end."""
    rows = []
    for name, text in (("initial_heads", "initial heads"), ("heads", "heads at the last snapshot")):
        if name not in ds or not ds[name].size:
            continue
        part = ds[name] if name == "initial_heads" else ds[name].isel(snapshot_path=0, snapshot=-1)
        most = max(1, LARGEST // (8 * max(1, math.prod(part.shape[1:]))))
        heads = np.asarray(part[:most].values, float)
        heads = heads[np.isfinite(heads).all(axis=(1, 2))][:4096]
        if heads.size:
            values = _eigenvalues(heads)
            norm = float(np.sqrt((heads**2).sum(axis=(1, 2))).mean())
            numbers = (values.min(), values.mean(), values.max(), norm)
            rows.append((text, *(f"{float(value):.4g}" for value in numbers)))
    return rows


def _checks(ds: Dataset, file: Path | None, config: Mapping[str, Any], clock: Clock) -> list[Check]:
    """The checks of `verify` that the time left allows; others are named as not made."""
    from wflow.analysis import verify

    seconds = _cost(ds, file, config)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the page says that a run is not complete
        if clock.grant(seconds):
            try:
                run: Any = ds if file is None else file
                return verify.verify(run).checks
            except WflowError as error:
                reason = str(error)
        else:
            reason = "the checks of all runs on this page would take too long"
        verify_it = shell_line(["wflow", "verify", "NAME.h5" if file is None else file.name])
        left = verify.Check(
            "all other checks", None, note=f"not made here: {reason}; see `{verify_it}`"
        )
        names = {"energy", "dissipated", "edi_residual"}
        small = 8 * math.prod(ds.sizes.get(dim, 0) for dim in ("path", "time")) <= LARGEST // 8
        if not names <= set(ds) or not ds.sizes.get("time") or not small:
            return [left]
        ds = ds.isel(path=np.flatnonzero(np.isfinite(ds["edi_residual"][:, -1].values)))
        whole = verify.whole(ds, dict(config))
        if not whole.passed or not ds.sizes["path"]:
            return [whole, left]
        closes = verify.balance(ds, dict(config), verify.TOLERANCE)
        return [whole, *verify.columns(ds, dict(config)), closes, left]


def _cost(ds: Dataset, file: Path | None, config: Mapping[str, Any]) -> float:
    """Seconds that `verify` takes, about: kernel values, and bytes that are read."""
    heads = head_count(config, ds.sizes) or 1
    every = config.get("save", {}).get("every", 1)
    pairs = float(heads) * ds.sizes.get("token", 0) ** 2 * max(1.0, ds.sizes.get("axis", 3) / 8)
    cells = ds.sizes.get("cell", 0)  # whose sums are those of series, linear in their number
    pairs += float(heads) * cells * min(cells, 3000)
    first = "initial_density" if cells else "initial_tokens"
    clouds = ds.sizes.get("path", 1) if "path" in ds.get(first, ds).sizes else 1
    if "heads" in ds or law_name(config) == "Frozen":
        clouds += ds.sizes.get("snapshot", 0) * ds.sizes.get("snapshot_path", 0)
    replay = 8 * every * pairs  # two paths, of up to four stages
    work = clouds * pairs + (replay if replay < 4e10 else 0.0)
    size = ds.nbytes if file is None or not file.exists() else file.stat().st_size
    reads = 60 + 4 * ds.sizes.get("snapshot", 0) * ds.sizes.get("snapshot_path", 0)
    return work / _PAIRS_PER_SECOND + 2 * size / _BYTES_PER_SECOND + reads * _SECONDS_PER_READ


def _provenance(ds: Dataset, file: Path | None) -> list[tuple[str, str]]:
    """Where the run comes from: versions, seed, date, digests of its start."""
    names = ("schema", "wflow_version", "numpy_version", "numba_version", "seed",
             "created", "Conventions", "platform", "references", "history")  # fmt: skip
    rows = [(name, plain(ds.attrs[name])) for name in names if name in ds.attrs]
    config = json.loads(ds.attrs.get("config", "{}"))
    starts = (
        ("x0", "initial tokens x0"), ("density", "initial density"), ("heads", "initial heads"),
    )  # fmt: skip
    for key, text in starts:
        value = config.get(key)
        if isinstance(value, dict) and "sha256" in value:
            rows.append((text, f"shape {value.get('shape')}, SHA-256 {value['sha256']}"))
    if file is not None and file.exists():
        rows.append(("file", f"{file.name}, {file.stat().st_size:,} bytes"))
    return rows


def _hashes(ds: Dataset, file: Path) -> list[tuple[str, str]]:
    """The digests at the end of a finished file."""
    stored = digests.find(file) if file.is_file() else None
    if stored is None:
        return []
    rows = [("names, types and attributes", stored.metadata)]
    return rows + [(name, digest) for name, (_, _, _, digest) in stored.variables.items()]


# A study: its summary, its runs and its networks
# -----------------------------------------------


@dataclass(eq=False)
class Study:
    """What the page shows of the folder of a study."""

    folder: Path
    document: dict[str, Any]
    missing: list[str] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)  # run files without a section
    text: str = ""  # Markdown
    charts: dict[str, Chart] = field(default_factory=dict)
    pictures: list[tuple[str, bytes]] = field(default_factory=list)
    networks: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return plain(self.document.get("study") or self.folder.resolve().name or "study")


def _read_study(folder: Path, clock: Clock) -> Study:
    study = Study(folder, summary_document(folder / "summary.json"))
    if not study.document:
        there = os.path.lexists(folder / "summary.json")
        study.missing.append(
            f"summary.json is {'damaged' if there else 'missing'}: the study did not reach its "
            "end, or its summary was removed. Findings and tables are not shown; give the same "
            "command with --resume."
        )
    files = _run_files(study)
    histories = sorted(folder.glob("*/metrics.h5"))
    if not study.document and not files and not histories:
        raise InputError(
            f"{folder} holds no run and no summary of wflow: expected the folder of a study, or "
            f"the name of a run file{_studies_in(folder)}"
        )
    chosen = set(evenly(len(files), RUNS).tolist())  # some of each kind, where these follow
    shown_runs = [file for k, file in enumerate(files) if k in chosen]
    points = FRAMES if len(shown_runs) < 9 else 80
    with_tokens = {0, len(shown_runs) - 1}
    for k, (name, file) in enumerate(shown_runs):
        notes: list[str] = []
        room = _POSITIONS // len(with_tokens) if k in with_tokens else 0
        try:
            with opened_in_part(file, notes) as ds:
                section = Section.read(ds, name, file, notes, clock, max(room, 1000), points)
                if not room and section.cloud:
                    section.cloud = None
                    section.no_tokens = (
                        "Tokens are drawn for the first and the last section of a study; "
                        "`wflow report` of the run file draws these."
                    )
        except FAULTS as error:
            section = Section.unreadable(name, str(error))
        study.sections.append(section)
    study.rest = [name for k, (name, _) in enumerate(files) if k not in chosen]
    _read_text(study)
    _read_histories(study, histories)
    _read_pictures(study)
    return study


def _studies_in(folder: Path, most: int = 3) -> str:
    """The end of the message about a folder without runs: the first studies that are in it."""
    found: list[str] = []
    for inner in sorted(folder.iterdir()):
        if len(found) < most and inner.is_dir() and _holds_study(inner):
            found.append(str(inner))
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _holds_study(folder: Path) -> bool:
    """Whether a folder holds a summary, runs or histories of networks."""
    if summary_document(folder / "summary.json"):
        return True
    with suppress(OSError):
        runs = (file for kind in ("*.h5", "*.h5.partial") for file in folder.glob(kind))
        return any(map(_of_wflow, runs)) or any(folder.glob("*/metrics.h5"))
    return False


def _run_files(study: Study) -> list[tuple[str, Path]]:
    """Run files of the folder: those of the summary in its order, then others."""
    folder, listed = study.folder, study.document.get("runs", [])
    named: list[str] = []
    if isinstance(listed, dict):
        named = [str(file) for name, file in listed.items() if not (folder / str(name)).is_dir()]
    elif isinstance(listed, list):
        named = [str(row.get("file")) for row in listed if isinstance(row, dict)]
    named = [name for name in named if Path(name).name == name]
    others: list[str] = []
    for file in sorted(folder.iterdir()):
        if not re.fullmatch(r".+\.h5(\.partial|\.parts)?", file.name) or file.name in named:
            continue
        final = file.name.removesuffix(".partial").removesuffix(".parts")
        if final in (*named, *others, "summary.h5"):
            continue
        if file.is_file() and not _of_wflow(file):
            study.missing.append(f"{file.name} is no run of wflow, and is left out.")
        elif _kind(file) != "wflow-study":
            others.append(final)
    if study.document and others:
        text = ", ".join(others[:8]) + (" and others" if len(others) > 8 else "")
        study.missing.append(f"In the folder, and not in the summary of the study: {text}.")
    found = []
    for name in (*named, *others):
        file = folder / name
        partial = reading.partial_of(file)
        found.append((Path(name).stem, partial if not file.exists() and partial.exists() else file))
    return found


def _kind(file: Path) -> str:
    """Family of the schema of an HDF5 file; nothing where it cannot be read."""
    try:
        with open_hdf5(file) as content:
            return str(content.attrs.get("schema", "")).partition("/")[0]
    except WflowError:
        return ""


def _of_wflow(file: Path) -> bool:
    """Whether a file is of wflow, or too damaged to tell."""
    try:
        with open_hdf5(file) as content:
            return str(content.attrs.get("schema", "")).startswith((FAMILY, "wflow-study/"))
    except WflowError:
        return True


def _read_text(study: Study) -> None:
    """The report of the study's end, without its head and its findings."""
    file = study.folder / "summary.md"
    if study.document and not os.path.lexists(file):
        if not isinstance(study.document.get("runs"), list):
            study.missing.append("summary.md is missing: the tables of the study are not shown.")
        return
    if not study.document:
        return
    try:
        with opened(file, "the text of a summary") as raw:
            text = raw.read(2**20).decode(errors="replace")
    except (WflowError, OSError) as error:
        study.missing.append(f"summary.md cannot be read: {error}")
        return
    blocks = text.split("\n\n")
    while blocks and (blocks[0].startswith(("# ", "    ")) or "; wflow " in blocks[0]):
        blocks.pop(0)
    kept = [block for block in blocks if not re.match(r"- \*\*[a-z ]+\*\*: ", block)]
    study.text = "\n\n".join(kept)


class _History(NamedTuple):
    """The history of a network: the dimension and length of each column, and how it ended."""

    file: Path
    columns: dict[str, tuple[str, int]]
    ended: bool
    loss: float | None  # the last one

    def column(self, name: str, length: int) -> Floats:
        with open_hdf5(self.file) as content:
            return np.asarray(content[name][:length], dtype=float)


def _read_histories(study: Study, files: Sequence[Path]) -> None:
    """Learning curves of the networks of a study: NAME-SEED/metrics.h5."""
    models: dict[str, list[_History]] = {}
    for file in files[:200]:
        found = re.fullmatch(r"(.+)-(\d+)", file.parent.name)
        if not found:
            continue
        try:
            history = _history(file)
        except FAULTS as error:
            study.missing.append(f"{file.parent.name}: its history cannot be read ({error}).")
            continue
        models.setdefault(found[1], []).append(history)
        if not history.ended:
            study.missing.append(
                f"{file.parent.name}: the training did not reach its end; the curves of this model "
                "end with the shortest history."
            )
    if not models:
        return
    names = list(dict.fromkeys(n for runs in models.values() for run in runs for n in run.columns))
    drawn = [n for n in names if n not in ("step", "evaluation", "seconds")][:8]
    room = _HISTORIES
    for name in drawn:
        curves: list[Curve] = []
        for place, (model, runs) in enumerate(models.items()):
            held = [run for run in runs if name in run.columns and run.columns[name][1]]
            if not held:
                continue
            size = 8 * sum(run.columns[name][1] for run in held)
            room -= size
            if room < 0:
                study.missing.append(
                    f"{name} of {model} is not shown: the page reads {_HISTORIES:,} bytes of "
                    "histories at most."
                )
                continue
            try:
                curves.append(_learning_curve(model, place, name, held))
            except FAULTS as error:
                study.missing.append(f"{name} of {model} cannot be read ({error}).")
        if curves:
            ends = [curve.x for curve in curves if curve.x is not None]
            longest = max(ends, key=np.size)
            study.charts[f"net-{name}"] = Chart(
                name.replace("_", " "), "training step", longest, [Panel(name, curves)],
                "Mean over the seeds of a model, bands from the least to the largest; long "
                "histories as means over neighbouring steps.",
            )  # fmt: skip
    for model, runs in models.items():
        most = max(run.columns.get("step", ("", 0))[1] for run in runs)
        losses = [run.loss for run in runs if run.loss is not None]
        last = f"{np.mean(losses):.4g}" if losses else "–"
        study.networks.append((model, str(len(runs)), str(most), last))


def _learning_curve(model: str, place: int, name: str, held: Sequence[_History]) -> Curve:
    """A column of the runs of a model, read one by one."""
    roles = ("gradient", "dissipated", "weights", "martingale", "energy", "ito", "diffusion")
    length = min(run.columns[name][1] for run in held)
    dim = held[0].columns[name][0]
    steps = (
        held[0].column(dim, length) if dim in held[0].columns else np.arange(length, dtype=float)
    )
    drawn = [_grouped(steps, run.column(name, length)[None]) for run in held]
    x, values = drawn[0][0], np.concatenate([values for _, values in drawn])
    mean, low, high = (f(values, axis=0) for f in (np.mean, np.min, np.max))
    curve = Curve(model, roles[place % len(roles)], mean, x=x)
    return curve if len(held) == 1 else replace(curve, low=low, high=high)


def _history(file: Path) -> _History:
    """What a history holds; values are read when they are drawn."""
    columns: dict[str, tuple[str, int]] = {}
    with open_hdf5(file) as content:
        if "step" not in content:
            raise RunFileError(f"{file} holds no history of a training")
        ended = np.array_equal(np.ravel(content.attrs.get("complete", 0)), [1])
        claimed = []
        for name in content:
            data = content[name]
            if len(getattr(data, "shape", None) or ()) != 1 or data.shape[0] > 10**7:
                continue
            if data.dtype.kind not in "fiu" or check_stored(content, name, file) is None:
                continue
            claimed.append(data)
            dims = reading.dims_of(data) if name not in ("step", "evaluation") else (name,)
            columns[name] = (dims[0] or "step", data.shape[0])
        check_claims(content, claimed, file)
        loss = float(content["loss"][-1]) if columns.get("loss", ("", 0))[1] else None
    return _History(file, columns, ended, loss)


def _grouped(x: Floats, values: Floats, most: int = FRAMES) -> tuple[Floats, Floats]:
    """Means over neighbouring steps, at most so many."""
    group = max(1, math.ceil(values.shape[1] / most))
    whole = values.shape[1] // group * group
    if group == 1 or not whole:
        return x, values
    return (
        x[:whole].reshape(-1, group).mean(axis=1),
        values[:, :whole].reshape(len(values), -1, group).mean(axis=2),
    )


def _read_pictures(study: Study) -> None:
    """The figures of the study's end, as far as they fit on the page."""
    listed = study.document.get("figures", [])
    stems = [str(stem) for stem in listed] if isinstance(listed, list) else []
    # The section of a run has its own curves and tokens.
    drawn = {section.name for section in study.sections if section.charts}
    stems = [s for s in stems if not ((one := OF_ONE_RUN.fullmatch(s)) and one[1] in drawn)]
    left, out = _PICTURES, []
    for stem in stems:
        file = study.folder / f"{stem}.png"
        if file.name != f"{stem}.png" or not os.path.lexists(file):
            out.append(f"{stem} (missing)")
            continue
        try:
            with opened(file, "a figure") as raw:
                content = raw.read(left + 1)
        except (WflowError, OSError) as error:
            out.append(f"{stem} ({error})")
            continue
        if len(content) > left:
            out.append(f"{stem} (in the folder: the page has no room for it)")
        elif not content.startswith(b"\x89PNG"):
            out.append(f"{stem} (damaged)")
        else:
            study.pictures.append((stem, content))
            left -= len(content)
    if out:
        study.missing.append(f"Figures that are not shown: {', '.join(out)}.")


# The page
# --------


@dataclass(eq=False)
class Page:
    """The parts of a page: HTML, already escaped, and data for the script."""

    title: str
    lead: str
    body: list[str]
    charts: dict[str, Any] = field(default_factory=dict)
    clouds: dict[str, Any] = field(default_factory=dict)

    def html(self) -> str:
        """The whole page."""
        here = Path(__file__)
        style, script, frame = (
            here.with_name(f"_report.{kind}").read_text("utf-8") for kind in ("css", "js", "html")
        )
        plots = _plot_library()
        if not plots:
            self.body.insert(0, _banner(["plotly is not installed: the curves are static."]))
        data = json.dumps(
            {"charts": self.charts if plots else {}, "clouds": self.clouds}, allow_nan=False
        )
        data = data.replace("<", "\\u003c").replace("\u2028", "").replace("\u2029", "")
        parts = {
            "title": escaped(self.title),
            "lead": self.lead,
            "body": "\n".join(self.body),
            "style": style,
            "data": data,
            "plots": plots,
            "script": script,
            "hashes": " ".join(f"'sha256-{_sha256(code)}'" for code in (plots, script)),
            "written": escaped(
                f"Written by wflow {__version__} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, "
                f"Python {platform.python_version()}, {platform.system()} {platform.machine()}. "
                f"At most {TOKENS:,} tokens and {FRAMES} times of a run are drawn."
            ),
        }
        # In one pass: what is put in is never searched for places.
        return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], frame)


def _sha256(code: str) -> str:
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def _plot_library() -> str:
    """The script of plotly, which is a file of its package; empty where it is not installed."""
    found = importlib.util.find_spec("plotly")
    if found is None or not found.origin:
        return ""
    file = Path(found.origin).with_name("package_data") / "plotly.min.js"
    try:
        text = file.read_text("utf-8")
    except OSError:
        return ""
    return "" if "</script" in text.lower() else text


def _prose(value: Any) -> str:
    """Any value as text of a page, with what stands between backticks as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escaped(value))


def _table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), kind: str = "") -> str:
    """A table whose first column names the rows."""
    top = "".join(f'<th scope="col">{escaped(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{escaped(first)}</th>'
        + "".join(f"<td>{escaped(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    top = f"<thead><tr>{top}</tr></thead>" if top else ""
    return f'<div class="scroll"><table class="{kind}">{top}<tbody>{body}</tbody></table></div>'


def _banner(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escaped(line)}</li>" for line in lines)
    return f'<div class="banner" role="note"><strong>What is missing</strong><ul>{items}</ul></div>'


def _words(command: str) -> list[str]:
    """Words of a recorded command, at least one."""
    try:
        return shlex.split(command) or [""]
    except ValueError:  # it was cut, or is none
        return command.split() or [""]


def _command(command: str, name: str | None) -> str:
    """How to run again: the command that was recorded, and `wflow.rerun` of the file."""
    lines, command = [], printable(command, lines=False)
    if command:
        first = _words(command)[0]
        lines.append(f"python {command}" if first.endswith(".py") else command)
    if name:
        lines.append(shell_line(["python", "-c", f"import wflow; wflow.rerun({_literal(name)})"]))
    text = "\n".join(lines)
    return f"<pre><code>{escaped(text)}</code></pre>" if text else ""


def _literal(name: str) -> str:
    """A name as Python reads it; in double quotes where it can be, which a shell quotes easily."""
    text = repr(name)
    return text if {"'", '"'} & {*name} else f'"{text[1:-1]}"'


def _tiles(pairs: Rows) -> str:
    items = "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>"
        for name, value in pairs
        if value
    )
    return f'<dl class="tiles">{items}</dl>' if items else ""


def _section_html(section: Section, key: str, page: Page, level: int) -> str:
    """One run: its parts in order, those that are missing named."""
    h = f"h{level}"
    parts = [_banner(section.missing)]
    if not section.readable:
        return parts[0]
    parts.append(
        _tiles(
            [
                ("energy at the start", section.fact("E(0)")),
                ("energy at the end", section.fact("E(T)")),
                ("residual of the balance", section.fact("edi_residual(T)")),
                ("G², second half", section.fact("upper_gradient_sq").partition(",")[0]),
                ("speed², second half", section.fact("speed_sq").partition(",")[0]),
                ("effective tokens", section.fact("ess(T)")),
                ("absorbed coordinates", section.fact("absorbed(T)")),
                ("verified", section.verdict()),
            ]
        )
    )

    def chart(name: str, title: str, absent: str) -> None:
        parts.append(f'<{h} id="{key}-{name}">{title}</{h}>')
        found = section.charts.get(name)
        if found is None:
            parts.append(f'<p class="absent">{escaped(section.lacks(absent))}</p>')
            return
        page.charts[f"{key}-{name}"] = found.data()
        parts.append(found.figure(f"{key}-{name}"))

    sampler = "sampler" in section.config
    if sampler:
        chart("sampler", "Diagnostics", "Nothing was recorded.")
        chart("gradient", "Speed", "Nothing was recorded.")
    else:
        chart("budget", "Energy budget", "The run holds no energy.")
        if section.balance:
            titles = ("at the last time", "mean ± standard error")
            parts.append(_table(section.balance, titles, "numbers"))
        chart("gradient", "Dissipation and G²", "The run holds neither G² nor the speed.")
        density = "mesh" in section.config
        parts.append(f'<{h} id="{key}-tokens">{"Density" if density else "Tokens"}</{h}>')
        if density:
            absent = "No density can be drawn: no snapshot of it was recorded."
            none = f'<p class="absent">{escaped(section.lacks(absent))}</p>'
            parts.append(section.density or none)
            chart("free_energy", "Free energy", "The run holds no entropy.")
        elif section.cloud is None:
            parts.append(f'<p class="absent">{_prose(section.no_tokens)}</p>')
        else:
            page.clouds[key] = section.cloud.data()
            parts.append(section.cloud.figure(key))
        if "clusters" in section.charts:
            chart("clusters", "Clusters", "")
        chart("heads", "Heads", "The heads were not recorded over time (save.heads).")
        law = section.fact("law") or section.lacks("not recorded")
        parts.append(f'<p class="law">Head law: {escaped(law)}</p>')
    if section.spectrum:
        head = ("", "least eigenvalue", "mean", "largest", "mean Frobenius norm")
        parts.append(_table(section.spectrum, head, "numbers"))
    parts.append(f'<{h} id="{key}-checks">Verification</{h}>')
    parts.append(_checks_html(section))
    parts.append(f'<{h} id="{key}-numbers">Numbers</{h}>')
    left = "What is left of what" if section.cut else "What"
    parts.append(f"<p>{left} <code>wflow info</code> prints.</p>")
    parts.append(_table(section.facts, kind="info"))
    parts.append(f'<{h} id="{key}-provenance">Provenance</{h}>')
    file = section.name if section.name.endswith(".h5") else f"{section.name}.h5"
    again = file if section.hashes and not sampler else None
    parts.append(_command(section.fact("command"), again))
    parts.append(_table(section.provenance, kind="info"))
    if section.hashes:
        parts.append("<details><summary>SHA-256 digests of the file</summary>")
        parts.append(_table(section.hashes, ("part of the file", "SHA-256"), "hashes"))
        parts.append("</details>")
    return "\n".join(part for part in parts if part)


def _checks_html(section: Section) -> str:
    if not section.checks:
        return '<p class="absent">No checks were made.</p>'
    words = {True: "pass", False: "fail", None: "skip"}
    rows = []
    for check in section.checks:
        word = words[check.passed]
        figures = ("", "") if math.isnan(check.value) else (check.value, check.limit)
        cells = "".join(f"<td>{f'{v:.3g}' if v != '' else ''}</td>" for v in figures)
        note = f"<small>{_prose(check.note)}</small>" if check.note else ""
        rows.append(
            f'<tr><td><span class="badge {word}">{word}</span></td><th scope="row">'
            f"{escaped(check.name)}{note}</th>{cells}</tr>"
        )
    head = "".join(f'<th scope="col">{t}</th>' for t in ("", "check", "found", "limit"))
    source = "" if section.cut else ", as <code>wflow verify</code> makes them"
    return (
        f'<p>{escaped(section.verdict())}{source}.</p><div class="scroll">'
        f'<table class="checks"><thead><tr>{head}</tr></thead><tbody>'
        f"{''.join(rows)}</tbody></table></div>"
    )


def _lead(sections: Sequence[Section]) -> str:
    """What was run, in a line of facts, as far as all runs share them."""
    chips = [
        ("law", {law_name(section.config) for section in sections}),
        *(
            (text, {section.fact(key) for section in sections})
            for text, key in (("flow", "dynamics"), ("heads H", "heads"), ("tokens", "tokens"),
                              ("paths", "paths"), ("time", "time"), ("seed", "seed"))
        ),
    ]  # fmt: skip
    items = "".join(
        f"<li><span>{text}</span> {escaped(value)}</li>"
        for text, values in chips
        if len(values) == 1
        for value in values
        if value and "?" not in value
    )
    return f'<ul class="chips">{items}</ul>' if items else ""


def _page_of_run(section: Section) -> Page:
    page = Page(section.name, _lead([section]), [])
    page.body.append(f'<section class="run">{_section_html(section, "r0", page, 2)}</section>')
    return page


def _page_of_file(path: Path, clock: Clock) -> Page:
    """The page of a run file, or of another HDF5 file; others raise RunFileError."""
    try:
        return _page_of_run(_one_run(path, clock))
    except RunFileError as error:
        if not path.is_file() or _kind(path) == "wflow-study":
            raise
        with open_hdf5(path) as content:  # raises for a file that is not HDF5
            return _page_of_foreign(path, content, error)


def _page_of_foreign(path: Path, content: h5py.File, error: RunFileError) -> Page:
    """What an HDF5 file holds that is no run: its variables and attributes, and what it lacks."""
    import h5py

    objects: list[tuple[str, Any]] = [("/", content)]

    def add(name: str, item: Any) -> bool | None:
        objects.append((name, item))
        return len(objects) > _ENTRIES or None  # None, and not False, lets h5py go on

    content.visititems(add)  # follows no links to other files
    variables = [(name, item) for name, item in objects if isinstance(item, h5py.Dataset)]
    attributes: list[tuple[str, str, str]] = []
    for name, item in objects:
        attributes += _attributes(name, item, _ENTRIES - len(attributes))
    wanted = {
        "schema": "schema" in content.attrs,
        "configuration": "config" in content.attrs,
        "times": "time" in content,
        "energy budget": "energy" in content,
    }
    lacking = [name for name, there in wanted.items() if not there]
    foreign = not _of_wflow(path)
    missing = [f"{path.name} is no run of wflow." if foreign else str(error)]
    missing += [f"Of a run it lacks: {', '.join(lacking)}."] if lacking else []
    missing.append("Only its variables and attributes are listed.")
    if len(objects) > _ENTRIES or len(attributes) >= _ENTRIES:
        missing.append(f"At most {_ENTRIES} variables and attributes are listed.")
    body = [
        _banner(missing),
        "<h2>File</h2>",
        _table([("name", path.name), ("size", f"{path.stat().st_size:,} bytes")], kind="info"),
        "<h2>Variables</h2>",
    ]
    rows = [(plain(name, _WORDS), *_shape_and_type(item)) for name, item in variables]
    absent = '<p class="absent">None.</p>'
    body.append(_table(rows, ("variable", "shape", "type")) if rows else absent)
    body.append("<h2>Attributes</h2>")
    body.append(_table(attributes, ("of", "attribute", "value")) if attributes else absent)
    return Page(path.name, "", body)


def _shape_and_type(data: h5py.Dataset) -> tuple[str, str]:
    try:
        shape = "none" if data.shape is None else str(data.shape) if data.shape else "scalar"
        return shape, plain(data.dtype, _WORDS)
    except FAULTS:
        return "cannot be read", ""


def _attributes(name: str, item: Any, most: int) -> list[tuple[str, str, str]]:
    """At most so many attributes of a group or variable, as text; long ones by their shape."""
    rows: list[tuple[str, str, str]] = []
    with suppress(*FAULTS):  # a damaged list ends here
        for key in item.attrs:
            if key in ("DIMENSION_LIST", "REFERENCE_LIST"):  # places in the file
                continue
            if len(rows) >= most:
                break
            try:
                shape = item.attrs.get_id(key).shape or ()
                long = math.prod(shape) > 64
                value = f"array of shape {shape}" if long else plain(item.attrs[key], _WORDS)
            except FAULTS:
                value = "cannot be read"
            rows.append((plain(name, _WORDS), plain(key, _WORDS), value))
    return rows


def _page_of_study(folder: Path, clock: Clock) -> Page:
    study = _read_study(folder, clock)
    document = study.document
    good = [section for section in study.sections if section.readable]
    lead = _lead(good)
    page = Page(f"Study {study.name}", lead, [])
    body = page.body
    body.append(_banner(study.missing))
    command = document.get("command")
    if command:
        body.append("<h2>Command</h2>" + _command(plain(command), None))
    body.append(_findings_html(document.get("findings")))
    body.append(_tables_html(study))
    if study.charts:
        body.append('<section><h2 id="learning">Learning curves</h2>')
        body.append(
            _table(study.networks, ("model", "seeds", "steps", "last loss, mean"), "numbers")
        )
        for name, found in study.charts.items():
            page.charts[f"s-{len(page.charts)}"] = found.data()
            body.append(f"<h3>{escaped(name.removeprefix('net-').replace('_', ' '))}</h3>")
            body.append(found.figure(f"s-{len(page.charts) - 1}"))
        body.append("</section>")
    if study.pictures:
        body.append('<section><h2 id="figures">Figures</h2><div class="pictures">')
        for stem, content in study.pictures:
            words = escaped(stem.replace("_", " "))
            body.append(
                f'<figure><img alt="Figure of the study: {words}" src="data:image/png;base64,'
                f'{base64.b64encode(content).decode()}"><figcaption>{words}</figcaption></figure>'
            )
        body.append("</div></section>")
    if study.sections:
        body.append(_runs_html(study, page))
    rows = [
        (key, plain(document[key]) if not isinstance(document[key], dict | list)
         else plain(json.dumps(document[key])))
        for key in ("schema", "created", "versions", "config")
        if key in document
    ]  # fmt: skip
    if rows:
        body.append('<section><h2 id="provenance">Provenance of the summary</h2>')
        body.append(_table(rows, kind="info") + "</section>")
    return page


def _findings_html(findings: Any) -> str:
    if not isinstance(findings, list) or not findings:
        return ""
    cards = []
    for entry in findings:
        if not isinstance(entry, dict):
            continue
        verdict = plain(entry.get("verdict", "?"))
        word = {
            "confirmed": "pass", "not confirmed": "fail",
        }.get(verdict, "part")  # fmt: skip
        cards.append(
            f'<li><span class="badge {word}">{escaped(verdict)}</span><p class="claim">'
            f"{_prose(entry.get('prediction', ''))} <cite>{_prose(entry.get('source', ''))}</cite>"
            f"</p><p>{_prose(entry.get('found', ''))}</p></li>"
        )
    return (
        '<section><h2 id="findings">Findings</h2><ul class="findings">'
        f"{''.join(cards)}</ul></section>"
    )


def _tables_html(study: Study) -> str:
    """The tables of the study: its text, or the numbers of its runs and their fit."""
    parts = []
    if study.text:
        parts.append(f'<div class="prose">{_markdown(study.text)}</div>')
    runs, fit = study.document.get("runs"), study.document.get("fit")
    if isinstance(runs, list):
        rows = [row for row in runs if isinstance(row, dict)]
        keys = [
            key
            for key in ("upper_gradient_sq", "dissipation", "energy_initial", "energy_final",
                        "edi_residual_final", "edi_residual_upper_gradient_final")
            if any(isinstance(row.get(key), dict) for row in rows)
        ]  # fmt: skip
        titles = {
            "upper_gradient_sq": "G² (t ≥ T/2)",
            "dissipation": "dissipation (t ≥ T/2)",
            "energy_initial": "E(0)",
            "energy_final": "E(T)",
            "edi_residual_final": "residual",
            "edi_residual_upper_gradient_final": "residual with G²",
        }
        cells = [
            (str(row.get("heads", "?")), *(_mean_cell(row.get(key)) for key in keys))
            for row in rows
        ]
        parts.append(_table(cells, ("heads H", *(titles[key] for key in keys)), "numbers"))
        parts.append("<p>Mean ± standard error over the paths.</p>")
    if isinstance(fit, dict):
        head = ("", "value", "interval", "standard error")
        parts.append("<h3>Fit G² = a H^b</h3>" + _table(_fit_rows(fit), head, "numbers"))
    if not parts:
        return ""
    return f'<section><h2 id="table">Table</h2>{"".join(parts)}</section>'


def _fit_rows(fit: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Prefactor, exponent and the other numbers of a fit, as the summary has them."""

    def number(value: Any) -> str:
        return f"{value:.5g}" if isinstance(value, int | float) else ""

    level = fit.get("level")
    percent = f"{100 * level:.0f} %: " if isinstance(level, int | float) else ""
    for name, symbol in (("prefactor", "a"), ("exponent", "b")):
        ends = fit.get(f"{name}_ci")
        known = isinstance(ends, list) and len(ends) == 2 and all(map(number, ends))
        interval = f"{percent}{number(ends[0])} to {number(ends[1])}" if known and ends else ""
        yield symbol, number(fit.get(name)), interval, number(fit.get(f"{name}_error"))
    for name, text in (("pearson", "Pearson correlation"), ("points", "head counts"),
                       ("heads_from", "fit from H =")):  # fmt: skip
        if fit.get(name) is not None:
            yield text, number(fit[name]), "", ""


def _mean_cell(value: Any) -> str:
    if not isinstance(value, dict) or not isinstance(value.get("mean"), int | float):
        return "–"
    error = value.get("standard_error")
    return f"{value['mean']:.4g}" + (f" ± {error:.1g}" if isinstance(error, int | float) else "")


def _markdown(text: str) -> str:
    """Markdown as HTML: no HTML of its own, no links and no images, which could ask a network."""
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    reader.disable(["image", "link", "autolink", "html_inline", "html_block"])
    made = str(reader.render(printable(text)))
    made = re.sub(r"<(/?)h([1-4])>", lambda m: f"<{m[1]}h{int(m[2]) + 2}>", made)
    made = made.replace("<th>", '<th scope="col">').replace("<th style=", '<th scope="col" style=')
    made = made.replace("<table>", '<div class="scroll"><table class="numbers">')
    return made.replace("</table>", "</table></div>")


def _runs_html(study: Study, page: Page) -> str:
    """The list of runs, and a section for each of them."""
    columns = {"status": "status", "heads": "heads", "tokens": "tokens", "paths": "paths",
               "E(0)": "E(0)", "E(T)": "E(T)", "edi_residual(T)": "residual",
               "upper_gradient_sq": "G²"}  # fmt: skip
    rows = []
    for section in study.sections:
        cells = [section.fact(key).partition(", mean")[0] for key in columns]
        if not section.readable:
            cells[0] = "cannot be read"
        rows.append((section.name, *cells, section.verdict() if section.readable else ""))
    head = ("run", *columns.values(), "verification")
    parts = ['<section><h2 id="runs">Runs</h2>', _table(rows, head, "runs")]
    if study.rest:
        names = ", ".join(study.rest[:200])
        parts.append(
            f"<p>{len(study.rest)} more runs have no section on this page: {escaped(names)}. "
            "<code>wflow report FILE</code> writes a page for each.</p>"
        )
    if len(study.sections) > 1:
        options = "".join(
            f'<option value="r{k}">{escaped(section.name)}</option>'
            for k, section in enumerate(study.sections)
        )
        parts.append(
            '<p class="choose" hidden><label>Run <select id="choose">'
            f"{options}</select></label></p>"
        )
    parts.append("</section>")
    for k, section in enumerate(study.sections):
        inner = _section_html(section, f"r{k}", page, 3)
        lead = _lead([section]) if len(study.sections) > 1 else ""
        parts.append(
            f'<section class="run" id="r{k}"><h2 class="name">Run {escaped(section.name)}</h2>'
            f"{lead}{inner}</section>"
        )
    return "\n".join(parts)
