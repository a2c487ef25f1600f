"""Checks of the energy ledger of a run: its columns against each other, and its balance."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow.fits import mean_and_error
from wflow.schema import head_count, law_name, ledger_rates, ledger_running

if TYPE_CHECKING:
    from xarray import Dataset

_ROUNDING = 1e-12  # of sums of a few doubles, relative to the size of their terms
_BLOCK = 1 << 21  # values of one variable in memory at a time
_FEWEST = 10  # record times from which the scatter of a rate can be judged
_SIGMAS = 8.0  # rates have heavy tails where records are far apart
_FLOOR = 0.01
_TERMS = ("energy", "work_weights", "work_ito", "dissipated", "martingale")
_DIFFUSION_TERMS = ("work_diffusion", "martingale_tokens")
_PAIRS = {
    "work_weights": "weight_power",
    "work_ito": "ito_power",
    "dissipated": "dissipation",
    "dissipated_upper_gradient": "upper_gradient_sq",
    "work_diffusion": "diffusion_power",
}

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


def single(config: dict[str, Any]) -> bool:
    return config.get("dtype") == "float32"


def worst_of(values: Array) -> float:
    """Largest size; NaN counts as infinite, so that it never passes."""
    return float(np.max(np.abs(np.nan_to_num(values, nan=np.inf)), initial=0.0))


def blocks(ds: "Dataset", name: str) -> Iterator[tuple[int, Array]]:
    """A variable in pieces along its first dimension, with where each begins."""
    variable = ds[name]
    rows = max(1, _BLOCK // max(1, math.prod(variable.shape[1:])))
    for start in range(0, variable.shape[0], rows):
        yield start, variable[start : start + rows].values


def below(name: str, value: float, limit: float, note: str) -> Check:
    return Check(name, value <= limit, value, limit, note)


def whole(ds: "Dataset", config: dict[str, Any]) -> Check:
    """Check that of the ledger, which stands or falls together, no variable is missing."""
    held = ["diffusion_power"] if config.get("kappa") else list(ds)
    missing = [name for name in (*ledger_rates(held), *ledger_running(held)) if name not in ds]
    note = (
        f"missing: {', '.join(missing)}; without them no energy can be checked" if missing else ""
    )
    return Check("the ledger is whole", not missing, note=note)


def _share(parts: list[Array], scales: list[Array]) -> float:
    """Largest |sum of parts| / sum of |scales| over the entries where no term is inf."""
    total = np.abs(sum(parts))
    scale = np.asarray(sum(np.abs(term) for term in scales))
    share = np.where(total == 0, 0.0, total / scale)
    # inf is an honest entry (beyond the range of doubles) and tells nothing; NaN is not honest.
    return worst_of(share[~np.isinf(scale)])


def columns(ds: "Dataset", config: dict[str, Any]) -> list[Check]:
    """Check the columns of the ledger against each other, path by path and time by time."""
    sign = 1.0 if config.get("direction") == "ascent" else -1.0
    same = ds.attrs["complete"] and _coincide(ds, config)
    worst = dict.fromkeys(("start", "residual", "upper", "defect", "same"), 0.0)

    def note(key: str, parts: list[Array], scales: list[Array]) -> None:
        worst[key] = max(worst[key], _share(parts, scales))

    for start, energy in blocks(ds, "energy"):
        rows = slice(start, start + len(energy))
        block: Block = {n: ds[n][rows].values for n in (*ledger_rates(ds), *ledger_running(ds))}
        extra = [block[n] for n in _DIFFUSION_TERMS if n in block]
        terms = [energy, np.broadcast_to(energy[:, :1], energy.shape)] + [
            block[n] for n in _TERMS[1:]
        ]
        terms += extra
        rest = [energy, -energy[:, :1], -block["work_weights"], -block["work_ito"]]
        rest += [-term for term in (block["martingale"], *extra)]
        lost, gradient = block["dissipated"], block["dissipated_upper_gradient"]
        worst["start"] = max(
            worst["start"], *(worst_of(block[n][:, 0]) for n in _PAIRS if n in block)
        )
        note("residual", [*rest, lost, -block["edi_residual"]], terms)
        upper = [*rest, -sign * gradient, -block["edi_residual_upper_gradient"]]
        note("upper", upper, [*terms, gradient])
        rates = [block["dissipation"], sign * block["upper_gradient_sq"]]
        note("defect", [*rates, -block["edi_defect"]], rates)
        note("same", [block["edi_defect"]], rates)

    exact = 1e-3 if single(config) else 1e-9
    relative = "largest difference, relative to the terms"
    identity = "edi_defect is dissipation "
    identity += "plus" if sign > 0 else "minus"
    checks = [
        below("the ledger starts at zero", worst["start"], 0.0, "running integrals at time 0"),
        below("edi_residual is what its terms leave", worst["residual"], _ROUNDING, relative),
        below(
            "edi_residual_upper_gradient is what its terms leave",
            worst["upper"],
            _ROUNDING,
            relative,
        ),
        below(f"{identity} upper_gradient_sq", worst["defect"], exact, relative),
    ]
    name = "dissipation and upper_gradient_sq coincide"
    if same:
        checks.append(below(name, worst["same"], exact, relative))
    else:
        reason = "not claimed for flow = softmax with several heads: edi_defect is the difference"
        checks.append(Check(name, None, note=reason))
    return [*checks, _sums(ds, config)]


def _coincide(ds: "Dataset", config: dict[str, Any]) -> bool:
    """Whether the theory makes dissipation and G^2 one number (docs/mathematics.md section 4)."""
    one_head = config.get("heads") == 1 or ds.sizes.get("head") == 1
    return one_head or config.get("flow") in ("effective", "unnormalised")


def _sums(ds: "Dataset", config: dict[str, Any]) -> Check:
    """Check the running integrals against sums of the recorded rates.

    Where every step of Euler is recorded the sums are exact. Elsewhere the rates are known at the
    ends of intervals of length h only, and the trapezoidal rule stands for what lies between. The
    allowance is that of Brownian motion between its ends: the integral over an interval deviates
    by h |change| / sqrt(12), and intervals add in squares. Rates that are smooth stay far below
    it, as there the errors telescope to h |change| / 12 at the two ends.
    """
    name = "running integrals are the sums of their rates"
    euler = config.get("scheme") == "euler"
    exact = euler and config.get("record_every") == 1
    times = ds["time"].values
    if not exact and times.size <= _FEWEST:
        reason = f"{times.size} record times are too few to sum the rates; lower record_every"
        return Check(name, None, note=reason)
    step = float(config.get("dt", 0.0)) if euler else 0.0
    pairs = {running: rate for running, rate in _PAIRS.items() if running in ds}
    if law_name(config) == "Schedule":
        del pairs["work_weights"]  # also holds the energy of jumps, which no rate shows
    worst, where = 0.0, ""
    for running, rate in pairs.items():
        for start, rates in blocks(ds, rate):
            integral = ds[running][start : start + len(rates)].values[:, 1:]
            ratio = _off(integral, rates, np.diff(times), None if exact else step)
            if ratio > worst:
                worst, where = ratio, running
    note = f"largest difference: {where}" if where else ""
    if exact:
        return below(name, worst, 1e-9, note + (", relative" if where else ""))
    note += "; " if note else ""
    note += f"in units of what sampling explains, {_SIGMAS:g} deviations and {_FLOOR:g} of the sum"
    return below(name, worst, 1.0, note)


def _off(integral: Array, rates: Array, lengths: Array, step: float | None) -> float:
    """Largest distance of integrals (paths, k) from sums of rates (paths, k + 1).

    `step` None: every step was recorded and the distance is relative to the sum of the sizes.
    Otherwise in units of the allowance; `step` is that of left sums, 0 for a scheme without.
    """
    left, right = rates[:, :-1], rates[:, 1:]
    size = np.cumsum(lengths * np.abs(left), axis=1)
    if step is None:
        expected, allowed = np.cumsum(lengths * left, axis=1), size
    else:
        # Left sums over the steps within an interval: off the trapezoid by their own ends.
        expected = np.cumsum(lengths * (left + right) / 2 - step / 2 * (right - left), axis=1)
        # Of the whole run: over a few intervals a sum of squares is no measure yet.
        spread = np.sum((lengths * (right - left)) ** 2 / 12, axis=1, keepdims=True)
        allowed = _SIGMAS * np.sqrt(spread) + _FLOOR * size
    distance = np.abs(integral - expected)
    ratio = np.where(distance == 0, 0.0, distance / allowed)
    # What is not finite is the business of the check that every value is recorded.
    return worst_of(ratio[np.isfinite(distance) & np.isfinite(allowed)])


def balance(ds: "Dataset", config: dict[str, Any], tolerance: float) -> Check:
    """Check that the mean residual at the last time is what finite steps and paths explain.

    limit = tolerance turnover + 3 max(standard error, noise), with the turnover the mean over the
    paths of |E(T) - E(0)| + |work_weights + work_ito| + |dissipated| (+ |work_diffusion|): drift
    and Itô correction nearly cancel and each grows with T, so that their sizes one by one tell
    nothing.

    noise^2 = 2 dt int (ito_power^2 / H + diffusion_power^2 / n) dt / paths. Euler-Maruyama
    replaces dW dW by its mean, and for an increment z of H matrices a term z.A z has the variance
    2 tr A^2 <= 2 (tr A)^2 of which independent heads of like size leave 1/H, and independent
    tokens 1/n. It speaks where one path has no standard error and a few have a poor one.
    """
    name = "the energy balance closes"
    last = ds.isel(time=-1)
    extra = [name for name in _DIFFUSION_TERMS if name in ds]
    terms = {name: last[name].values for name in (*_TERMS, *extra, "edi_residual")}
    terms["energy"] = terms["energy"] - ds["energy"][:, 0].values
    known = np.all([np.isfinite(values) for values in terms.values()], axis=0)
    if not known.any():
        return Check(name, None, note="no path has a finite balance at the last time")
    terms = {name: values[known] for name, values in terms.items()}
    moved = [terms["energy"], terms["work_weights"] + terms["work_ito"], terms["dissipated"]]
    moved += [terms["work_diffusion"]] if extra else []
    turnover = float(sum(np.abs(values).mean() for values in moved))
    residual = terms["edi_residual"]
    count = residual.size
    mean, deviation = (float(value) for value in mean_and_error(residual))
    noise = _noise(ds, config, known)
    limit = tolerance * turnover + 3 * float(np.fmax(deviation, noise))
    note = f"|mean of edi_residual at T| over {count} paths; limit = {tolerance:g} x turnover "
    note += f"{turnover:.3g} + 3 x the larger of standard error {deviation:.2g} and "
    if count == 1:
        note = f"|edi_residual at T|, one path; limit = {tolerance:g} x turnover {turnover:.3g} "
        note += "+ 3 x "
    note += f"noise of Itô's dW dW {noise:.2g} (from dt, ito_power and H"
    note += ", diffusion_power and n)" if extra else ")"
    if count < known.size:
        note += f"; {known.size - count} paths without a finite balance left out"
    return below(name, abs(mean), limit, note)


def _noise(ds: "Dataset", config: dict[str, Any], known: NDArray[np.bool_]) -> float:
    """Standard error of the mean residual that Euler-Maruyama explains (see `balance`)."""
    lengths = np.diff(ds["time"].values)
    total = 0.0
    shares = {"ito_power": head_count(config, ds.sizes) or 1}
    if "diffusion_power" in ds:
        shares["diffusion_power"] = ds.sizes.get("token", 1)
    for name, independent in shares.items():
        squares: list[float] = []
        for start, power in blocks(ds, name):
            kept = power[known[start : start + len(power)], :-1]
            squares += np.sum(lengths * kept**2, axis=1).tolist()
        finite = [value for value in squares if math.isfinite(value)]
        if finite:
            total += sum(finite) / len(finite) / independent / len(squares)
    return math.sqrt(2 * float(config.get("dt", 0.0)) * total)
