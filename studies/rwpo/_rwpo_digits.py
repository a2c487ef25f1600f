"""Networks, trainings, measurements, tables and figures of the study `rwpo_digits`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wflow import nets, sampling, study
from wflow.study import networks
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor

LATE = 0.1  # lambda of the model with one late layer
TRAINED = {"trainable": ("lam", "beta")}
# Options of SparseTransformerFlow; None is OT-Flow. Steps are counted from the base.
MODELS: dict[str, dict[str, Any] | None] = {
    "OT-Flow": None,
    "corrected": TRAINED,
    "late layer": {"attended": (-1,), "lam": LATE},
    "printed": {**TRAINED, "convention": "published"},
}
PAPER_BETA, PAPER_H = 1.0, 1 / 48
BETAS = tuple(float(beta) for beta in np.logspace(-4, 1, 21))
ENOUGH = 30.0  # effective sample size
CLOUD = 1024  # tokens whose attention is looked at: the batch of the paper
PART = 256  # tokens that are followed at a time: as many as in training, for they may be a context
GRID = 6  # digits along a side of an interpolation


@dataclass(frozen=True)
class Setup:
    """Settings of a preset, which flags may change."""

    dataset: str = "mnist"
    dims: tuple[int, ...] = (64,)
    hidden: int = 256
    epochs: int = 20  # of the autoencoders and the classifier
    seeds: int = 5
    steps: int = 48  # of four stages each, and of one in the printed algorithm
    width: int = 128
    iterations: int = 12_001
    batch: int = 1024
    tokens: int = 512  # of an independent context, beside the batch
    rates: tuple[float, float] = (1e-3, 1e-6)
    lam: float = 2.0
    alpha: tuple[float, float, float] = (1.0, 1.0, 5.0)  # likelihood, transport, HJB
    samples: int = 10_000
    evaluations: int = 40


PRESETS = {
    "paper": Setup(),
    "cpu": Setup(
        dims=(16, 64), epochs=6, seeds=3, steps=8, width=64, iterations=500, batch=128, tokens=64,
        rates=(2e-2, 1e-4), alpha=(1.0, 1 / 80, 0.1), samples=2000, evaluations=12,
    ),
    "smoke": Setup(
        dataset="digits", dims=(3, 5), hidden=16, epochs=6, seeds=2, steps=2, width=8, iterations=4,
        batch=32, tokens=32, rates=(1e-2, 1e-3), samples=40, evaluations=2,
    ),
}  # fmt: skip


# Autoencoders and the classifier
# -------------------------------


@dataclass
class Tools:
    """What the flows share: data, autoencoders, features, and what is measured of them alone."""

    setup: Setup
    images: nets.data.Images
    device: torch.device
    train: Tensor  # (n, pixels) in [0, 1]
    test: Tensor
    classifier: torch.nn.Sequential | None = None
    accuracy: float = float("nan")
    held_out: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  # features
    coders: dict[int, nets.generative.Autoencoder] = field(default_factory=dict)
    errors: dict[int, float] = field(default_factory=dict)  # of reconstruction, mean square
    latents: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    betas: dict[int, float] = field(default_factory=dict)  # of the late layer
    floors: dict[int, dict[str, float]] = field(default_factory=dict)
    interaction: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)
    zeros: float = float("nan")
    seconds: float = 0.0

    @property
    def side(self) -> int:
        return int(self.images.train_images.shape[1])

    def features(self, pictures: Tensor) -> np.ndarray:
        """Features of pictures (n, pixels): what the last layer of the classifier sees."""
        return self._seen(pictures, slice(0, -1)).double().cpu().numpy()

    def confidence(self, pictures: Tensor) -> float:
        """Mean over pictures of the largest probability of a class."""
        return float(self._seen(pictures, slice(None)).softmax(1).amax(1).mean())

    def frechet(self, pictures: Tensor) -> float:
        """Distance of pictures to all held-out digits; NaN where a picture is not finite."""
        if not bool(pictures.isfinite().all()):
            return float("nan")
        return float(sampling.frechet(self.features(pictures), self.held_out))

    def _seen(self, pictures: Tensor, layers: slice) -> Tensor:
        import torch

        assert self.classifier is not None
        images = pictures.float().reshape(-1, 1, self.side, self.side)
        with torch.no_grad():
            return torch.cat([self.classifier[layers](part) for part in images.split(1000)])


def classifier(side: int) -> torch.nn.Sequential:
    """Two convolutions of stride 2, 64 features, 10 classes."""
    from torch import nn

    least = (side + 3) // 4  # pixels along a side after both
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * least**2, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def prepare(session: Any, setup: Setup, flags: Any) -> Tools:
    """Train autoencoders and classifier, or take up finished ones, and measure what is theirs."""
    import torch

    images = nets.data.mnist(folder=flags.data) if setup.dataset == "mnist" else nets.data.digits()
    device = nets.train.device(flags.device)
    train, test = (
        nets.data.unit(part).flatten(1).to(device)
        for part in (images.train_images, images.test_images)
    )
    tools = Tools(setup, images, device, train, test)

    def run(name: str, seed: int) -> Run:
        kind, _, dim = name.partition(" d")
        torch.manual_seed(seed)
        pixels = train.shape[1]
        if kind == "classifier":
            model: torch.nn.Module = classifier(tools.side)
            shaped = train.reshape(-1, 1, tools.side, tools.side).cpu()
            pairs = shaped, images.train_labels.long()
            loss = nets.train.objective(nets.train.cross_entropy)
        else:
            bare = kind == "rectified"  # one layer with a ReLU, as the code of OT-Flow has it
            model = nets.generative.Autoencoder(
                int(dim), pixels=pixels, hidden=0 if bare else setup.hidden, rectified=bare
            )
            pairs = train.cpu(), train.cpu()
            loss = nets.train.objective(torch.nn.functional.mse_loss)
        batch = min(200, len(train) // 4)
        steps = setup.epochs * (len(train) // batch)
        config = nets.train.TrainConfig(
            steps=steps,
            batch=batch,
            schedule=nets.train.Cosine(2e-3, 2e-5, 0, steps),
            seed=seed,
            device=flags.device,
        )
        data: Any = torch.utils.data.TensorDataset(*pairs)
        return Run(model, loss, data, config, lambda model: {})

    def keep(name: str, seed: int, training: Trained) -> Record:
        kind, _, dim = name.partition(" d")
        model: Any = training.model
        tools.seconds += float(training.history["seconds"].sum())
        with torch.no_grad():
            if kind == "classifier":
                tools.classifier = model
                shaped = test.reshape(-1, 1, tools.side, tools.side)
                found = torch.cat([model(part).argmax(1) for part in shaped.split(1000)]).cpu()
                tools.accuracy = float((found == images.test_labels).double().mean())
                tools.held_out = tools.features(test)
            elif kind == "rectified":
                tools.zeros = float((model.encode(test) == 0).double().mean())
            else:
                measure_coder(tools, int(dim), model)
        return {}

    names = ["classifier", *(f"autoencoder d{d}" for d in setup.dims)]
    names.append(f"rectified d{setup.dims[-1]}")
    networks.train_all(session, flags, names, 1, run, keep)
    return tools


def measure_coder(tools: Tools, d: int, coder: nets.generative.Autoencoder) -> None:
    """Latent vectors, floors of the Fréchet distance, and the attention of a cloud of tokens."""
    import torch

    setup, train, test = tools.setup, tools.train, tools.test
    tools.coders[d] = coder
    few = slice(setup.samples)
    tools.errors[d] = float((coder(test) - test).square().mean())
    coder.standardise(train)
    standardised = coder.encode(test[:CLOUD]).double().cpu().numpy()
    coder.standardise(train, whiten=True)
    tools.latents[d] = coder.encode(train), coder.encode(test)
    whitened = tools.latents[d][1][:CLOUD].double().cpu().numpy()
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(setup.samples, d, generator=generator).to(train)
    tools.floors[d] = {
        "training digits": tools.frechet(train[few]),
        "reconstructed": tools.frechet(coder(train[few])),
        "gaussian": tools.frechet(coder.decode(normal)),
        "gaussian nll": nll_of_normal(tools.latents[d][1][held_out(tools)]),
    }
    tools.interaction[d] = {
        "standardised": attention_of(standardised, setup.lam),
        "whitened": attention_of(whitened, setup.lam),
    }
    tokens = tools.latents[d][0][: 2 * setup.tokens].double().cpu().numpy()
    prior = sampling.L1(LATE)
    tools.betas[d] = beta_for(
        ENOUGH, tokens[: setup.tokens], tokens[setup.tokens :], 1 / setup.steps, prior
    )


def held_out(tools: Tools) -> slice:
    """Every fifth test digit: the first half of MNIST's is easier than the second."""
    return slice(None, None, 5)


