"""Clouds of points with a Set Transformer: discrete, continuous in time, and with transport cost.

Two induced blocks and pooling by attention classify clouds. The baseline applies its blocks once;
the continuous models let narrower ones be the velocity of the points: both one system, or one
system per block (`node`, the N-ODE transformer). Test accuracy, accuracy with points removed and
with clouds rotated, and whether the training stays finite without the transport cost, or with a
slight one: [OTT] section 5.1, Tables 3 and 6.

    python studies/ott/point_clouds.py --preset cpu --dataset solids
    python studies/ott/point_clouds.py --preset paper --device cuda --data FOLDER

The `paper` preset needs ModelNet40; `cpu` takes MNIST as sets of pixels, or solids.

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, arXiv 2505.13499.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from _ott import claim, largest, no_better, with_habits
from _point_clouds import DROPPED, ROTATED, Setup, examine, load, models, plan, report, test_set

from wflow import study
from wflow._core.checks import positive, whole
from wflow.cli import guarded
from wflow.study import networks
from wflow.study.flags import Switch
from wflow.study.networks import Results

DEFAULT_OUT = Path("results/point_clouds")
SMALL = Setup(
    seeds=3, batch=32, rate=2e-3, width_baseline=40, width=32, inducing=8, dropout=0.0, points=64
)
PRESETS = {
    ("paper", "modelnet40"): Setup(),
    ("cpu", "mnist"): replace(
        SMALL, dataset="mnist", train=10_000, test=2_000, points=96, epochs=5
    ),
    ("cpu", "solids"): replace(
        SMALL, dataset="solids", train=2_400, test=600, stored=128, epochs=20
    ),
    ("smoke", "solids"): replace(
        SMALL, dataset="solids", train=48, test=24, stored=32, points=16, seeds=2, epochs=2,
        batch=8, width_baseline=16, width=8, heads=2, inducing=4, steps=2,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PointClouds(networks.NetFlags):
    """Flags of this study."""

    torchrun: ClassVar[bool] = True
    dataset: Literal["modelnet40", "mnist", "solids"] | None = None
    """ModelNet40, digits of MNIST as sets of pixels, or solids; default: modelnet40 with the preset
    paper, mnist with cpu, solids with smoke."""
    epochs: int | None = None
    """Epochs; the rate falls to a tenth after three quarters of them. Default: of the preset."""
    points: int | None = None
    """Points that are taken of each cloud, at most; default: of the preset."""
    rate: float | None = None
    """Learning rate of the first three quarters; default: of the preset."""
    cost: Literal["mean", "sum"] = "mean"
    """Transport cost over the entries of the hidden states ([OTT1] eq. 8), or their sum ([OTT])."""
    published: Switch = False
    """Habits of the code that the published experiment builds on: the same points of a cloud at
    every visit, ModelNet40 moved by the mean of all coordinates in place of its centre, and the
    test clouds left out that make no whole batch."""
    checkpointing: Switch = False
    """Compute the steps of continuous models again for their gradient: less memory, more time."""
    out: study.Folder = DEFAULT_OUT
    """Folder for checkpoints, metrics, summary and figures; the name of the data set is added to
    the default."""

    def check(self) -> None:
        super().check()
        for name in ("epochs", "points"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), f"--{name}")
        if self.rate is not None:
            positive(self.rate, "--rate")


def preset(flags: PointClouds) -> Setup:
    """The preset of the flags for its data set, or for another one as near as it goes."""
    default = {"paper": "modelnet40", "cpu": "mnist", "smoke": "solids"}[flags.preset]
    dataset = flags.dataset or default
    found = PRESETS.get((flags.preset, dataset))
    if found is None:  # the sizes of the preset with the clouds of another one
        source = next(setup for (_, name), setup in PRESETS.items() if name == dataset)
        sizes = {key: getattr(source, key) for key in ("dataset", "train", "test", "stored")}
        if flags.preset == "paper":  # all clouds that there are
            sizes |= {"train": None, "test": None}
        found = replace(PRESETS[flags.preset, default], **sizes)
    return found


def tabulated(results: Results) -> Any:
    """All numbers as a Dataset."""
    return networks.dataset(
        results,
        {
            "final": ("test accuracy after the last epoch", "1"),
            "best": ("best test accuracy of any epoch", "1"),
            "training": ("training loss without the cost, mean of the last epoch", "1"),
            "straightness": ("arc length over chord of hidden states, first test clouds", "1"),
            "speed_variation": ("standard deviation over mean of the speed, likewise", "1"),
            "transport": ("transport cost, likewise", "1"),
            "gradient": ("largest norm of a gradient in training", "1"),
            "diverged": ("whether the loss stopped being finite", "1"),
            "seconds": ("time of the training steps", "s"),
        },
        {
            "dropped": ("accuracy_dropped", "share", "test accuracy with points removed"),
            "rotated": ("accuracy_rotated", "angle", "test accuracy with clouds rotated"),
        },
        {
            "share": (DROPPED, "share of the points removed"),
            "angle": (ROTATED, "angle of the rotation in degrees"),
        },
    )


def findings(results: Results) -> list[study.Finding]:
    """Claims of the paper, with their verdicts."""

    def values(name: str, key: str, place: int | None = None) -> np.ndarray:
        records = results.records[name]
        return np.array([r[key] if place is None else r[key][place] for r in records], float)

    def lost(name: str, level: int) -> np.ndarray:
        return values(name, "dropped", 0) - values(name, "dropped", level)

    def pair(key: str, place: int | None = None, than: str = "baseline") -> Any:
        return values("continuous", key, place), values(than, key, place)

    table, robust = "[OTT] Table 6", "[OTT] Table 3"
    levels = range(1, len(DROPPED))
    shares = [f"{100 * share:g} %" for share in DROPPED[1:]]
    return [
        claim("the continuous model with transport cost is more accurate than the larger baseline, "
              "at the end and in its best epoch", table, pair("final"), pair("best")),
        claim("it is more accurate than the N-ODE transformer", table,
              pair("final", than="node"), pair("best", than="node")),
        no_better("the N-ODE transformer is no more accurate than the baseline", table,
                  (values("node", "final"), values("baseline", "final")),
                  (values("node", "best"), values("baseline", "best"))),
        claim("its training loss is below that of the baseline", "[OTT] Figure 2",
              (-values("continuous", "training"), -values("baseline", "training")), unit=""),
        claim("with points removed it stays more accurate than the baseline, for every share",
              robust, *(pair("dropped", k) for k in levels), labels=shares),
        claim("with points removed it loses less than the baseline, for every share", robust,
              *((-lost("continuous", k), -lost("baseline", k)) for k in levels), labels=shares),
        claim("the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
              (-values("continuous", "straightness"), -values("unregularised", "straightness")),
              unit=""),
        *explosions(results),
    ]  # fmt: skip


def explosions(results: Results) -> list[study.Finding]:
    """Whether trainings without, with slight, and with sufficient regularisation blow up."""

    def gone(name: str) -> tuple[int, int, float]:
        runs = results.records[name]
        return (
            sum(r["diverged"] for r in runs),
            len(runs),
            largest(r["gradient"] for r in runs),
        )

    found = []
    source = "[OTT] Appendix I, point clouds"
    for name, words in (
        ("unregularised", "without transport cost the training of the continuous model blows up"),
        ("slight", "with a slight transport cost it blows up, too"),
    ):
        count, runs, norm = gone(name)
        verdict: Any = "confirmed" if count == runs else "confirmed in part"
        text = f"{count} of {runs} runs, largest gradient {norm:.3g}"
        found.append(study.Finding(words, source, text, verdict if count else "not confirmed"))
    kept = [gone(name) for name in ("continuous", "node")]
    count, runs = sum(k for k, _, _ in kept), sum(n for _, n, _ in kept)
    text = f"{count} of {runs} runs diverged, largest gradient {largest(g for _, _, g in kept):.3g}"
    verdict = "not confirmed"
    if not count:
        verdict = "confirmed" if gone("unregularised")[0] else "inconclusive"
        text += "" if verdict == "confirmed" else "; without the cost none did either"
    words = "with sufficient transport cost the training never blows up"
    return [*found, study.Finding(words, source, text, verdict)]


def figures(results: Results) -> dict[str, Any]:
    """Learning curves; accuracy with points removed and with clouds rotated."""
    from wflow.plots.networks import Line, learning_curves, lines

    def drawn(key: str, settings: Any) -> list[Line]:
        records = results.records.items()
        return [Line(name, settings, [r[key] for r in runs]) for name, runs in records]

    panels = {
        "Points removed": ("share of the points", drawn("dropped", DROPPED)),
        "Clouds rotated": ("angle (degrees)", drawn("rotated", ROTATED)),
    }
    curves = {"data": "training loss", "accuracy": "test accuracy"}
    return {
        "learning_curves": learning_curves(results.histories, curves),
        "robustness": lines(panels, "Test accuracy"),
    }


def main() -> int:
    flags = study.command_line(PointClouds, __doc__)
    given = preset(flags)
    if flags.out == DEFAULT_OUT:
        flags = replace(flags, out=DEFAULT_OUT.with_name(f"{DEFAULT_OUT.name}_{given.dataset}"))
    setup = networks.with_flags(given, flags)
    listed = models(setup)
    names = networks.chosen(listed, setup.seeds, flags)
    with study.session("point_clouds", flags) as session:
        clouds = networks.on_rank_zero(flags, lambda: load(setup, flags))
        test = test_set(setup, clouds, flags)
        results = networks.train_all(
            session,
            flags,
            names,
            setup.seeds,
            lambda name, seed: plan(name, setup, clouds, test, flags, seed),
            lambda name, seed, training: networks.cached_record(
                networks.folder_of(flags.out, name, seed),
                [setup.test, setup.points, flags.published],
                training,
                lambda: examine(training, setup, test, seed),
            ),
        )
        whole = networks.is_preset(setup, flags, {flags.preset: given}) and flags.cost == "mean"
        decided = findings(results) if whole and len(names) == len(listed) else []
        session.finish(
            table=tabulated(results),
            text=report(flags, setup, clouds, results),
            findings=with_habits(decided, flags),
            figures=figures(results),
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
