"""A GPT trained by Pontryagin's principle: costates, transport cost, and extended MSA.

What [GPTOC] proposes for nanoGPT. A GPT of its size S, one whose block is the velocity of a
dynamical system (`continuous`), and one of several blocks (`deep`) learn the characters of
Shakespeare: by back-propagation and by costates, which give the same gradients with less memory;
with the transport cost of [OTT] as running cost; and by the maximum principle itself, the extended
method of successive approximations of [LCTE2018], with small batches and with one batch. The
Hamiltonian along depth is measured before and after.

    python studies/control/pontryagin_gpt.py
    python studies/control/pontryagin_gpt.py --only "S" "S costates" "S MSA" --seeds 1

[GPTOC] Croizet, De Vos, Hajem, Basso, Guerafi, Wu, "GPT Project Part 1 Report", 2025. [LCTE2018]
Li, Chen, Tai, E, J. Mach. Learn. Res. 18. [OTT] Kan et al., arXiv 2505.13499.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from _pontryagin_gpt import (
    MODELS,
    NUDGE,
    PRESETS,
    adam_beside,
    examine,
    figures,
    load,
    plan,
    report,
    tabulated,
)

from wflow import study
from wflow._core.checks import positive, whole
from wflow.cli import guarded
from wflow.study import Finding, networks
from wflow.study.networks import Results

ROUNDING = 1e-12  # relative difference of gradients in double precision
CHANCE = 30.0  # times by which two differences that grow from rounding may differ
ORDER, SPREAD = 1.0, 0.25  # of Euler's scheme, and what counts as it

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class PontryaginGpt(networks.NetFlags):
    """Flags of this study."""

    iterations: int | None = None
    """Iterations of Adam; default: of the preset."""
    maximised: int | None = None
    """Iterations of extended MSA; default: of the preset."""
    rate: float | None = None
    """Learning rate of Adam, constant; default: of the preset."""
    rho: float | None = None
    """Weight of the augmentation of the Hamiltonian, from which it doubles; default: of the
    preset."""
    compile: tyro.conf.Suppress[study.Switch] = False  # sweeps of costates are not compiled
    out: study.Folder = Path("results/pontryagin_gpt")
    """Folder for checkpoints, metrics, summary and figures."""

    def check(self) -> None:
        super().check()
        for name in ("iterations", "maximised"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), f"--{name}")
        for name in ("rate", "rho"):
            if getattr(self, name) is not None:
                positive(getattr(self, name), f"--{name}")


def findings(results: Results) -> list[Finding]:
    """What theory and report say, with verdicts."""

    def values(name: str, key: str) -> np.ndarray:
        return np.array([record[key] for record in results.records[name]], dtype=float)

    def decided(
        statement: str,
        source: str,
        text: Callable[[str], str],
        holds: Callable[[str], bool],
        names: list[str],
    ) -> Finding:
        found = "; ".join(f"{name}: {text(name)}" for name in names)
        return Finding.decided(statement, source, found, [holds(name) for name in names])

    def claim(
        statement: str, source: str, pairs: Mapping[str, Pair], *, ratio: bool = False
    ) -> Finding:
        """Of every case what is said to be more, and what less, by seed."""
        found = {label: networks.paired(*pair, ratio=ratio) for label, pair in pairs.items()}
        text = "; ".join(f"{label}: {text}" for label, (text, _) in found.items())
        return Finding(statement, source, text, networks.joint([v for _, v in found.values()]))

    def of(text: str, *keys: str) -> Callable[[str], str]:
        return lambda name: text.format(*(values(name, key).max() for key in keys))

    bodies = ["continuous", "deep"]
    plain = [f"{body} costates" for body in ("S", *bodies)]
    long = plain[1:]
    small = [name for name, model in MODELS.items() if model.method == "MSA" and not model.fixed]
    fixed = [name for name, model in MODELS.items() if model.fixed]
    costs = {
        "continuous, Adam": ("continuous cost", "continuous costates"),
        "continuous, MSA": ("continuous MSA cost", "continuous MSA"),
        "deep, Adam": ("deep cost", "deep costates"),
    }
    shared = [name for name, model in MODELS.items() if model.body == "continuous"]
    adam = {name: adam_beside(results, name) for name in small}
    steps = {name: results.records[name][0]["iterations"] for name in small + fixed}

    def pairs(key: str) -> dict[str, Pair]:
        """Without and with the transport cost."""
        return {label: (values(b, key), values(a, key)) for label, (a, b) in costs.items()}

    def memory(key: str) -> Finding:
        words = {"back_propagation": "back-propagation", "checkpoint": "checkpointing of each step"}
        return decided(
            f"costates need less memory than {words[key]}", "theory: costates",
            of("{:.2f} MB against {:.2f}", "memory_costates", f"memory_{key}"),
            lambda name: bool((values(name, "memory_costates") < values(name, f"memory_{key}"))
                              .all()), long,
        )  # fmt: skip

    def total(name: str, key: str) -> str:
        return f"{values(name, key).sum():.0f} of {steps[name] * len(values(name, key))} steps"

    return [
        decided("gradients by costates are those of back-propagation to rounding",
                "[BCEOS2019]", of("largest relative difference {:.1e}", "gradients"),
                lambda name: bool((values(name, "gradients") < ROUNDING).all()), plain),
        decided("so are the losses of a training: they differ by what a change of the first "
                f"weights by {NUDGE:g} grows to, within a factor of {CHANCE:g}", "question",
                of("relative difference {:.1e}, of changed weights {:.1e}", "apart", "nudged"),
                lambda name: bool((values(name, "apart") <= CHANCE * values(name, "nudged")).all()),
                plain),
        memory("back_propagation"),
        memory("checkpoint"),
        decided("with one batch and no dropout no step of extended MSA raises the loss, and none "
                "fails", "[LCTE2018], by doubling rho",
                lambda name: f"raised in {total(name, 'rose')}, failed in {total(name, 'failed')}",
                lambda name: bool(((values(name, "rose") == 0) & (values(name, "failed") == 0))
                                  .all()), fixed),
        decided("with small batches and dropout no step of extended MSA fails to lower the loss of "
                "its batch", "question", lambda name: f"failed in {total(name, 'failed')}",
                lambda name: bool((values(name, "failed") == 0).all()), small),
        decided("and the test loss falls from each evaluation to the next", "question",
                of("rose in up to {:.0%} of them", "test_rises"),
                lambda name: bool((values(name, "test_rises") == 0).all()), small),
        claim("optimal control improves the performance of nanoGPT: after as many batches extended "
              "MSA has a lower test loss than Adam", "[GPTOC] section 6",
              {name: (adam[name]["batches"], values(name, "test")) for name in small}),
        claim("and its efficiency: after as much time, too", "[GPTOC] section 6",
              {name: (adam[name]["time"], adam[name]["own"]) for name in small}),
        claim("the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
              pairs("straightness")),
        claim("and at a more constant speed", "[OTT] Prop. 1", pairs("speed")),
        claim("and the Hamiltonian more constant along depth, over |p| |f| + L", "question",
              pairs("variation"), ratio=True),
        decided("with shared weights the range of the Hamiltonian falls with the length of the "
                "steps at the order of Euler's scheme, 1", "theory: Hamiltonian",
                lambda name: f"order {values(name, 'order').min():.2f} to "
                             f"{values(name, 'order').max():.2f}",
                lambda name: bool((abs(values(name, "order") - ORDER) < SPREAD).all()), shared),
        claim("training makes the Hamiltonian of separate weights more constant, as that of an "
              "optimal control is", "theory: maximum principle",
              {name: (values(name, "variation_before"), values(name, "variation"))
               for name in MODELS if MODELS[name].body == "deep"}, ratio=True),
    ]  # fmt: skip


def main() -> int:
    flags = study.command_line(PontryaginGpt, __doc__)
    setup = networks.with_flags(PRESETS[flags.preset], flags)
    names = networks.chosen(MODELS, setup.seeds, flags)
    with study.session("pontryagin_gpt", flags) as session:
        text = load(setup, flags.data)
        results = networks.train_all(
            session,
            flags,
            names,
            setup.seeds,
            lambda name, seed: plan(MODELS[name], setup, text, flags, seed),
            lambda name, seed, training: examine(name, training, setup, text, flags.out, seed),
        )
        whole = networks.is_preset(setup, flags, PRESETS) and len(names) == len(MODELS)
        session.finish(
            table=tabulated(setup, results),
            text=report(flags, setup, text, results),
            findings=findings(results) if whole else [],
            figures=figures(results),
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
