"""GPTs of three small sizes on tiny Shakespeare: losses, BLEU of generated text, and times.

The sizes S, M and L of the report (width 16, 32, 64; 1, 2, 4 blocks) learn characters, and the byte
pairs of GPT-2, in 20 epochs at the published learning rate. Generated continuations of held-out
beginnings are compared with the held-out text by BLEU, in three ways, beside the published 12 %
(Python) and 2.9 % (Julia), 116 s and 542 s: [GPTOC] sections 3.2.4 and 5.1.

The published sizes fit two cores, so the preset cpu has them too: it differs from paper in the
number of seeds, 2 in place of 5. BLEU needs the package sacrebleu; without it everything else is
measured.

    python studies/control/nanogpt_sizes.py
    python studies/control/nanogpt_sizes.py --only "S characters" "S byte pairs" --seeds 1

[GPTOC] Croizet, De Vos, Hajem, Basso, Guerafi, Wu, "GPT Project Part 1 Report", 2025.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import tyro
from _nanogpt_sizes import (
    EARLY,
    METHODS,
    PRESETS,
    PUBLISHED,
    PUBLISHED_CHARACTERS,
    PUBLISHED_LINES,
    Corpus,
    Setup,
    examine,
    figures,
    floor,
    load,
    metric,
    models,
    plan,
    report,
    samples,
    tabulated,
)

from wflow import study
from wflow._core.checks import number, positive, whole
from wflow.cli import guarded
from wflow.study import Finding, networks
from wflow.study.networks import Results

NEGLIGIBLE = 0.02  # rise of a test loss that is no overfitting
SETTLED = 0.05  # of the whole fall, in the last quarter
AROUND = 0.1  # relative difference from a number said to be about another

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class NanogptSizes(networks.NetFlags):
    """Flags of this study."""

    needs: ClassVar[dict[str, str]] = networks.NEEDS | {"sacrebleu": "metrics"}
    epochs: int | None = None
    """Passes through the training text; default: of the preset."""
    rate: float | None = None
    """Learning rate, constant; default: of the preset."""
    temperature: float | None = None
    """Temperature at which text is generated; 0 takes the likeliest tokens. Default: of the
    preset."""
    steps: tyro.conf.Suppress[int | None] = None
    lam: tyro.conf.Suppress[float | None] = None
    out: study.Folder = Path("results/nanogpt_sizes")
    """Folder for checkpoints, metrics, summary, samples and figures."""

    def check(self) -> None:
        super().check()
        if self.epochs is not None:
            whole(self.epochs, "--epochs")
        if self.rate is not None:
            positive(self.rate, "--rate")
        if self.temperature is not None:
            number(self.temperature, "--temperature", least=0.0)


def findings(
    setup: Setup, results: Results, corpora: Mapping[str, Corpus], real: Mapping[str, list[float]]
) -> list[Finding]:
    """Claims of the report, with their verdicts; `real` are scores of held-out passages."""
    names, listed = list(models(setup)), models(setup)

    def values(name: str, key: str) -> np.ndarray:
        return np.array([record[key] for record in results.records[name]], dtype=float)

    def claim(
        statement: str,
        source: str,
        pair: Callable[[str], Pair],
        cases: Mapping[str, str] | None = None,
    ) -> Finding:
        """Of every case, label -> name: what is said to be more, and what less."""
        found = {
            label: networks.compared(*pair(name))
            for label, name in (cases or {name: name for name in names}).items()
        }
        text = "; ".join(f"{label}: {text}" for label, (text, _) in found.items())
        return Finding(statement, source, text, networks.joint([v for _, v in found.values()]))

    def against(key: str, level: float, below: bool = False) -> Callable[[str], Pair]:
        def pair(name: str) -> Pair:
            found = values(name, key)
            same = np.full(found.size, level)
            return (same, found) if below else (found, same)

        return pair

    nexts = {
        f"{larger} over {smaller}, {kind}": f"{larger} {kind}"
        for kind in setup.tokens
        for smaller, larger in (("S", "M"), ("M", "L"))
    }

    def smaller(name: str) -> str:
        return f"{'S' if name[0] == 'M' else 'M'}{name[1:]}"

    long = {name: name for name in names if results.records[name][0]["iterations"] > EARLY}
    section = "[GPTOC] section 5.1"
    verdicts = [
        claim("a larger network learns more: its test loss is lower", "[GPTOC] section 3.2.4",
              lambda name: (values(smaller(name), "test"), values(name, "test")), nexts),
        claim(f"more than half of the fall of the training loss comes in the first {EARLY} "
              "iterations", section, against("early_train", 0.5), long),
        claim(f"more than half of the fall of the validation loss comes in the first {EARLY} "
              "iterations", section, against("early_test", 0.5), long),
        claim("the loss stabilises: in the last quarter of the training the test loss changes by "
              f"less than {100 * SETTLED:g} % of its fall", section,
              against("late", SETTLED, below=True)),
        claim("20 epochs are a balance between learning and overfitting: the test loss ends less "
              f"than {NEGLIGIBLE:g} above its least value", "[GPTOC] section 3.2.4",
              lambda name: (np.full(setup.seeds, NEGLIGIBLE),
                            values(name, "test") - values(name, "best"))),
        Finding.decided(
            "a learning rate of 0.01 trains every size: no run diverges, or ends above the loss of "
            "token frequencies", "[GPTOC] section 3.2.4",
            results.diverged() or "no run diverged; largest test loss "
            + ", ".join(f"{name} {values(name, 'test').max():.2f}" for name in names),
            [bool((values(name, "test") < corpora[listed[name][1]].frequencies).all())
             for name in names],
        ),
        Finding.decided(
            f"tiny Shakespeare has {PUBLISHED_LINES:,} lines", "[GPTOC] section 2.1.1",
            f"{(lines := next(iter(corpora.values())).lines):,} lines", lines == PUBLISHED_LINES,
        ),
    ]  # fmt: skip
    if len(setup.tokens) > 1:
        section = "[GPTOC] section 2.1.2"
        found = corpora["characters"].text.vocabulary
        both = {size: size for size in setup.sizes}

        def against_pairs(key: str, *, more: str) -> Callable[[str], Pair]:
            less = next(kind for kind in setup.tokens if kind != more)
            return lambda size: (values(f"{size} {more}", key), values(f"{size} {less}", key))

        verdicts += [
            Finding.decided(f"the text has around {PUBLISHED_CHARACTERS} different characters",
                            section, f"{found}", abs(found / PUBLISHED_CHARACTERS - 1) <= AROUND),
            claim("characters give worse results than pieces of words: more bits per character",
                  section, against_pairs("bits", more="characters"), both),
            claim("more tokens can increase the training time: all epochs with byte pairs take "
                  "longer (s)", section, against_pairs("seconds", more="byte pairs"), both),
            claim("an iteration with byte pairs takes longer (ms)", section,
                  against_pairs("milliseconds", more="byte pairs"), both),
        ]  # fmt: skip
    if metric() is None:
        return verdicts
    score = PUBLISHED["Python"][0]
    table = "[GPTOC] Table 1"
    verdicts += [
        claim(f"generated text has a BLEU of at least {score:g} % ({method})", table,
              against(key, score))
        for key, method in METHODS.items()
    ]  # fmt: skip

    verdicts += [
        claim("BLEU reflects the quality of the text: it is higher for a larger network", table,
              lambda name: (values(name, "bleu"), values(smaller(name), "bleu")), nexts),
        claim("BLEU reflects the quality of the text: another passage of Shakespeare scores "
              "higher than the network", table,
              lambda name: (np.array(real["bleu"]), values(name, "bleu"))),
    ]  # fmt: skip
    return verdicts


def main() -> int:
    flags = study.command_line(NanogptSizes, __doc__)
    setup = networks.with_flags(PRESETS[flags.preset], flags)
    listed = models(setup)
    names = networks.chosen(listed, setup.seeds, flags)
    with study.session("nanogpt_sizes", flags) as session:
        kinds = dict.fromkeys(listed[name][1] for name in names)
        corpora = {kind: load(setup, kind, flags.data) for kind in kinds}

        results = networks.train_all(
            session,
            flags,
            names,
            setup.seeds,
            lambda name, seed: plan(listed[name][0], setup, corpora[listed[name][1]].text, flags,
                                    seed),
            lambda name, seed, training: examine(
                name, training, setup, corpora[listed[name][1]], flags.out, seed
            ),
        )  # fmt: skip
        real = floor(next(iter(corpora.values())).continuations)
        whole = networks.is_preset(setup, flags, PRESETS) and len(names) == len(listed)
        session.finish(
            table=tabulated(results),
            text=report(flags, setup, corpora, results, real),
            findings=findings(setup, results, corpora, real) if whole else [],
            figures=figures(setup, results),
            texts={"samples.txt": samples(corpora, setup, results)},
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
