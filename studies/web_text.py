"""Web text with a GPT-2: discrete, and continuous in time with its transport cost.

A causal transformer of 123.7 million parameters learns the next byte pair of OpenWebText, 9 billion
of them, which are read from the disk as they are needed. In the continuous models blocks and final
norm together are the velocity of the hidden states, as in the published code. Losses, both
perplexities, and BLEU, ROUGE and BERTScore of predicted texts: [OTT] section 5.4, Table 13.

The preset paper reads token files that `wflow data prepare openwebtext FOLDER` has made; cpu makes
them of 122 articles of wikitext-2, with the first 3,839 byte pairs of GPT-2.

The published runs weigh the mean square of the velocity without the factor 1/2 of [OTT1] eq. 8:
`--lam` is theirs, twice that of `ContinuousTransformer(cost="mean")`. `--published` follows the
published code where it differs from the paper: lam = 0.1 in place of 1, and gradients that are
summed over the parts of a batch, not averaged.

    python studies/web_text.py
    torchrun --nproc-per-node 8 studies/web_text.py --preset paper --precision bfloat16 --compile

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, arXiv 2505.13499.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from _shakespeare_words import examine, models
from _texts import SCALARS, TextFlags
from _web_text import PRESETS, load, plan, report, with_parts

from wflow import study
from wflow._core.command_line import check_folder
from wflow.cli import guarded
from wflow.study import Finding, networks
from wflow.study.networks import Results


@dataclass(frozen=True, kw_only=True)
class WebTextFlags(TextFlags):
    """Flags of this study."""

    torchrun: ClassVar[bool] = True
    tokens: str | None = None
    """Folder of token files; default: openwebtext-tokens in --data for paper, otherwise made in
    --out."""
    parts: int | None = None
    """Parts in which a process computes its share of a batch, for memory; default: of the
    preset."""
    out: study.Folder = Path("results/web_text")
    """Folder for checkpoints, metrics, summary, samples and figures."""

    def check(self) -> None:
        super().check()
        check_folder(self.tokens, "--tokens")
        if self.parts is not None:
            study.whole(self.parts, "--parts")


def findings(results: Results) -> list[Finding]:
    """Claims of the paper, with their verdicts."""

    def values(name: str, key: str) -> np.ndarray:
        return np.array([record[key] for record in results.records[name]])

    def claim(statement: str, source: str, high: np.ndarray, low: np.ndarray) -> Finding:
        text, verdict = networks.compared(high, low)
        return Finding(statement, source, f"difference {text}", verdict)

    def pair(key: str, better: str = "baseline") -> tuple[np.ndarray, np.ndarray]:
        return values(better, key), values("continuous", key)

    table = "[OTT] Table 13"
    verdicts = [
        claim("the continuous model with transport cost ends with a lower test loss than the "
              "baseline of the same size", table, *pair("final")),
        claim("its best test loss is lower, too", table, *pair("best")),
        claim("its perplexity, the mean over windows, is lower", table,
              *pair("perplexity_windows")),
        claim("the transport cost lowers the final test loss of the continuous model",
              "[OTT] section 5.5", *pair("final", "unregularised")),
        claim("the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
              *pair("straightness", "unregularised")),
    ]  # fmt: skip
    titles = {"bleu": "BLEU", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
    titles["bertscore"] = "BERT-F1"
    for kind, words in {"forced": "next tokens", "generated": "generated text"}.items():
        for key, title in titles.items():
            low, high = pair(f"{kind}_{key}")
            if np.isfinite([low, high]).all():
                verdicts.append(
                    claim(f"the continuous model has the higher {title} of {words}", table, high,
                          low)
                )  # fmt: skip
    return verdicts


def figures(results: Results) -> dict[str, Any]:
    """Learning curves."""
    from wflow.plots.networks import learning_curves

    curves = {"data": "training loss", "test_loss": "test loss"}
    return {"learning_curves": learning_curves(results.histories, curves)}


def main() -> int:
    flags = study.command_line(WebTextFlags, __doc__)
    setup: Any = with_parts(networks.with_flags(PRESETS[flags.preset], flags), flags)
    listed = models(setup)
    names = networks.chosen(listed, setup.seeds, flags)
    with study.session("web_text", flags) as session:
        text: Any = networks.in_first(flags, lambda: load(setup, flags))
        results = networks.train_all(
            session,
            flags,
            names,
            setup.seeds,
            lambda name, seed: plan(listed[name], setup, text, flags, seed),
            lambda name, seed, trained: examine(name, trained, setup, text, flags, seed),
        )
        pieces = [f"## {name}\n{runs[0]['sample']}\n" for name, runs in results.records.items()]
        whole = networks.is_preset(setup, flags, PRESETS) and len(names) == len(listed)
        session.finish(
            table=networks.dataset(results, SCALARS, {}, {}),
            text=report(flags, setup, text, listed, results),
            findings=findings(results) if whole else [],
            figures=figures(results),
            texts={"samples.txt": "\n".join(pieces)},
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
