"""Residual networks trained by Pontryagin's maximum principle, beside the classic one.

Points in the plane of two classes: the linear problem, the ring and the cross of the report,
squares and spiral of Benning et al. A classic residual network (Euler, back-propagation, Adam) and
controlled ones of as many parameters by Euler, Heun and RK4, trained along the gradients of
costates (the report's Algorithm 2, its signs corrected; Adam), by the method of successive
approximations and by the extended one: [GPTOC] section 5.2.

    python studies/control/pontryagin_resnet.py
    python studies/control/pontryagin_resnet.py --datasets donut --out results/pontryagin_donut

[GPTOC] Croizet, De Vos, Hajem, Basso, Guerafi, Wu, "GPT Project Part 1 Report", 2025.
[BCEOS2019] Benning, Celledoni, Ehrhardt, Owren, Schönlieb, J. Comput. Dyn. 6, 2019.
[LCTE2018] Li, Chen, Tai, E, J. Mach. Learn. Res. 18, 2018.
"""

import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import tyro
from _pontryagin_resnet import (
    CLASSIC,
    PRESETS,
    STAGES,
    DataName,
    after_iterations,
    at_equal_work,
    data_of,
    figures,
    losses,
    measured,
    models,
    plan,
    report,
    tabulated,
)

from wflow import InputError, study
from wflow._core.checks import positive, whole
from wflow.cli import guarded
from wflow.study import Finding, networks
from wflow.study.networks import Results

ROUNDING = 1e-12
SIMILAR = 0.01  # of the test accuracy
PLAIN = "a step of the plain method"  # the warning of plain MSA

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class PontryaginResnet(networks.NetFlags):
    """Flags of this study."""

    datasets: tuple[DataName, ...] = get_args(DataName)
    """Data sets."""
    layers: int | None = None
    """Layers, steps of length 1; default: of the preset."""
    width: int | None = None
    """Width of the states, at least 2: points are filled up with zeros. Default: of the preset."""
    iterations: int | None = None
    """Iterations of gradient descent and Adam; default: of the preset."""
    maximisations: int | None = None
    """Iterations of the methods of successive approximations; default: of the preset."""
    rate: float | None = None
    """Rate of gradient descent; default: of the preset."""
    adam: float | None = None
    """Rate of Adam; default: of the preset."""
    rho: float | None = None
    """Weight of the augmentation of extended MSA; default: of the preset."""
    steps: tyro.conf.Suppress[int | None] = None
    lam: tyro.conf.Suppress[float | None] = None
    data: tyro.conf.Suppress[str | None] = None
    out: study.Folder = Path("results/pontryagin_resnet")
    """Folder for checkpoints, metrics, summary and figures."""

    def check(self) -> None:
        super().check()
        if not self.datasets or len(set(self.datasets)) < len(self.datasets):
            raise InputError(f"--datasets is {' '.join(self.datasets)}: name each one once")
        for name, least in (("layers", 1), ("width", 2), ("iterations", 1), ("maximisations", 1)):
            if getattr(self, name) is not None:
                whole(getattr(self, name), f"--{name}", least)
        for name in ("rate", "adam", "rho"):
            if getattr(self, name) is not None:
                positive(getattr(self, name), f"--{name}")


