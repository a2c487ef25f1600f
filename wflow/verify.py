"""Check a run file against itself: are its numbers whole, on the sphere, and in balance?"""

import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow.errors import InputError
from wflow.runfile import open_run
from wflow.schema import LEDGER_RATES, LEDGER_RUNNING, SPEED

if TYPE_CHECKING:
    from xarray import Dataset

TOLERANCE = 0.05
_ROUNDING = 1e-12  # of sums of a few doubles, relative to the size of their terms
_BLOCK = 1 << 21  # values of one variable in memory at a time
_SERIES = (*LEDGER_RATES, *LEDGER_RUNNING, *SPEED)
_TERMS = ("energy", "work_weights", "work_ito", "dissipated", "martingale")

Array = NDArray[np.float64]
Block = dict[str, Array]


@dataclass(frozen=True)
class Check:
    """One check of a run file.

    Attributes
    ----------
    name : what should hold
    passed : whether it does; None where the file does not hold what the check needs
    value : the figure found
    limit : the largest figure that passes
    note : what the figure is, or why there is none
    """

    name: str
    passed: bool | None
    value: float = math.nan
    limit: float = math.nan
    note: str = ""

    def __str__(self) -> str:
        word = {True: "pass", False: "FAIL", None: "skip"}[self.passed]
        figures = "" if math.isnan(self.value) else f"  {self.value:.3g} (limit {self.limit:.3g})"
        return f"{word}  {self.name}{figures}" + (f"\n      {self.note}" if self.note else "")