def nll_of_normal(z: Tensor) -> float:
    return -float(nets.generative.log_normal(z).mean())


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
    """Softmax of the interaction, (n, m); without the diagonal where `alone`."""
    scores = np.asarray(sampling.interaction(x, context, h=h, beta=beta, prior=prior))
    if alone:
        np.fill_diagonal(scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(scores / scores.sum(axis=1, keepdims=True))


def effective_size(found: np.ndarray) -> float:
    """Median over the rows of 1 / sum of squared weights."""
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
    """Attention of a cloud with the paper's beta, with that of ESS >= 30, and along beta."""
    beta = beta_for(ENOUGH, x, None, PAPER_H, sampling.L1(lam))
    return {
        "paper": attention_at(x, PAPER_H, PAPER_BETA, lam),
        "chosen": attention_at(x, PAPER_H, beta, lam),
        "along": [attention_at(x, PAPER_H, value, lam) for value in BETAS],
    }


def beta_for(
    least: float, x: np.ndarray, context: np.ndarray | None, h: float, prior: Any
) -> float:
    """The largest beta with a median effective size of at least `least`, by bisection."""

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


def network(name: str, tools: Tools, seed: int) -> Any:
    """A flow of the set-up; its potential has weights of its seed, the same for all models.

    The output weights are small and of both signs, and the opening layer is steep: with those of
    OT-Flow (w = 1) the flow stays a Gaussian for hundreds of iterations.
    """
    import torch

    from wflow.nets import generative

    model, _, dim = name.rpartition(" d")
    d, setup, options = int(dim), tools.setup, MODELS[model]
    torch.manual_seed(seed)
    phi = generative.Potential(d, width=setup.width)
    with torch.no_grad():
        phi.opening.weight.mul_(3.0)
        phi.opening.bias.mul_(6.0)
        phi.w.normal_(0.0, 0.1)
    if options is None:
        return generative.OTFlow(phi, steps=setup.steps)
    given = {"lam": setup.lam, "tokens": setup.tokens} | options
    if "attended" in options:
        given["attended"] = tuple(setup.steps + 1 + k for k in options["attended"])
    if model == "late layer":
        given["beta"] = tools.betas[d]
    flow = generative.SparseTransformerFlow(phi, steps=setup.steps, **given)
    if flow.convention == "inverse":
        flow.set_context(tools.latents[d][0][: flow.tokens].cpu())
    return flow


def plan(name: str, tools: Tools, flags: Any, seed: int) -> Run:
    """The training of a flow; an independent context comes with the batch."""
    import torch

    setup, d = tools.setup, int(name.rpartition(" d")[2])
    flow = network(name, tools, seed)
    rows = setup.batch
    if getattr(flow, "context", "") == "independent":
        rows += flow.tokens
    every = max(1, setup.iterations // setup.evaluations)
    config = nets.train.TrainConfig(
        steps=setup.iterations,
        batch=rows,
        schedule=nets.train.Cosine(*setup.rates, 0, setup.iterations),
        clip=100.0,
        evaluate_every=every,
        checkpoint_every=2 * every,
        seed=seed,
        device=flags.device,
        precision=flags.precision,
        compile=flags.compile,
    )
    latents, test = tools.latents[d]
    few = test[held_out(tools)][: 2 * PART]

    def evaluate(trained: Any) -> dict[str, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # folds are counted in `examine`
            return {"held_out": likelihood(trained, few)[0]}

    data: Any = torch.utils.data.TensorDataset(latents.cpu())
    return Run(flow, nets.generative.Likelihood(setup.alpha), data, config, evaluate)


def likelihood(flow: Any, z: Tensor) -> tuple[float, float]:
    """Mean negative log likelihood of latent vectors, and the share of folded tokens."""
    import torch

    terms, folded = [], []
    with torch.no_grad():
        for part in z.split(PART):
            base = flow.to_base(part)
            terms.append(-(nets.generative.log_normal(base.z) + base.log_det))
            folded.append(float(base.folded))
    return float(torch.cat(terms).mean()), float(np.mean(folded))


def examine(name: str, training: Trained, tools: Tools, out: Path, seed: int) -> Record:
    """All quantities of a trained flow, kept beside its checkpoint."""
    setting = asdict(tools.setup) | {"seeds": None}
    folder = networks.folder_of(out, name, seed)
    return networks.cached_record(
        folder, setting, training, lambda: measured(name, training, tools, seed)
    )


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


def measured(name: str, training: Trained, tools: Tools, seed: int) -> Record:
    """Quantities of a trained flow, in double precision."""
    import torch

    d = int(name.rpartition(" d")[2])
    record: Record = dict.fromkeys(SCALARS, float("nan"))
    record["seconds"] = float(training.history["seconds"].sum())
    record["parameters"] = sum(p.numel() for p in training.model.parameters())
    if training.diverged:
        return record
    flow: Any = copy.deepcopy(training.model).double().eval()
    coder, setup = tools.coders[d], tools.setup
    latents, test = (part.double() for part in tools.latents[d])
    test = test[held_out(tools)]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record["nll"], record["folded"] = likelihood(flow, test)
        record["nll_train"], _ = likelihood(flow, latents[: len(test)])
        base = flow.draws(setup.samples, 1000 + seed).to(test)
        drawn = torch.cat([flow.from_base(part) for part in base.split(PART)])
        back = torch.cat([flow.to_base(part).z for part in drawn[: 2 * PART].split(PART)])
        apart = (back - base[: 2 * PART]).abs().amax(1)
        record["lost"] = float((~(apart <= 1e-3)).double().mean())
        pictures = coder.decode(drawn.float())
        record["frechet"] = tools.frechet(pictures)
        between = interpolated(flow, tools, d)
        if bool(between.isfinite().all()):
            record["confidence"] = tools.confidence(between)
        if hasattr(flow, "ess"):
            sizes = flow.ess(test[:PART]).median(1).values
            record["ess"] = float(sizes[-1])
            record["ess_least"] = float(sizes[sizes.isfinite()].min())
            record |= {"lam": flow.lam, "beta": flow.beta}
    if seed == 0:
        record["pictures"] = as_bytes(pictures[:16])
        record["interpolation"] = as_bytes(between)
    return record


def interpolated(flow: Any, tools: Tools, d: int) -> Tensor:
    """Pictures between four held-out digits, (GRID^2, pixels), bilinear in the base of the flow.

    Beside them are other tokens, so that a batch which is its own context is one of training.
    """
    import torch

    labels = tools.images.test_labels
    corners = [int(torch.nonzero(labels == digit)[3]) for digit in (9, 4, 0, 1)]
    test = tools.latents[d][1].double()
    beside = test[held_out(tools)][:PART]
    ends = flow.to_base(torch.cat([test[corners], beside])).z[:4]
    s = torch.linspace(0, 1, GRID).to(ends)
    shares = torch.stack([(1 - s), s])  # (2, GRID)
    shares = torch.einsum("ai,bj->ijab", shares, shares).reshape(GRID**2, 4)
    base = torch.cat([shares @ ends, flow.draws(PART, 7).to(ends)])
    found: Tensor = tools.coders[d].decode(flow.from_base(base)[: GRID**2].float())
    return found


def as_bytes(pictures: Tensor) -> list[list[int]]:
    found: list[list[int]] = (pictures.nan_to_num() * 255).round().int().tolist()
    return found


def iterations_to(results: Results, model: str, other: str, d: int) -> np.ndarray:
    """For each seed the iteration at which a model has the likelihood with which another ends."""
    found = []
    histories = results.histories
    for one, end in zip(histories[f"{model} d{d}"], histories[f"{other} d{d}"], strict=True):
        level = float(end["held_out"][-1])
        below = np.flatnonzero(one["held_out"].values <= level)
        found.append(float(one["evaluation"][below[0]]) if below.size else np.inf)
    return np.array(found)


# Tables and figures
# ------------------


def tabulated(results: Results) -> Any:
    """All numbers as a Dataset."""
    return networks.dataset(results, SCALARS, {}, {})


def report(flags: Any, tools: Tools, results: Results) -> str:
    """The tables."""
    setup = tools.setup

    column = partial(networks.column, results)

    def likelihoods(key: str) -> list[str]:
        names = results.records
        return [
            f"({text})" if name.startswith("printed") else text
            for name, text in zip(names, column(key, ".2f"), strict=True)
        ]

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
        "s per iteration": networks.column(
            results, "seconds", lambda value: f"{value / setup.iterations:.3f}"
        ),
    }
    floors = {
        "d": [str(d) for d in setup.dims],
        "mean squared error of a pixel": [f"{tools.errors[d]:.4f}" for d in setup.dims],
        "Fréchet: training digits": cells(tools, "training digits", ".1f"),
        "Fréchet: their reconstructions": cells(tools, "reconstructed", ".1f"),
        "Fréchet: Gaussian": cells(tools, "gaussian", ".1f"),
        "NLL: Gaussian": cells(tools, "gaussian nll", ".2f"),
    }
    rows = []
    for d in setup.dims:
        for form, found in tools.interaction[d].items():
            for which in ("paper", "chosen"):
                at = found[which]
                rows.append(
                    {
                        "d": str(d),
                        "coordinates": form,
                        "beta": f"{at.beta:.3g}",
                        "weight of itself": f"{at.self_weight:.3f}",
                        "ESS of the others": f"{at.ess:.2f}",
                        "variance explained": f"{100 * at.explained:.0f} %",
                    }
                )
    caption = networks.caption(flags, setup.seeds, results, tools.images.source)
    return "\n\n".join(
        [
            f"{caption} {setup.iterations} iterations of batch {setup.batch} (and {setup.tokens} "
            f"tokens as context), {setup.steps} steps, "
            f"width {setup.width}, weights {', '.join(f'{a:g}' for a in setup.alpha)} of "
            "likelihood, transport and HJB penalty. NLL in whitened latent coordinates, in "
            "brackets what (24) sums in its place. Fréchet distances, squared, "
            f"of {min(setup.samples, len(tools.test))} pictures to all held-out digits, "
            f"in 64 features of a classifier with accuracy {100 * tools.accuracy:.2f} %; "
            f"autoencoders and classifier took {tools.seconds:.0f} s.",
            study.markdown_table(table),
            "Floors, and a Gaussian in the latent space in place of a flow:",
            study.markdown_table(floors),
            f"Attention of {min(CLOUD, len(tools.test))} held-out tokens, h = 1/48, lambda = "
            f"{setup.lam:g}, exact kernel; medians. The second beta of each pair is the largest "
            f"with ESS >= {ENOUGH:g}:",
            study.markdown_table(rows),
        ]
    )


def cells(tools: Tools, key: str, style: str) -> list[str]:
    return [f"{tools.floors[d][key]:{style}}" for d in tools.setup.dims]


def figures(results: Results, tools: Tools) -> dict[str, Figure]:
    """Pictures of digits, learning curves, and the attention against beta."""
    found = {"learning_curves": curves(results, tools), "attention": attention(tools)}
    for d in tools.setup.dims:
        named = {
            model: results.records[f"{model} d{d}"][0]
            for model in MODELS
            if f"{model} d{d}" in results.records
        }
        shown = {model: record for model, record in named.items() if "pictures" in record}
        if shown:
            found[f"samples_d{d}"] = strips(shown, tools, d)
            found[f"interpolation_d{d}"] = squares(shown, tools)
    return found


def strips(shown: dict[str, Record], tools: Tools, d: int) -> Figure:
    """Held-out digits, their reconstructions, and samples of every model, a row each."""
    import torch

    from wflow.plots.figure import PAGE, grid
    from wflow.plots.style import style

    some = tools.test[held_out(tools)][:16]
    with torch.no_grad():
        rows = {"held-out": as_bytes(some), "reconstructed": as_bytes(tools.coders[d](some))}
    rows |= {model: record["pictures"] for model, record in shown.items()}
    with style():
        figure, axes = grid(len(rows), 1, PAGE, 0.47 * len(rows))
        for axis, (label, pictures) in zip(axes[:, 0], rows.items(), strict=True):
            images = np.array(pictures).reshape(-1, tools.side, tools.side)
            picture(axis, np.concatenate(list(images), axis=1))
            axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=7)
    return figure


def squares(shown: dict[str, Record], tools: Tools) -> Figure:
    """Interpolations, a square for each model; the corners are held-out digits."""
    from wflow.plots.figure import PAGE, grid
    from wflow.plots.style import style

    side = tools.side
    with style():
        figure, axes = grid(1, len(shown), PAGE, PAGE / len(shown) + 0.3)
        for axis, (label, record) in zip(axes[0], shown.items(), strict=True):
            images = np.array(record["interpolation"]).reshape(GRID, GRID, side, side)
            picture(axis, images.transpose(0, 2, 1, 3).reshape(GRID * side, GRID * side))
            axis.set_title(label)
    return figure


def picture(axis: Any, values: np.ndarray) -> None:
    """Draw grey values without axes."""
    axis.imshow(values, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


def curves(results: Results, tools: Tools) -> Figure:
    """Held-out likelihood against the iteration, a panel for each d."""
    from wflow.plots.figure import PAGE, grid
    from wflow.plots.networks import COLOURS, draw_histories
    from wflow.plots.style import style

    dims = tools.setup.dims
    labels = ["printed (no density)" if model == "printed" else model for model in MODELS]
    colours = dict(zip(labels, COLOURS, strict=False))
    with style():
        figure, axes = grid(1, len(dims), PAGE, 2.8)
        for axis, d in zip(axes[0], dims, strict=True):
            runs = [results.histories.get(f"{model} d{d}", []) for model in MODELS]
            draw_histories(axis, dict(zip(labels, runs, strict=True)), "held_out", colours)
            level = tools.floors[d]["gaussian nll"]
            axis.axhline(level, color="k", lw=0.8, ls=":", label="Gaussian")
            axis.set_ylim(top=2 * level)
            axis.set(xlabel="Iteration", title=f"d = {d}")
        axes[0, 0].set_ylabel("Held-out negative log likelihood")
        handles, texts = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside lower center", ncols=len(texts))
    return figure


def attention(tools: Tools) -> Figure:
    """Effective sample size and weight of a token itself against beta."""
    from wflow.plots.figure import PAGE, grid
    from wflow.plots.networks import COLOURS
    from wflow.plots.style import style

    panels = {
        "ess": "ESS of the other tokens",
        "self_weight": "Weight of itself",
        "explained": "Variance explained",
    }
    with style():
        figure, axes = grid(1, len(panels), PAGE, 2.6)
        for axis, (key, label) in zip(axes[0], panels.items(), strict=True):
            for place, d in enumerate(tools.setup.dims):
                for form, dash in (("standardised", "-"), ("whitened", "--")):
                    along = tools.interaction[d][form]["along"]
                    axis.plot(
                        BETAS, [getattr(at, key) for at in along], dash,
                        color=COLOURS[place + 1], label=f"d = {d}, {form}",
                    )  # fmt: skip
            axis.set_xscale("log")
            axis.axvline(PAPER_BETA, color="k", lw=0.8, ls=":")
            axis.set(xlabel="beta (h = 1/48)", ylabel=label)
        axes[0, 0].set_yscale("log")
        axes[0, 0].axhline(ENOUGH, color="k", lw=0.8, ls=":")
        axes[0, 0].set_ylim(0.9)
        axes[0, 2].set_ylim(0.0, 1.0)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure
