"""Digits from flows in the latent space of an autoencoder, with and without sparse attention.

An autoencoder maps MNIST to d = 16 and 64 coordinates. There OT-Flow, the sparse-transformer flow
as printed, its correction and a variant with one late layer are trained, and compared on held-out
digits: likelihood, and Fréchet distance in the features of a classifier trained here. How far
the tokens interact at all is measured by the effective sample size of the attention: [RWPO]
section 4.3, figure 7, and Table 1.

    python studies/rwpo/rwpo_digits.py --preset cpu
    torchrun --nproc-per-node 8 studies/rwpo/rwpo_digits.py --preset paper

[RWPO] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein Proximal
Operator with L1 Prior", 2025.
"""

from __future__ import annotations

import copy
import functools
import warnings
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from _rwpo import FlowFlags, config, learning_curves, make_flow, too_far

from wflow import nets, sampling, study
from wflow.cli import script
from wflow.plots.figure import PAGE, grid, style
from wflow.plots.networks import COLOURS
from wflow.study import networks
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NAME = "rwpo_digits"
SECTION = "[RWPO] section 4.3"
LATE = 0.1  # lambda of the model with one late layer
TRAINED = {"trainable": ("lam", "beta")}
# Options of SparseTransformerFlow; None is OT-Flow. Steps are counted from the base.
MODELS: dict[str, dict[str, Any] | None] = {
    "OT-Flow": None,
    "corrected": TRAINED,
    "with itself": {**TRAINED, "itself": True},
    "late layer": {"attended": (-1,), "lam": LATE},
    "printed": {**TRAINED, "convention": "published"},
    "printed exact": {**TRAINED, "convention": "published", "kernel": "exact"},
    "printed Laplace": {**TRAINED, "convention": "published", "kernel": "laplace"},
}
PAPER_BETA, PAPER_H = 1.0, 1 / 48
BETAS = tuple(float(beta) for beta in np.logspace(-4, 1, 21))
ENOUGH = 30.0  # effective sample size
CLOUD = 1024  # tokens whose attention is looked at: the batch of the paper
HELD_OUT = slice(None, None, 5)  # of the test digits: the first half of MNIST's is easier
PART = 256  # tokens that are followed at a time: as many as in training, for they may be a context
GRID = 6  # digits along a side of an interpolation
SPARSE = {
    "corrected": "the corrected sparse flow",
    "with itself": "the corrected flow whose tokens attend to themselves",
    "late layer": "the flow with one late layer, ESS >= 30,",
}
PRINTED = {
    "printed": "the flow as printed, with its misprinted kernel,",
    "printed exact": "the printed flow with the exact kernel",
    "printed Laplace": "the printed flow with Laplace's kernel",
}


@dataclass(frozen=True, kw_only=True)
class RwpoDigits(FlowFlags):
    """Flags of this study."""

    durations: ClassVar = {"smoke": "seconds", "cpu": "minutes a model on two cores"}
    presets: ClassVar = {
        "paper": {
            "width": 128, "iterations": 12_001, "batch": 1024, "rates": (1e-3, 1e-6),
            "alpha": (1.0, 1.0, 5.0), "evaluations": 40,
        },
        "cpu": {
            "dims": (16, 64), "epochs": 6, "seeds": 3, "steps": 8, "width": 64, "iterations": 500,
            "batch": 128, "tokens": 64, "rates": (2e-2, 1e-4), "alpha": (1.0, 1 / 80, 0.1),
            "samples": 2000, "evaluations": 12,
        },
        "smoke": {
            "dataset": "digits", "dims": (3, 5), "hidden": 16, "epochs": 6, "seeds": 2, "steps": 2,
            "width": 8, "iterations": 4, "batch": 32, "tokens": 32, "rates": (1e-2, 1e-3),
            "alpha": (1.0, 1.0, 5.0), "samples": 40, "evaluations": 2,
        },
    }  # fmt: skip
    dataset: Literal["mnist", "digits"] = "mnist"
    """Digits of MNIST, or the small ones of scikit-learn."""
    dims: study.Distinct[study.Count] = (64,)
    """Dimensions d of the latent space."""
    hidden: study.Count = 256
    """Width of the autoencoders."""
    epochs: study.Count = 20
    """Epochs of the autoencoders and the classifier."""
    tokens: study.Count = 512
    """Tokens of an independent context, beside the batch."""
    lam: study.Nonnegative = 2.0
    """Weight lambda of the L1 prior, where training begins."""
    samples: study.Count = 10_000
    """Pictures of each Fréchet distance."""
    out: study.Folder = Path("results/rwpo_digits")