@dataclass(frozen=True)
class Report:
    """What `verify` found in a run file: `passed` if no check failed."""

    path: Path
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every check that could be made holds."""
        return all(check.passed is not False for check in self.checks)

    def __str__(self) -> str:
        counts = [sum(check.passed is kind for check in self.checks) for kind in (True, False)]
        verdict = "PASSED" if self.passed else "FAILED"
        summary = f"{verdict}: {counts[0]} of {sum(counts)} checks hold"
        skipped = len(self.checks) - sum(counts)
        summary += f", {skipped} could not be made" if skipped else ""
        return "\n".join([f"{self.path}", *map(str, self.checks), summary])


def verify(path: str | Path, tolerance: float = TOLERANCE) -> Report:
    """Check that a run file is whole, that its energies are right and that its balance closes.

    The balance E(T) - E(0) = work_weights + work_ito - dissipated + martingale + residual closes
    if |mean over paths of residual(T)| <= tolerance * turnover + 3 standard errors, where the
    turnover is the mean over paths of |E(T) - E(0)| + |work_weights| + |work_ito| + |dissipated|.

    Parameters
    ----------
    path : run file
    tolerance : share of the turnover that the mean residual may reach; time steps are finite

    Returns
    -------
    Report, one Check per statement

    Raises
    ------
    RunFileError
        For a file that is missing, truncated or not a run file.
    InputError
        For a tolerance that is not a positive number.
    """
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise InputError(f"tolerance is {tolerance}: expected a positive number, such as 0.05")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not complete is the first check
        dataset = open_run(path)
    with dataset, np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        ds = dataset
        config = json.loads(ds.attrs["config"])
        checks = [_complete(ds), _finite(ds), _on_sphere(ds, config), _mean_tokens(ds, config)]
        if not ds.attrs["complete"] and "energy" in ds and ds.sizes["time"]:
            # Of an unfinished run, the paths that got to the last time can be checked.
            ds = ds.isel(path=~np.isnan(ds["energy"][:, -1].values))
        if "energy" in ds and ds.sizes["time"]:
            checks += _ledger(ds, config)
            checks += [_first_energy(ds, config), _energies(ds, config), _balance(ds, tolerance)]
        else:
            note = "the run holds no energy" if "energy" not in ds else "nothing was recorded"
            checks.append(Check("energy and its balance", None, note=note))
    return Report(Path(path), checks)


def _single(config: dict[str, Any]) -> bool:
    return config.get("dtype") == "float32"


def _worst(values: Array) -> float:
    """Largest size; NaN counts as infinite, so that it never passes."""
    return float(np.max(np.abs(np.nan_to_num(values, nan=np.inf)), initial=0.0))


def _blocks(ds: "Dataset", name: str) -> Iterator[tuple[int, Array]]:
    """A variable in pieces along its first dimension, with where each begins."""
    variable = ds[name]
    rows = max(1, _BLOCK // max(1, math.prod(variable.shape[1:])))
    for start in range(0, variable.shape[0], rows):
        yield start, variable[start : start + rows].values


def _complete(ds: "Dataset") -> Check:
    whole = bool(ds.attrs["complete"])
    note = "" if whole else "the run did not reach its end; finish it with --resume"
    return Check("the run is complete", whole, note=note)


def _finite(ds: "Dataset") -> Check:
    missing, infinite, where = 0, 0, []
    for name in map(str, ds.data_vars):
        if name in ds.coords:
            continue
        holes = 0
        for _, values in _blocks(ds, name):
            bad = np.isnan(values) if name in _SERIES else ~np.isfinite(values)
            holes += int(bad.sum())
            infinite += int(np.isinf(values).sum()) if name in _SERIES else 0
        missing += holes
        where += [name] if holes else []
    note = f"not finite: {', '.join(where)}" if where else ""
    if infinite:
        note += "; " if note else ""
        note += f"{infinite} energy terms are inf: they left the range of doubles"
    return Check("every value is recorded and finite", missing == 0, missing, 0, note)


def _on_sphere(ds: "Dataset", config: dict[str, Any]) -> Check:
    worst = 0.0
    for name in ("tokens", "initial_tokens"):
        for _, values in _blocks(ds, name) if name in ds else ():
            # Tokens that were not recorded are the business of the check before.
            lengths = np.sqrt(np.einsum("...k,...k->...", values, values))
            worst = max(worst, _worst(lengths[~np.isnan(lengths)] - 1))
    limit = 1e-5 if _single(config) else 1e-12
    return Check("tokens lie on the sphere", worst <= limit, worst, limit, "max of | |x| - 1 |")


def _mean_tokens(ds: "Dataset", config: dict[str, Any]) -> Check:
    name = "tokens_mean is the mean of the tokens"
    if not {"tokens", "tokens_mean"} <= set(ds) or (
        sorted(ds["snapshot_path"].values) != list(range(ds.sizes["path"]))
    ):
        return Check(name, None, note="the tokens of all paths are needed (snapshot_paths)")
    worst = 0.0
    for at in range(ds.sizes["snapshot"]):
        mean = ds["tokens"][:, at].values.mean(axis=0)
        difference = mean - ds["tokens_mean"][at].values
        # What was not recorded is the business of another check.
        worst = max(worst, _worst(difference[~np.isnan(difference)]))
    limit = 1e-5 if _single(config) else 1e-12
    return Check(name, worst <= limit, worst, limit, "max of the difference")


def _share(parts: list[Array], scales: list[Array]) -> float:
    """Largest |sum of parts| / sum of |scales| over the entries where no term is inf."""
    total = np.abs(sum(parts))
    scale = np.asarray(sum(np.abs(term) for term in scales))
    share = np.where(total == 0, 0.0, total / scale)
    # inf is an honest entry (beyond the range of doubles) and tells nothing; NaN is not honest.
    return _worst(share[~np.isinf(scale)])


def _ledger(ds: "Dataset", config: dict[str, Any]) -> list[Check]:
    """Columns against each other, path by path and time by time."""
    sign = 1.0 if config.get("direction") == "ascent" else -1.0
    same = ds.attrs["complete"] and _coincide(ds, config)
    summed = config.get("record_every") == 1 and config.get("scheme") == "euler"
    pairs = {
        "work_weights": "weight_power",
        "work_ito": "ito_power",
        "dissipated": "dissipation",
        "dissipated_upper_gradient": "upper_gradient_sq",
    }
    if _law(config) == "Schedule":
        del pairs["work_weights"]  # also holds the energy of jumps, which no rate shows
    worst = dict.fromkeys(("start", "residual", "upper", "defect", "same", "sums"), 0.0)
    steps = np.diff(ds["time"].values)

    def note(key: str, parts: list[Array], scales: list[Array]) -> None:
        worst[key] = max(worst[key], _share(parts, scales))

    for start, energy in _blocks(ds, "energy"):
        rows = slice(start, start + len(energy))
        block: Block = {n: ds[n][rows].values for n in (*LEDGER_RATES, *LEDGER_RUNNING)}
        terms = [energy, np.broadcast_to(energy[:, :1], energy.shape)] + [
            block[n] for n in _TERMS[1:]
        ]
        rest = [energy, -energy[:, :1], -block["work_weights"], -block["work_ito"]]
        rest.append(-block["martingale"])
        lost, gradient = block["dissipated"], block["dissipated_upper_gradient"]
        worst["start"] = max(worst["start"], *(_worst(block[n][:, 0]) for n in pairs))
        note("residual", [*rest, lost, -block["edi_residual"]], terms)
        upper = [*rest, -sign * gradient, -block["edi_residual_upper_gradient"]]
        note("upper", upper, [*terms, gradient])
        rates = [block["dissipation"], sign * block["upper_gradient_sq"]]
        note("defect", [*rates, -block["edi_defect"]], rates)
        note("same", [block["edi_defect"]], rates)
        for running, rate in pairs.items() if summed else ():
            total = np.cumsum(steps * block[rate][:, :-1], axis=1)
            size = np.cumsum(np.abs(steps * block[rate][:, :-1]), axis=1)
            note("sums", [block[running][:, 1:], -total], [size])

    exact = 1e-3 if _single(config) else 1e-9
    relative = "largest difference, relative to the terms"
    identity = "edi_defect is dissipation "
    identity += "plus" if sign > 0 else "minus"
    checks = [
        _below("the ledger starts at zero", worst["start"], 0.0, "running integrals at time 0"),
        _below("edi_residual is what its terms leave", worst["residual"], _ROUNDING, relative),
        _below(
            "edi_residual_upper_gradient is what its terms leave",
            worst["upper"],
            _ROUNDING,
            relative,
        ),
        _below(f"{identity} upper_gradient_sq", worst["defect"], exact, relative),
    ]
    name = "dissipation and upper_gradient_sq coincide"
    if same:
        checks.append(_below(name, worst["same"], exact, relative))
    else:
        reason = "not claimed for flow = softmax with several heads: edi_defect is the difference"
        checks.append(Check(name, None, note=reason))
    name = "running integrals are the sums of their rates"
    if summed:
        checks.append(_below(name, worst["sums"], 1e-9, relative))
    else:
        reason = "needs every step of the scheme euler (record_every = 1)"
        checks.append(Check(name, None, note=reason))
    return checks


def _below(name: str, value: float, limit: float, note: str) -> Check:
    return Check(name, value <= limit, value, limit, note)


def _law(config: dict[str, Any]) -> str:
    law = config.get("law")
    return str(law.get("name", "")) if isinstance(law, dict) else ""


def _coincide(ds: "Dataset", config: dict[str, Any]) -> bool:
    """Whether the theory makes dissipation and G^2 one number (DESIGN section 4)."""
    one_head = config.get("heads") == 1 or ds.sizes.get("head") == 1
    return one_head or config.get("flow") in ("effective", "unnormalised")


def _energy(tokens: Array, heads: Array) -> float:
    import wflow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an energy beyond the range of doubles is compared as inf
        try:
            return float(wflow.energy(tokens, heads))
        except InputError:  # no tokens or heads of a run: off the sphere, asymmetric, not finite
            return math.nan


def _difference(found: float, stored: float) -> float:
    if found == stored:
        return 0.0
    known = math.isfinite(found) and math.isfinite(stored) and stored != 0
    return float(abs(found - stored) / abs(stored)) if known else math.inf


def _first_energy(ds: "Dataset", config: dict[str, Any]) -> Check:
    name = "energy at time 0 follows from the initial tokens and heads"
    if not {"initial_tokens", "initial_heads"} <= set(ds):
        return Check(name, None, note="the initial tokens and heads are not stored")
    tokens, heads = ds["initial_tokens"].values, ds["initial_heads"].values
    worst = 0.0
    stored = ds["energy"][:, 0].values
    if tokens.ndim == 2:
        found = [_energy(tokens, heads)] * len(stored)
    else:
        found = [_energy(own, heads) for own in tokens]
    for one, other in zip(found, stored, strict=True):
        worst = max(worst, _difference(one, float(other)))
    return _below(name, worst, 1e-4 if _single(config) else 1e-10, "largest relative difference")


def _energies(ds: "Dataset", config: dict[str, Any]) -> Check:
    name = "energy follows from the stored tokens and heads"
    frozen = _law(config) == "Frozen" and "initial_heads" in ds
    if "tokens" not in ds or not ("heads" in ds or frozen):
        return Check(name, None, note="tokens or heads are not stored (snapshots, save_heads)")
    times, paths = ds["time"].values, ds["path"].values.tolist()
    worst, count, apart = 0.0, 0, 0
    for at, time in enumerate(ds["snapshot"].values):
        column = int(np.argmin(np.abs(times - time)))
        if abs(times[column] - time) > 1e-9 * max(1.0, abs(time)):
            apart += 1
            continue
        for place, path in enumerate(ds["snapshot_path"].values.tolist()):
            if path not in paths:
                continue
            tokens = ds["tokens"][place, at].values
            heads = (ds["heads"][place, at] if "heads" in ds else ds["initial_heads"]).values
            stored = float(ds["energy"][paths.index(path), column])
            if np.isnan(tokens).any() or np.isnan(heads).any() or math.isnan(stored):
                continue  # not recorded yet
            worst, count = max(worst, _difference(_energy(tokens, heads), stored)), count + 1
    if not count:
        return Check(name, None, note="no snapshot falls on a record time")
    limit = 1e-4 if _single(config) else 1e-10
    note = f"largest relative difference over {count} snapshots"
    note += f"; {apart} snapshot times are no record times" if apart else ""
    return _below(name, worst, limit, note)


def _balance(ds: "Dataset", tolerance: float) -> Check:
    name = "the energy balance closes"
    last = ds.isel(time=-1)
    terms = {name: last[name].values for name in (*_TERMS, "edi_residual")}
    terms["energy"] = terms["energy"] - ds["energy"][:, 0].values
    known = np.all([np.isfinite(values) for values in terms.values()], axis=0)
    if not known.any():
        return Check(name, None, note="no path has a finite balance at the last time")
    residual = terms["edi_residual"][known]
    moved = ("energy", "work_weights", "work_ito", "dissipated")
    turnover = float(sum(np.abs(terms[term][known]).mean() for term in moved))
    count = residual.size
    error = float(residual.std(ddof=1) / math.sqrt(count)) if count > 1 else 0.0
    limit = tolerance * turnover + 3 * error
    note = f"|mean of edi_residual at T| over {count} paths; limit = {tolerance:g} x turnover "
    note += f"{turnover:.3g} + 3 x standard error {error:.2g}"
    if count < known.size:
        note += f"; {known.size - count} paths without a finite balance left out"
    return _below(name, abs(float(residual.mean())), limit, note)