def findings(results: Results, maximisations: int) -> list[Finding]:
    """Claims of the report and of the papers on which it builds, with their verdicts."""
    known = data_of(results)

    def values(name: str, key: str) -> np.ndarray:
        return np.array([record[key] for record in results.records[name]], dtype=float)

    def claim(statement: str, source: str, cases: Iterable[str], pair: Callable[[str], Pair],
              style: str = "+.3g", ratio: bool = False) -> Finding:  # fmt: skip
        """Of every data set: what is said to be more, and what less."""
        found = {case: networks.paired(*pair(case), style, ratio=ratio) for case in cases}
        text = "; ".join(f"{case}: {text}" for case, (text, _) in found.items())
        return Finding(statement, source, text, networks.joint([v for _, v in found.values()]))

    errors = {
        scheme: max(values(f"{data} {scheme} adam", "mismatch").max() for data in known)
        for scheme in STAGES
    }
    gaps, accuracies = [], []
    for data in known:
        pair = f"{data} {CLASSIC}", f"{data} euler adam"
        accuracies.append(np.abs(np.subtract(*(values(name, "accuracy") for name in pair))).max())
        curves = [
            [losses(*run) for run in zip(results.records[name], results.histories[name],
                                         strict=True)] for name in pair
        ]  # fmt: skip
        gaps.append(max(np.abs(a / b - 1).max() for a, b in zip(*curves, strict=True)))
    section = "[GPTOC] section 5.2"
    found = [
        Finding.decided(
            "gradients by costates are those of back-propagation, to rounding", section,
            "largest error over the largest gradient, double precision: "
            + ", ".join(f"{scheme} {error:.1e}" for scheme, error in errors.items()),
            [error <= ROUNDING for error in errors.values()],
        ),
        Finding.decided(
            "the network trained by the maximum principle with Euler's scheme and the classic one "
            "behave alike, both by Adam: test accuracies within a point of each other in every run",
            section,
            "; ".join(f"{data}: largest difference of accuracies {100 * a:.2g} points, of losses "
                      f"along the training {100 * g:.2g} %"
                      for data, a, g in zip(known, accuracies, gaps, strict=True)),
            [a <= SIMILAR for a in accuracies],
        ),
    ]  # fmt: skip
    for scheme in ("heun", "rk4"):

        def better(data: str, method: str, scheme: str = scheme) -> Pair:
            one, other = (f"{data} {which} {method}" for which in (scheme, "euler"))
            return 100 * values(one, "accuracy"), 100 * values(other, "accuracy")

        def equal(data: str, scheme: str = scheme) -> Pair:
            one, two = at_equal_work(results, f"{data} euler adam", f"{data} {scheme} adam")
            return one, two

        def smoother(data: str, scheme: str = scheme) -> Pair:
            return values(f"{data} euler gradient", "rises"), values(f"{data} {scheme} gradient",
                                                                     "rises")  # fmt: skip

        found += [
            claim(f"{scheme} has better results than Euler: test accuracy (points), Adam", section,
                  known, lambda data: better(data, "adam")),
            claim(f"{scheme} has better results than Euler: test accuracy (points), gradient "
                  "descent", section, known, lambda data: better(data, "gradient")),
            claim(f"{scheme} has a lower training loss than Euler after equal work (loss of Euler "
                  "over its), Adam", section, known, equal, ratio=True),
            claim(f"{scheme} makes training more stable than Euler: gradient descent raises the "
                  "loss in fewer iterations (share)", "[GPTOC] section 6", known, smoother),
        ]  # fmt: skip
    for scheme in STAGES:

        def ahead(data: str, scheme: str = scheme) -> Pair:
            adam, own = (after_iterations(results, f"{data} {scheme} {method}", maximisations)
                         for method in ("adam", "emsa"))  # fmt: skip
            return adam, own

        found.append(claim(
            f"extended MSA learns faster than Adam at first, by iterations, {scheme}: loss of Adam "
            f"after {maximisations} over its", "[LCTE2018] abstract", known, ahead, ratio=True,
        ))  # fmt: skip
        for method, title in (("adam", "Adam"), ("gradient", "gradient descent")):

            def cheaper(data: str, scheme: str = scheme, method: str = method) -> Pair:
                own, other = (f"{data} {scheme} {which}" for which in ("emsa", method))
                extended, plain = at_equal_work(results, own, other)
                return plain, extended

            found.append(claim(
                f"extended MSA needs fewer passes than {title}, {scheme}: loss of {title} over its "
                "after equal work", "question", known, cheaper, ratio=True,
            ))  # fmt: skip
    own = [f"{data} {scheme} emsa" for data in known for scheme in STAGES]
    plain = [name.replace("emsa", "msa") for name in own]
    failed = sum(values(name, "failed").sum() for name in own)
    found += [
        Finding.decided(
            "extended MSA never raises the loss of the full batch, and always finds a rho that "
            "lowers it", "[LCTE2018], by doubling rho",
            "largest share of iterations with a rise "
            f"{max(values(name, 'rises').max() for name in own):g}; {failed:.0f} iterations found "
            "no lower loss for any rho",
            [not (values(name, "rises").any() or values(name, "failed").any()) for name in own],
        ),
        Finding.decided(
            "the basic MSA need not converge: its loss rises in some iterations",
            "[LCTE2018] abstract",
            "share of iterations with a rise, by data set: " + ", ".join(
                f"{data} {np.mean([values(n, 'rises') for n in plain if n.startswith(data)]):.2f}"
                for data in known),
            any(values(name, "rises").any() for name in plain),
        ),
    ]  # fmt: skip
    return found


def main() -> int:
    flags = study.command_line(PontryaginResnet, __doc__)
    setup = networks.with_flags(PRESETS[flags.preset], flags)
    every = models(flags.datasets)
    names = networks.chosen(every, setup.seeds, flags)
    with study.session("pontryagin_resnet", flags) as session, warnings.catch_warnings():
        warnings.filterwarnings("ignore", PLAIN)  # the tables have a column of it
        results = networks.train_all(
            session,
            flags,
            names,
            setup.seeds,
            lambda name, seed: plan(name, setup, flags, seed),
            lambda name, seed, training: measured(name, setup, flags, training, seed),
        )
        whole = networks.is_preset(setup, flags, PRESETS) and len(names) == len(every)
        session.finish(
            table=tabulated(results),
            text=report(flags, setup, results),
            findings=findings(results, setup.maximisations) if whole else [],
            figures=figures(setup, results),
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