# Autoencoders and the classifier
# -------------------------------


@dataclass
class Latent:
    """A latent space: its autoencoder, and what is measured of it without a flow."""

    coder: nets.generative.Autoencoder
    error: float  # of reconstruction, mean square
    train: Tensor  # (n, d), whitened
    test: Tensor
    beta: float  # of the late layer
    floors: dict[str, float]
    interaction: dict[str, dict[str, Any]]
    pictures: dict[str, list[list[int]]]


@dataclass
class Tools:
    """What the flows share: data, latent spaces, and features of a classifier."""

    images: nets.data.Images
    train: Tensor  # (n, pixels) in [0, 1]
    test: Tensor
    classifier: torch.nn.Sequential | None = None
    accuracy: float = float("nan")
    held_out: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  # features
    latents: dict[int, Latent] = field(default_factory=dict)
    zeros: float = float("nan")
    seconds: float = 0.0

    @property
    def source(self) -> str:
        """The data in words."""
        return self.images.source

    @property
    def side(self) -> int:
        return int(self.images.train_images.shape[1])

    def seen(self, pictures: Tensor, layers: int | None = None) -> Tensor:
        """Return the output of the classifier, or of its first layers, for pictures (n, pixels)."""
        import torch

        assert self.classifier is not None
        images = pictures.float().reshape(-1, 1, self.side, self.side)
        with torch.no_grad():
            return torch.cat([self.classifier[:layers](part) for part in images.split(1000)])

    def features(self, pictures: Tensor) -> np.ndarray:
        """Return what the last layer of the classifier sees of pictures (n, pixels)."""
        return self.seen(pictures, -1).double().cpu().numpy()

    def frechet(self, pictures: Tensor) -> float:
        """Return the distance of pictures to all held-out digits; NaN where one is not finite."""
        if not bool(pictures.isfinite().all()):
            return float("nan")
        return float(sampling.frechet(self.features(pictures), self.held_out))


def classifier(side: int) -> torch.nn.Sequential:
    """Return a classifier: two convolutions of stride 2, 64 features, 10 classes."""
    from torch import nn

    least = (side + 3) // 4  # pixels along a side after both
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * least**2, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


@functools.cache
def prepare(flags: RwpoDigits) -> Tools:
    """Train autoencoders and classifier, or take up finished ones, and measure what is theirs."""
    import torch

    mnist = flags.dataset == "mnist"
    images = nets.data.mnist(folder=flags.data) if mnist else nets.data.digits()
    device = nets.train.device(flags.device)
    train, test = (
        nets.data.unit(part).flatten(1).to(device)
        for part in (images.train_images, images.test_images)
    )
    tools = Tools(images, train, test)
    shape = (-1, 1, tools.side, tools.side)
    batch = min(200, len(train) // 4)
    steps = flags.epochs * (len(train) // batch)

    def run(name: str, seed: int) -> Run:
        kind, _, dim = name.partition(" d")
        torch.manual_seed(seed)
        if kind == "classifier":
            model: torch.nn.Module = classifier(tools.side)
            pairs = train.reshape(shape).cpu(), images.train_labels.long()
            loss = nets.train.objective(nets.train.cross_entropy)
        else:
            bare = kind == "rectified"  # one layer with a ReLU, as the code of OT-Flow has it
            model = nets.generative.Autoencoder(
                int(dim), pixels=train.shape[1], hidden=0 if bare else flags.hidden, rectified=bare
            )
            pairs = train.cpu(), train.cpu()
            loss = nets.train.objective(torch.nn.functional.mse_loss)
        schedule = nets.train.Cosine(2e-3, 2e-5, 0, steps)
        settings = nets.train.TrainConfig(
            steps=steps, batch=batch, schedule=schedule, seed=seed, device=flags.device
        )
        data: Any = torch.utils.data.TensorDataset(*pairs)
        return Run(model, loss, data, settings, lambda model: {})

    def trained(name: str) -> Any:
        """The network, which another process of torchrun may have trained, from its file."""
        model = run(name, 0).model
        folder = networks.folder_of(flags.out, name, 0)
        nets.train.load_model(folder / nets.train.CHECKPOINT, model)
        return model.to(device).eval()

    coders = {d: f"autoencoder d{d}" for d in flags.dims}
    names = ["classifier", *coders.values(), f"rectified d{flags.dims[-1]}"]
    tools.seconds = networks.train_all(flags, names, 1, run, lambda *_: {}).seconds
    with torch.no_grad():
        tools.classifier = trained("classifier")
        right = tools.seen(test).argmax(1).cpu() == images.test_labels
        tools.accuracy = float(right.double().mean())
        tools.held_out = tools.features(test)
        tools.zeros = float((trained(names[-1]).encode(test) == 0).double().mean())
        for d, name in coders.items():
            tools.latents[d] = latent(flags, tools, d, trained(name))
    return tools


def latent(flags: RwpoDigits, tools: Tools, d: int, coder: nets.generative.Autoencoder) -> Latent:
    """Return latent vectors, floors of the Fréchet distance, and the attention of a cloud."""
    import torch

    train, test, few = tools.train, tools.test, slice(flags.samples)
    error = float((coder(test) - test).square().mean())
    coder.standardise(train)
    standardised = coder.encode(test[:CLOUD]).double().cpu().numpy()
    coder.standardise(train, whiten=True)
    z_train, z_test = coder.encode(train), coder.encode(test)
    whitened = z_test[:CLOUD].double().cpu().numpy()
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(flags.samples, d, generator=generator).to(train)
    tokens = z_train[: 2 * flags.tokens].double().cpu().numpy()
    pairs = tokens[: flags.tokens], tokens[flags.tokens :]
    some = test[HELD_OUT][:16]
    return Latent(
        coder, error, z_train, z_test,
        beta=beta_for(ENOUGH, *pairs, 1 / flags.steps, sampling.L1(LATE)),
        floors={
            "training digits": tools.frechet(train[few]),
            "reconstructed": tools.frechet(coder(train[few])),
            "gaussian": tools.frechet(coder.decode(normal)),
            "gaussian nll": -float(nets.generative.log_normal(z_test[HELD_OUT]).mean()),
        },
        interaction={
            "standardised": attention_of(standardised, flags.lam),
            "whitened": attention_of(whitened, flags.lam),
        },
        pictures={"held-out": as_bytes(some), "reconstructed": as_bytes(coder(some))},
    )  # fmt: skip


# Attention
# ---------


class Attention(NamedTuple):
    """Medians over the tokens of a cloud, and how much of them their attention explains."""

    beta: float
    self_weight: float  # of a token in the attention of all
    ess: float  # of its attention to the others
    explained: float  # 1 - |x - M|^2 / |x|^2, M of the others, means over tokens


def weights(
    x: np.ndarray, context: np.ndarray, h: float, beta: float, prior: Any, alone: bool = False
) -> np.ndarray:
    """Return the softmax of the interaction, (n, m); without the diagonal where `alone`."""
    scores = np.asarray(sampling.interaction(x, context, h=h, beta=beta, prior=prior))
    if alone:
        np.fill_diagonal(scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(scores / scores.sum(axis=1, keepdims=True))


def effective_size(found: np.ndarray) -> float:
    """Return the median over the rows of 1 / sum of squared weights."""
    return float(np.median(1 / np.square(found).sum(axis=1)))


def attention_at(x: np.ndarray, h: float, beta: float, lam: float) -> Attention:
    prior = sampling.L1(lam)
    others = weights(x, x, h, beta, prior, alone=True)
    left = np.square(x - others @ x).sum(axis=1).mean()
    every = weights(x, x, h, beta, prior)
    whole = np.square(x - x.mean(axis=0)).sum(axis=1).mean()
    return Attention(
        beta, float(np.median(np.diag(every))), effective_size(others), float(1 - left / whole)
    )


def attention_of(x: np.ndarray, lam: float) -> dict[str, Any]:
    """Return the attention of a cloud with the paper's beta, with ESS >= 30, and along beta."""
    beta = beta_for(ENOUGH, x, None, PAPER_H, sampling.L1(lam))
    return {
        "paper": attention_at(x, PAPER_H, PAPER_BETA, lam),
        "chosen": attention_at(x, PAPER_H, beta, lam),
        "along": [attention_at(x, PAPER_H, value, lam) for value in BETAS],
    }


def beta_for(
    least: float, x: np.ndarray, context: np.ndarray | None, h: float, prior: Any
) -> float:
    """Return the largest beta with a median effective size of at least `least`, by bisection."""

    def enough(beta: float) -> bool:
        others = x if context is None else context
        return effective_size(weights(x, others, h, beta, prior, context is None)) >= least

    low, high = np.log(1e-6), np.log(100.0)
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if enough(float(np.exp(middle))) else (low, middle)
    return float(np.exp(low))


# Flows
# -----

Name = tuple[str, int]  # model and dimension


def network(flags: RwpoDigits, tools: Tools, name: Name, seed: int) -> Any:
    """Return a flow whose potential has weights of its seed, the same for all models.

    The output weights are small and of both signs, and the opening layer is steep: with those of
    OT-Flow (w = 1) the flow stays a Gaussian for hundreds of iterations.
    """
    import torch

    (model, d), options = name, MODELS[name[0]]
    torch.manual_seed(seed)
    phi = nets.generative.Potential(d, width=flags.width)
    with torch.no_grad():
        phi.opening.weight.mul_(3.0)
        phi.opening.bias.mul_(6.0)
        phi.w.normal_(0.0, 0.1)
    if options is not None:
        options = {"lam": flags.lam, "tokens": flags.tokens} | options
        if model == "late layer":
            options["beta"] = tools.latents[d].beta
    flow = make_flow(phi, flags.steps, options)
    if options is not None and flow.convention == "inverse":
        flow.set_context(tools.latents[d].train[: flow.tokens].cpu())
    return flow


def plan(flags: RwpoDigits, tools: Tools, name: Name, seed: int) -> Run:
    """Return the training of a flow."""
    import torch

    flow, latents = network(flags, tools, name, seed), tools.latents[name[1]]
    few = latents.test[HELD_OUT][: 2 * PART]

    def evaluate(trained: Any) -> dict[str, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # folds are counted in `measure`
            return {"held_out": likelihood(trained, few)[0]}

    data: Any = torch.utils.data.TensorDataset(latents.train.cpu())
    settings = config(flags, flow, flags.iterations, seed, clip=100.0)
    return Run(flow, nets.generative.Likelihood(flags.alpha), data, settings, evaluate)


def likelihood(flow: Any, z: Tensor) -> tuple[float, float]:
    """Return the mean negative log likelihood of latent vectors, and the share of folded tokens."""
    import torch

    with torch.no_grad():
        bases = [flow.to_base(part) for part in z.split(PART)]
    nll = torch.cat([-base.log_density for base in bases])
    return float(nll.mean()), float(np.mean([float(base.folded) for base in bases]))


# What is measured
# ----------------

SCALARS = {
    "nll": ("negative log likelihood of held-out latent vectors", "1"),
    "nll_train": ("negative log likelihood of as many training vectors", "1"),
    "frechet": ("Fréchet distance of generated to held-out digits, squared", "1"),
    "confidence": ("largest class probability of interpolated digits", "1"),
    "ess": ("median effective sample size of the attention at the data", "1"),
    "ess_least": ("least median over the layers", "1"),
    "lam": ("lambda after training", "1"),
    "beta": ("beta after training", "1"),
    "folded": ("share of held-out tokens with a determinant <= 0 in some step", "1"),
    "lost": ("share of generated tokens that the way back does not return", "1"),
    "seconds": ("time of the training steps", "s"),
    "parameters": ("trained numbers", "1"),
}


def measure(flags: RwpoDigits, tools: Tools, name: Name, training: Trained, seed: int) -> Record:
    """Return quantities of a trained flow, in double precision."""
    import torch

    record: Record = {"parameters": sum(p.numel() for p in training.model.parameters())}
    if training.diverged:
        return record
    flow: Any = copy.deepcopy(training.model).double().eval()
    latents = tools.latents[name[1]]
    coder, test = latents.coder, latents.test[HELD_OUT].double()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record["nll"], record["folded"] = likelihood(flow, test)
        record["nll_train"], _ = likelihood(flow, latents.train[: len(test)].double())
        base = flow.draws(flags.samples, 1000 + seed).to(test)
        drawn = torch.cat([flow.from_base(part) for part in base.split(PART)])
        back = torch.cat([flow.to_base(part).z for part in drawn[: 2 * PART].split(PART)])
        apart = (back - base[: 2 * PART]).abs().amax(1)
        record["lost"] = float((~(apart <= 1e-3)).double().mean())
        pictures = coder.decode(drawn.float())
        record["frechet"] = tools.frechet(pictures)
        between = interpolated(flow, tools, latents)
        if bool(between.isfinite().all()):
            record["confidence"] = float(tools.seen(between).softmax(1).amax(1).mean())
        if hasattr(flow, "ess"):
            sizes = flow.ess(test[:PART]).median(1).values
            record["ess"] = float(sizes[-1])
            record["ess_least"] = float(sizes[sizes.isfinite()].min())
            record |= {"lam": flow.lam, "beta": flow.beta}
    if seed == 0:
        record["pictures"] = as_bytes(pictures[:16])
        record["interpolation"] = as_bytes(between)
    return record


def interpolated(flow: Any, tools: Tools, latents: Latent) -> Tensor:
    """Return pictures between four held-out digits, (GRID^2, pixels), bilinear in the base.

    Beside them are other tokens, so that a batch which is its own context is one of training.
    """
    import torch

    labels = tools.images.test_labels
    corners = [int(torch.nonzero(labels == digit)[3]) for digit in (9, 4, 0, 1)]
    test = latents.test.double()
    beside = test[HELD_OUT][:PART]
    ends = flow.to_base(torch.cat([test[corners], beside])).z[:4]
    s = torch.linspace(0, 1, GRID).to(ends)
    shares = torch.stack([(1 - s), s])  # (2, GRID)
    shares = torch.einsum("ai,bj->ijab", shares, shares).reshape(GRID**2, 4)
    base = torch.cat([shares @ ends, flow.draws(PART, 7).to(ends)])
    found: Tensor = latents.coder.decode(flow.from_base(base)[: GRID**2].float())
    return found


def as_bytes(pictures: Tensor) -> Any:
    return (pictures.nan_to_num() * 255).round().int().tolist()


# What was found
# --------------


def iterations_to(results: Results, model: str, other: str, d: int) -> np.ndarray:
    """Return for each seed the iteration at which a model reaches the final value of another."""
    found, both = [], (results.histories[f"{name} d{d}"] for name in (model, other))
    for one, end in zip(*both, strict=True):
        level = float(end["held_out"][-1])
        below = np.flatnonzero(one["held_out"].values <= level)
        found.append(float(one["evaluation"][below[0]]) if below.size else np.inf)
    return np.array(found)


def findings(flags: RwpoDigits, tools: Tools, results: Results) -> list[study.Finding]:
    """Return claims of the paper, with their verdicts."""
    dims = flags.dims

    def claim(statement: str, source: str, pairs: dict[int, tuple]) -> study.Finding:
        """Decide a claim by numbers for every d: what should be less, and less than what."""
        cases = {f"d = {d}": (more, less) for d, (less, more) in pairs.items()}
        return networks.claim(statement, source, cases)

    def than_ot_flow(model: str, key: str) -> dict[int, tuple]:
        return {
            d: (results.values(f"{model} d{d}", key), results.values(f"OT-Flow d{d}", key))
            for d in dims
        }

    claims = []
    sparse = {m: words for m, words in SPARSE.items() if f"{m} d{dims[0]}" in results.records}
    for model, words in sparse.items():
        steps = {
            d: tuple(iterations_to(results, one, "OT-Flow", d) for one in (model, "OT-Flow"))
            for d in dims
        }
        text = "; ".join(
            f"d = {d}: {shown(one)} iterations, OT-Flow {shown(other)}"
            for d, (one, other) in steps.items()
        )
        claims += [
            study.Finding.decided(
                f"{words} converges faster: it reaches the held-out likelihood with which OT-Flow "
                "ends in fewer iterations", SECTION, text,
                [bool((one < other).all()) for one, other in steps.values()],
            ),
            claim(f"{words} generalises better: lower held-out negative log likelihood than "
                  "OT-Flow", SECTION, than_ot_flow(model, "nll")),
        ]  # fmt: skip
    gaussian = {d: np.full(flags.seeds, tools.latents[d].floors["gaussian"]) for d in dims}
    frechet = {model: than_ot_flow(model, "frechet") for model in (*sparse, *PRINTED)}
    return [
        *claims,
        *(claim(f"digits of {words} are closer to held-out digits than those of OT-Flow (Fréchet "
                "distance)", f"{SECTION}, figure 7", frechet[model])
          for model, words in (sparse | PRINTED).items()),
        *(claim(f"{words} learns the digits: closer to held-out digits than a Gaussian in the "
                "latent space", SECTION, {d: (frechet[model][d][0], gaussian[d]) for d in dims})
          for model, words in PRINTED.items()),
        *interactions(tools),
    ]  # fmt: skip


def interactions(tools: Tools) -> list[study.Finding]:
    """Return whether tokens interact, in the latent vectors of held-out digits."""
    form = {d: known.interaction["standardised"] for d, known in tools.latents.items()}
    paper, wide = ({d: found[which] for d, found in form.items()} for which in ("paper", "chosen"))
    return [
        study.Finding.decided(
            "with beta = 1 and h = 1/48 tokens interact: most of the attention of a token goes to "
            "others", "[RWPO] eq. 22 and Table 1", "; ".join(
                f"d = {d}: a token's weight of itself {at.self_weight:.3f}, without it ESS "
                f"{at.ess:.2f}, {100 * at.explained:.0f} % of the variance explained"
                for d, at in paper.items()
            ), [at.self_weight < 0.5 for at in paper.values()],
        ),
        study.Finding.decided(
            "with beta chosen for ESS >= 30 the attention still tells tokens apart: the mean of "
            "the others explains over a tenth of a token's variance", "comparison", "; ".join(
                f"d = {d}: beta = {at.beta:.3g}, ESS {at.ess:.0f}, {100 * at.explained:.0f} %"
                for d, at in wide.items()
            ), [at.explained > 0.1 for at in wide.values()],
        ),
        study.Finding.decided(
            "latent vectors of the rectified encoder that section 4.3 follows have a density",
            f"{SECTION}, the code of OT-Flow",
            f"{100 * tools.zeros:.0f} % of their entries are exactly 0", tools.zeros == 0,
        ),
    ]  # fmt: skip


def shown(steps: np.ndarray) -> str:
    """Return iterations of every seed; a dash where the level was never reached."""
    return ", ".join(f"{value:.0f}" if np.isfinite(value) else "never" for value in steps)


# Tables
# ------


def report(flags: RwpoDigits, tools: Tools, results: Results) -> str:
    """Return the tables."""
    column = partial(networks.column, results)

    def likelihoods(key: str) -> list[str]:
        """Return likelihoods, in brackets for the printed flow, which has no density."""
        pairs = zip(results.records, column(key, ".2f"), strict=True)
        return [f"({text})" if name.startswith("printed") else text for name, text in pairs]

    table = {
        "flow": list(results.records),
        "parameters": [str(runs[0]["parameters"]) for runs in results.records.values()],
        "held-out NLL": likelihoods("nll"),
        "training NLL": likelihoods("nll_train"),
        "Fréchet distance": column("frechet", ".1f"),
        "confidence between": column("confidence", ".3f"),
        "lambda": column("lam", ".2f"),
        "beta": column("beta", ".3g"),
        "ESS at the data": column("ess", ".1f"),
        "least ESS": column("ess_least", ".1f"),
        "folded": column("folded", ".2f"),
        "lost": column("lost", ".2f"),
        "s per iteration": column("seconds", lambda value: f"{value / flags.iterations:.3f}"),
    }
    floors = [
        {"d": str(d), "mean squared error of a pixel": f"{known.error:.4f}",
         "Fréchet: training digits": f"{known.floors['training digits']:.1f}",
         "Fréchet: their reconstructions": f"{known.floors['reconstructed']:.1f}",
         "Fréchet: Gaussian": f"{known.floors['gaussian']:.1f}",
         "NLL: Gaussian": f"{known.floors['gaussian nll']:.2f}"}
        for d, known in tools.latents.items()
    ]  # fmt: skip
    attention = [
        {"d": str(d), "coordinates": form, "beta": f"{at.beta:.3g}",
         "weight of itself": f"{at.self_weight:.3f}", "ESS of the others": f"{at.ess:.2f}",
         "variance explained": f"{100 * at.explained:.0f} %"}
        for d, known in tools.latents.items()
        for form, found in known.interaction.items()
        for at in (found["paper"], found["chosen"])
    ]  # fmt: skip
    parts = [
        f"{networks.caption(flags, flags.seeds, results, tools.source)} {flags.iterations} "
        f"iterations of batch {flags.batch} (and {flags.tokens} tokens as context), {flags.steps} "
        f"steps, width {flags.width}, weights {', '.join(f'{a:g}' for a in flags.alpha)} of "
        "likelihood, transport and HJB penalty. NLL in whitened latent coordinates, in "
        "brackets what (24) sums in its place. Fréchet distances, squared, "
        f"of {min(flags.samples, len(tools.test))} pictures to all held-out digits, "
        f"in 64 features of a classifier with accuracy {100 * tools.accuracy:.2f} %; "
        f"autoencoders and classifier took {tools.seconds:.0f} s.",
        study.markdown_table(table),
        "Floors, and a Gaussian in the latent space in place of a flow:",
        study.markdown_table(floors),
        f"Attention of {min(CLOUD, len(tools.test))} held-out tokens, h = 1/48, lambda = "
        f"{flags.lam:g}, exact kernel; medians. The second beta of each pair is the largest "
        f"with ESS >= {ENOUGH:g}:",
        study.markdown_table(attention),
    ]
    return "\n\n".join(parts)


# Figures
# -------

LABELS = {name: name for name in ("OT-Flow", "corrected", "with itself", "late layer")} | {
    name: f"{name} (no density)" for name in ("printed", "printed exact")
}


def figures(flags: RwpoDigits, results: Results) -> dict[str, study.Figure]:
    """Draw pictures of digits, learning curves, and the attention against beta."""
    tools = prepare(flags)
    curves = {
        f"d = {d}": {text: results.histories.get(f"{m} d{d}", []) for m, text in LABELS.items()}
        for d in tools.latents
    }
    colours = dict(zip(LABELS.values(), COLOURS, strict=False))
    learning = learning_curves(curves, "held_out", "Held-out negative log likelihood", colours)
    for axis, known in zip(learning.axes, tools.latents.values(), strict=False):
        level = known.floors["gaussian nll"]
        axis.axhline(level, color="k", lw=0.8, ls=":")
        axis.annotate("Gaussian", (1, level), xycoords=("axes fraction", "data"), ha="right",
                      va="bottom", fontsize=7)  # fmt: skip
        axis.set_ylim(top=2 * level)
    found = {"learning_curves": learning, "attention": attention(tools)}
    for d, known in tools.latents.items():
        named = {model: results.records.get(f"{model} d{d}", [{}])[0] for model in LABELS}
        shown = {model: record for model, record in named.items() if "pictures" in record}
        if shown:
            rows = known.pictures | {m: record["pictures"] for m, record in shown.items()}
            found[f"samples_d{d}"] = strips(rows, tools.side)
            found[f"interpolation_d{d}"] = squares(shown, tools.side)
    return found


@style()
def strips(rows: dict[str, Any], side: int) -> study.Figure:
    """Draw the held-out digits, their reconstructions, and samples of every model, a row each."""
    figure, axes = grid(len(rows), 1, PAGE, 0.47 * len(rows))
    for axis, (label, pictures) in zip(axes[:, 0], rows.items(), strict=True):
        images = np.array(pictures).reshape(-1, side, side)
        picture(axis, np.concatenate(list(images), axis=1))
        axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=6)
        axis.set_anchor("E")
    return figure


@style()
def squares(shown: dict[str, Record], side: int) -> study.Figure:
    """Draw interpolations, a square for each model; the corners are held-out digits."""
    figure, axes = grid(1, len(shown), PAGE, PAGE / len(shown) + 0.3)
    for axis, (label, record) in zip(axes[0], shown.items(), strict=True):
        many = round(len(record["interpolation"]) ** 0.5)
        images = np.array(record["interpolation"]).reshape(many, many, side, side)
        picture(axis, images.transpose(0, 2, 1, 3).reshape(many * side, many * side))
        axis.set_title(label)
    return figure


def picture(axis: Any, values: np.ndarray) -> None:
    """Draw grey values without axes."""
    axis.imshow(values, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


@style()
def attention(tools: Tools) -> study.Figure:
    """Draw the effective sample size and weight of a token itself against beta."""
    panels = {
        "ess": "ESS of the other tokens",
        "self_weight": "Weight of itself",
        "explained": "Variance explained",
    }
    figure, axes = grid(1, len(panels), PAGE, 2.6)
    for axis, (key, label) in zip(axes[0], panels.items(), strict=True):
        for place, (d, known) in enumerate(tools.latents.items()):
            for form, dash in (("standardised", "-"), ("whitened", "--")):
                found = known.interaction[form]["along"]
                betas, values = [at.beta for at in found], [getattr(at, key) for at in found]
                axis.plot(betas, values, dash, color=COLOURS[place + 1], label=f"d = {d}, {form}")
        axis.set_xscale("log")
        axis.axvline(PAPER_BETA, color="k", lw=0.8, ls=":")
        axis.set(xlabel="beta (h = 1/48)", ylabel=label)
    axes[0, 0].set_yscale("log")
    axes[0, 0].axhline(ENOUGH, color="k", lw=0.8, ls=":")
    axes[0, 0].set_ylim(0.9)
    axes[0, 2].set_ylim(0.0, 1.0)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


EXPERIMENT = networks.Experiment(
    name=NAME,
    models=lambda flags: {
        f"{model} d{d}": (model, d)
        for d in flags.dims
        for model, options in MODELS.items()
        if not too_far(options, flags.steps)
    },
    load=prepare, plan=plan, measure=measure, numbers=SCALARS,
    text=report, findings=findings, figures=figures,
)  # fmt: skip


def main() -> None:
    networks.run(EXPERIMENT, study.command_line(RwpoDigits, __doc__))


if __name__ == "__main__":
    script(main)
