"""Arguments that wflow.nets refuses, by the call and the argument that its message names."""

import math

import numpy as np
import pytest
import torch
from net_calls import ARGUMENTS, SETS, TEXT, call_of, draw, ids, resnet, there
from torch import nn

from wflow import InputError, nets
from wflow.nets import blocks, control, diagnostics, generative, metrics, particles, train

pytestmark = pytest.mark.usefixtures("one_thread")

NAN, INF = math.nan, math.inf
NO_NUMBER = [True, "3", 2.5j, None, np.array([3])]  # once; the fuzz gives these to all calls
HUGE, MEMORY = [2**60, 10**30], "memory|below 2"
NO_BLOCKS = [[], 3, [3], nn.Linear]
ZEROS = torch.zeros


def long(*shape):
    return torch.zeros(shape, dtype=torch.int64)


CONTINUOUS = {
    "steps": [0, 2.0], "t_final": [0.0, NAN], "scheme": ["midpoint"],
    "velocity": ["skip"], "cost": ["max"], "batch_dim": [True], "blocks": NO_BLOCKS,
}  # fmt: skip
BLOCK = blocks.Block(12, 2)
NO_IMAGES = [torch.rand(5, 11), torch.rand(12), torch.zeros(5, 12, dtype=torch.uint8), "words"]
NO_TENSOR = [np.ma.masked_array([1.0, 2.0], [True, False]), "words", np.zeros((2, 3)), [[1.0, 2.0]]]

# call -> argument -> values; the message names the argument, or has the words beside it
REFUSED = {
    # blocks and networks
    "blocks.Attention": {"heads": [0], "dropout": [1]},
    "blocks.Attention.forward": {("x", "states"): [ZEROS(5, 8), ZEROS(3, 5, 7)],
        "mask": [there(2, 3), ZEROS(2, 4)]},
    "blocks.FeedForward": {("hidden", MEMORY): HUGE, "gelu": ["relu"]},
    "blocks.Stack": {"blocks": NO_BLOCKS},
    "blocks.TokenEmbedding": {("context", MEMORY): HUGE},
    "blocks.TokenEmbedding.forward": {
        ("tokens", "token"): [long(1, 3) + 7, long(1, 3) - 1, long(1, 6), long(1, 0), long(3),
            ZEROS(1, 3)]},
    "GPT": {"heads": [3], "width": [8.0], ("vocabulary", MEMORY): HUGE},
    "GPT.forward": {("tokens", "token"): [ids(2, 5) + 7, long(1, 8)],
        ("targets", "target|token"): [ids(2, 4), ids(2, 5) + 7, ids(2, 5).double(), [[1]]]},
    "GPT.generate": {"new": [-1], "temperature": [-0.5, NAN], "top_k": [0]},
    "ViT": {"patch": [3], "image": [(4, 4)], ("image", "channels"): [(0, 4, 4)],
        ("classes", MEMORY): HUGE, "heads": [3]},
    "ViT.forward": {
        "images": [ZEROS(3, 1, 4, 6), ZEROS(1, 4, 4), ZEROS(1, 1, 4, 4).byte(),
            ZEROS(1, 1, 4, 4).double(), ZEROS(1, 1, 4, 4, device="meta")]},
    "TextClassifier": {"pad": [7, -1], "pooling": ["last", "max padded"], "form": ["rms"],
        "embedding_std": [0], "width": [7]},
    "TextClassifier.forward": {("tokens", "token"): [ids(2, 5) - 9, ZEROS(3)]},
    "SetTransformer": {"heads": [5], "blocks": [1], "form": ["lee"],
        ("form", "published"): ["equations"], "embedding": ["none"]},
    "SetTransformer.forward": {("points", "point"): [ZEROS(2, 4, 2), ZEROS(2, 0, 3), long(2, 4, 3)],
        ("mask", "cloud"): [torch.tensor([[True, True, False, False], [False] * 4])],
        "mask": [ZEROS(2, 4), there(2, 3), [[True] * 4] * 2]},
    # continuous time, control, convex problems
    "ContinuousTransformer": CONTINUOUS,
    "NodeTransformer": CONTINUOUS,
    "ContinuousTransformer.forward": {("x", "state|batch"): [ZEROS(0, 4, 8)],
        "valid": [there(2, 3)]},
    "ControlledResNet.forward": {"x": [long(3, 2)], ("x", "samples"): [ZEROS(3, 5)]},
    "control.Dynamics": {"layers": [[]], "scheme": ["rk5"]},
    "control.MSA": {"rho": [-1], ("devices", "worker"): [("cpu", "cpu")]},
    "control.gradients": {("loss", "tensor"): [lambda out: out], "keep": [0]},
    "control.extremal": {("network", "layers"): [nn.Linear(2, 2)]},
    "control.states": {("network", "2 bodies"): [nn.ModuleList([resnet().body, resnet().body])]},
    "convex.ConvexProblem": {("output", "matrix"): [ZEROS(3)],
        ("output", "finite"): [ZEROS(2, 2) / 0], "loss": ["hinge"], "lam": [-1.0]},
    "convex.ConvexProblem.terminal_state": {"x0": [ZEROS(4, 2)]},
    "convex.ConvexProblem.minimise": {("y", "x0"): [ZEROS(2, 2)],
        ("start", "velocities"): [ZEROS(2, 4, 5)], "method": ["adam"]},
    # data
    "data.ImageBatches": {"batch": [0, 7],
        "images": [ZEROS(4, 4), ZEROS(0, 4, 4), ZEROS(6, 4, 4).int()], "labels": [ids(5), ZEROS(6)],
        "std": [0], "seed": [-1], "augment": [3]},
    "data.CropBatches": {"context": [0, 30], ("tokens", "tokens|text"): [ids(6, 5), ZEROS(30)],
        ("vocabulary", "token"): [5], "vocabulary": [0]},
    "data.windows": {("vocabulary", "token"): [5], ("tokens", "context"): [ids(1)], "batch": [0]},
    "data.RandomCrops": {"scale": [(0.5, 1.2), 0.5], "ratio": [(2.0, 1.0)]},
    "data.RandomCrops.call": {"images": [torch.rand(3, 4, 4), ZEROS(1, 3, 4, 4).byte()]},
    "data.RandomPoses": {"turn": [1.5], "stretch": [(2.0, 1.0)]},
    "data.RandomPoses.call": {"points": [torch.rand(4, 5, 2)]},
    "data.CloudBatches": {"counts": [ids(6) * 0, ids(6) + 5, ids(5)], "labels": [ZEROS(6)],
        "clouds": [ZEROS(4, 3), ZEROS(0, 4, 3)], "batch": [7], "points": [0], "augment": [0.1]},
    "data.TextBatches": {
        ("tokens", "text"): [[long(1) + 1, long(0), long(2) + 1], [long(2)] * 3, [ZEROS(1)] * 3],
        ("labels", "text"): [ids(1)], "batch": [4], "truncate": ["middle"], "bucket": [0]},
    "data.Characters": {("text", "empty"): [""]},
    "data.Characters.encode": {("text", "'!z'"): ["mez!"]},
    "data.Characters.decode": {("tokens", "0 to"): [[0, 9]], ("tokens", "shape"): [long(2, 2)]},
    "data.TrainedBytePairs": {"texts": [["", ""]], "vocabulary": [256]},
    "data.TrainedBytePairs.decode": {("tokens", "258|257"): [[258]]},
    "data.planar": {("name", "moons"): ["moon"], "part": ["testing"], "n": [0, 10**10]},
    "data.PlanarBatches.call": {"step": [-1]},
    "data.gaussian_noise": {("images", "use unit"): [ZEROS(2, 4, 4).byte()], "level": [-1]},
    "data.replace_tokens": {("tokens", "0 to 6"): [long(1) + 7, long(1) - 1],
        ("tokens", "integers"): [ZEROS(1) + 0.5], "rate": [1.5], "vocabulary": [1]},
    "data.drop_points": {"clouds": [ZEROS(3, 2), ZEROS(3, 0, 2)], "rate": [-0.5],
        ("mask", "no point"): [~there(2, 5)]},
    "data.rotate_points": {("clouds", "features"): [draw(2, 5, 2)], "about": ["x"]},
    "data.sample_surface": {("faces", "triangles"): [[[0, 0, 1], [1, 1, 1]], np.empty((0, 3), int)],
        ("faces", "vertices"): [[[0, 1, 4]], [[0, 1, -1]]], ("faces", r"\(m, 3\)"): [[[0, 1]]]},
    "data.standardised": {("clouds", "not finite"): [torch.full((1, 2, 3), INF)]},
    # diagnostics
    "diagnostics.straightness": {"per": ["layer"], "valid": [there(2, 9)]},
    "diagnostics.lipschitz": {("perturbation", "rounding"): [1e-30],
        "x": [*NO_TENSOR, ZEROS(3), long(2, 3)],
        ("x", "not finite"): [torch.full((2, 3), NAN).double()], ("x", "weights"): [draw(2, 3)],
        ("function", "gradient"): [lambda x: x.detach() * 2]},
    "diagnostics.operator_norm": {("layer", "matrix"): [ZEROS(3)],
        ("layer", "linear"): [nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 3)), nn.Identity(),
            nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)),
            nn.Sequential(nn.Linear(3, 3), nn.ReLU())]},
    "diagnostics.stability_bound": {("L", "lambda > T L"): [2.0, 2**0.5], "t_final": [0.0],
        ("lam", "lambda > T L"): [0.25], ("entries", "entries"): [None],
        ("cost", "leave it out"): ["sum"], "cost": ["median"]},
    "diagnostics.check_stability": {("y2", "classes"): [ids(3) + 5], "outputs1": [draw(2, 2)]},
    "diagnostics.hidden_transport": {"before": [ZEROS(3)], ("after", "one space"): [ZEROS(3, 4)],
        ("after", "not finite"): [torch.full((3, 3), INF)], "p": [0.5], "ground": ["cosine"]},
    # generative
    "generative.SparseTransformerFlow": {"lam": [-1.0, 1e30], "beta": [0.0, 1e-30], "drift": [""],
        "itself": [True, 2],
        "attended": [(5,)], "trainable": [("h",)], "probes": [1], "kernel": ["published"],
        ("convention", "independent"): ["attracting"], "context": ["batch "]},
    "generative.SparseTransformerFlow.set_context": {("x", "not finite"): [draw(4, 2) / 0]},
    "generative.SparseTransformerFlow.to_base": {"context": [draw(4, 3)],
        ("y", "potential"): [draw(2)]},
    "generative.Autoencoder.encode": {"images": NO_IMAGES},
    "generative.Autoencoder.standardise": {("images", "at least 3"): [draw(2, 4)],
        ("images", "not finite"): [draw(5, 4) / 0]},
    "generative.Autoencoder.decode": {"z": [draw(5, 3), long(5, 2)]},
    "generative.ReverseKL": {("alpha", "three"): [(1.0, 2.0)]},
    # metrics, particles
    "metrics.perplexities": {"losses": [long(2, 2), ZEROS(2, 2, 2), ZEROS(0, 2), []]},
    "metrics.teacher_forced": {("windows", "a window"): [[ids(9)]],
        ("model", "logits"): [nn.Flatten(0)]},
    "metrics.losses": {("windows", "tokens"): [[(ids(9), ids(9))]]},
    "metrics.passages": {("beginning", "at least"): [30]},
    "metrics.generated": {("model", "generates"): [nn.Identity()],
        ("beginnings", "texts, tokens"): [ids(9)]},
    "particles.head_law": {
        ("network", "self-attention"): [nn.Linear(3, 3), nets.SetTransformer(**SETS),
            blocks.Stack([nn.Linear(3, 3)]), blocks.Stack([BLOCK, nn.Linear(12, 12)])],
        ("network", "block 1 differs"): [blocks.Stack([BLOCK, blocks.Block(12, 2, norm=False)]),
            blocks.Stack([BLOCK, blocks.Block(12, 3)])],
        ("network", "causal"): [blocks.Stack([BLOCK, blocks.Block(12, 2, causal=True)])],
        "radius": [0.0, [1.0, 2.0, 3.0], NO_TENSOR[0]], "t_final": [-1.0], "passes": [0]},
    "particles.velocity": {("x", "d = 5"): [np.eye(5)]},
    # training
    "build": {("config", "no registered network"): [3, ZEROS(4, 3).to_sparse(), {"network": 3}]},
    "train.Constant": {"rate": [0]},
    "train.Cosine": {"least": [0.2], ("warm_up", "warm-up"): [10]},
    "train.StepDecay": {("rates", "rate"): [(0.1,)], "boundaries": [(3, 2)]},
    "train.cross_entropy": {("targets", "classes"): [ids(4) * 0 + 3],
        ("targets", "shape|4, 3"): [ids(3)]},
    "train.TrainConfig": {"steps": [0, *NO_NUMBER], ("betas", "beta"): [(0.9, 1.0)],
        "clip": [0.0], "optimizer": ["lbfgs"],
        "precision": ["float16"], "evaluate_every": [0], "schedule": [lambda step: 1e-3],
        "weight_decay": [-1], "device": [None]},
    "train.train": {"model": [3], "objective": [3], "evaluate": [3], "out": [3],
        "batches": [3, lambda step: None, lambda step: ZEROS(8, 6)]},
}  # fmt: skip

CASES = [
    pytest.param(call, *(key if isinstance(key, tuple) else (key, key)), value,
                 id=f"{call}-{key[0] if isinstance(key, tuple) else key}-{number}")
    for call, arguments in REFUSED.items()
    for key, values in arguments.items()
    for number, value in enumerate(values)
]  # fmt: skip


@pytest.mark.parametrize(("call", "argument", "words", "value"), CASES)
def test_an_argument_is_refused_by_its_name(call, argument, words, value):
    function, given = call_of(call, **{argument: value})
    with pytest.raises(InputError, match=rf"\b{words}\b" if len(words) == 1 else words):
        function(**given)


def flow(call="generative.SparseTransformerFlow", **changes):
    function, given = call_of(call, **{"context": "independent", "attended": ()} | changes)
    return function(**given)


class Sum(nn.Module):
    """A network that returns one number in place of a loss of each token."""

    def forward(self, inputs, targets):
        return (inputs + targets).sum()


PLAIN = generative.SparseTransformerFlow(generative.Potential(2, width=4), steps=2)
TOGETHER = [  # arguments that do not fit together, and objects without what a call needs
    (lambda: blocks.Attention(8, 3), "3 heads"),
    (lambda: blocks.Attention(8, 2, head_width=3, project=False), "project=True"),
    (lambda: nets.TextClassifier(**TEXT | {"width": 7, "heads": 7}, form="published"), "width"),
    (lambda: nets.ContinuousTransformer(nets.ContinuousTransformer(nn.Linear(3, 3)))(draw(2, 3)),
     "blocks"),
    (lambda: control.Dynamics([nn.Linear(2, 2)] * 3, learn_lengths=True).__setattr__("steps", 4),
     "3 layers"),
    (lambda: flow(convention="published", kernel="laplace"), "its own batch"),
    (lambda: flow(lam=0.0, trainable=("lam",)), "a trained lam"),
    (lambda: flow(convention="attracting"), "convention"),
    (lambda: PLAIN.sample(3), "set_context"),
    (lambda: PLAIN.generate(draw(2, 2)), "context"),
    (lambda: generative.Likelihood()(nn.Linear(2, 2), ZEROS(3, 2)), "a flow"),
    (lambda: diagnostics.hidden_transport(ZEROS(3, 2), draw(3, 2), ground="geodesic"), "norm zero"),
    (lambda: metrics.losses(Sum(), [(ids(1, 9),) * 2]), "a loss of each"),
    (lambda: particles.problem(blocks.Stack([BLOCK]), ZEROS(2, 12)), "hidden"),
    (lambda: particles.tokens_of(blocks.Stack([BLOCK]), ZEROS(1, 3, 12)), "norm zero"),
    (lambda: train.TrainConfig(steps=1, batch=1, optimizer=control.MSA(), clip=1.0), "clip"),
    (lambda: train.TrainConfig(steps=1, batch=1, optimizer=control.MSA(), weight_decay=0.1),
     "penalty"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), TOGETHER, ids=[words for _, words in TOGETHER])
def test_what_does_not_fit_together_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_a_switch_is_true_or_false():
    for call in ARGUMENTS.keys() - {"data.prepare_text"}:  # which looks for the text first
        given = ARGUMENTS[call]()
        for switch in (name for name, value in given.items() if isinstance(value, bool)):
            for value in ("False", 0):
                function, changed = call_of(call, **{switch: value})
                with pytest.raises(InputError, match=f"{switch} is .*expected True or False"):
                    function(**changed)
