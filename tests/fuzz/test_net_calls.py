"""Calls of every public name of wflow.nets with wrong arguments: they work, or raise a wflow error.

A call is a valid one in which one argument is something else. What is given is never modified.
"""

import inspect
import random
import sys
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from trainings import OBJECTIVE, Points, config, network  # noqa: E402

from wflow import (  # noqa: E402
    InputError,
    WflowError,
    nets,
)
from wflow._core.extras import missing  # noqa: E402
from wflow.nets import (  # noqa: E402
    blocks,
    control,
    convex,
    data,
    diagnostics,
    generative,
    metrics,
    particles,
    train,
)
from wflow.nets.data import archives, download  # noqa: E402
from wflow.sampling import forward  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids(*shape, below=7):
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(0))


GPT = {"vocabulary": 7, "context": 5, "width": 8, "depth": 2, "heads": 2}
VIT = {"image": (1, 4, 4), "patch": 2, "classes": 3, "width": 8, "heads": 2}
TEXT = GPT | {"classes": 3}
SETS = {"features": 3, "classes": 3, "width": 8, "heads": 2, "inducing": 2}
BLOCK = {"width": 8, "heads": 2}
PUBLISHED = {
    "wte.weight": (7, 8), "wpe.weight": (5, 8), "ln_f.weight": (8,), "ln_f.bias": (8,),
    "h.0.ln_1.weight": (8,), "h.0.ln_1.bias": (8,), "h.0.ln_2.weight": (8,), "h.0.ln_2.bias": (8,),
    "h.0.attn.c_attn.weight": (8, 24), "h.0.attn.c_attn.bias": (24,),
    "h.0.attn.c_proj.weight": (8, 8), "h.0.attn.c_proj.bias": (8,),
    "h.0.mlp.c_fc.weight": (8, 32), "h.0.mlp.c_fc.bias": (32,),
    "h.0.mlp.c_proj.weight": (32, 8), "h.0.mlp.c_proj.bias": (8,),
}  # fmt: skip


def body(wrap=nets.ContinuousTransformer):
    return wrap([blocks.Block(**BLOCK) for _ in range(2)], steps=2)


def coder():
    torch.manual_seed(0)
    return generative.Autoencoder(2, pixels=4)


def flow(sparse=False):
    phi = generative.Potential(2, width=4, condition=0 if sparse else 1)
    if not sparse:
        return generative.OTFlow(phi, steps=1)
    found = generative.SparseTransformerFlow(phi, steps=1, lam=0.5)
    found.set_context(draw(6, 2))
    return found


def conditional():
    torch.manual_seed(0)
    return generative.OTFlow(generative.Potential(2, width=4, condition=3), steps=2)


def inverse_problem():
    return forward.InverseProblem(forward.Elliptic(2, 3, cells=8), lam=2.0, noise=0.1)


def resnet():
    torch.manual_seed(0)
    return nets.ControlledResNet(2, layers=2, penalty=0.1)


def controlled():
    return {"network": resnet(), "x": draw(4, 2), "loss": torch.mean, "weight": 0.5}


def problem():
    return convex.ConvexProblem(draw(2, 3), steps=2)


def path():
    return body().trajectory(draw(2, 4, 8))


def heads(**sizes):
    return particles.head_law(nets.GPT(**GPT | sizes))


def directions(d=8):
    x = draw(4, d).double().numpy()
    x -= x.mean(axis=1, keepdims=True)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def images():
    return {"images": torch.rand(6, 4, 4), "labels": ids(6, below=3), "batch": 2}


def clouds():
    return {"clouds": draw(6, 4, 3), "counts": ids(6, below=4) + 1, "labels": ids(6, below=3),
            "batch": 2}  # fmt: skip


def rows() -> dict:
    texts = [torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4, 5, 6])]
    return {"tokens": texts, "labels": torch.tensor([0, 1, 1]), "batch": 2, "context": 3}


def learnt():
    return data.TrainedBytePairs(["to be or not to be"], 258, cached=False)


def crops():
    return {"tokens": ids(30), "context": 4, "batch": 2, "vocabulary": 7}


def pairs():
    return {
        "outputs1": draw(3, 2), "outputs2": draw(3, 2, seed=1), "x1": draw(3, 4),
        "x2": draw(3, 4, seed=2), "y1": ids(3, below=2), "y2": ids(3, below=2),
        "t_final": 1.0, "L": 0.5, "lam": 2.0,
    }  # fmt: skip


def training():
    return {
        "model": network(), "objective": OBJECTIVE, "batches": Points(), "config": config(steps=2),
        "evaluate": None, "resume": False, "overwrite": False, "label": "", "tensorboard": False,
    }  # fmt: skip


SETTINGS = {
    "steps": 2, "batch": 4, "schedule": train.Constant(0.1), "optimizer": "adam",
    "betas": (0.9, 0.99), "weight_decay": 0.1, "clip": 1.0, "accumulate": 1,
    "precision": "float32", "compile": False, "evaluate_every": None, "checkpoint_every": 10,
    "seed": 0, "device": "cpu",
}  # fmt: skip

# name -> (function, arguments by name), made again for every call
CALLS = {
    "GPT": lambda: (
        nets.GPT,
        GPT | {"norm": True, "bias": False, "skip": True, "gelu": "none", "dropout": 0.0},
    ),
    "GPT.forward": lambda: (nets.GPT(**GPT), {"tokens": ids(2, 5), "targets": ids(2, 5)}),
    "GPT.count": lambda: (nets.GPT(**GPT).count, {"positions": True}),
    "GPT.generate": lambda: (
        nets.GPT(**GPT).generate,
        {"tokens": ids(2, 3), "new": 2, "temperature": 0.8, "top_k": 3, "generator": None},
    ),
    "GPT.from_gpt2": lambda: (
        nets.GPT.from_gpt2,
        {
            "state": {name: draw(*shape) for name, shape in PUBLISHED.items()},
            "heads": 2,
            "dropout": 0.0,
        },
    ),
    "ViT": lambda: (
        nets.ViT,
        VIT
        | {"depth": 1, "head_width": None, "hidden": 4, "qkv_bias": False, "project": None}
        | {"skip": True, "position_std": 1.0, "dropout": 0.1},
    ),
    "ViT.forward": lambda: (nets.ViT(**VIT), {"images": draw(2, 1, 4, 4)}),
    "TextClassifier": lambda: (
        nets.TextClassifier,
        TEXT
        | {"hidden": 8, "pad": 0, "pooling": "max", "norm": True, "skip": True, "dropout": 0.0}
        | {"form": "published", "embedding_std": 0.5},
    ),
    "TextClassifier.forward": lambda: (nets.TextClassifier(**TEXT), {"tokens": ids(2, 5)}),
    "SetTransformer": lambda: (
        nets.SetTransformer,
        SETS
        | {"blocks": 2, "seeds": 1, "norm": True, "skip": True, "dropout": 0.0}
        | {"form": "published", "embedding": "block"},
    ),
    "SetTransformer.forward": lambda: (
        nets.SetTransformer(**SETS),
        {"points": draw(2, 4, 3), "mask": torch.ones(2, 4, dtype=torch.bool)},
    ),
    "ContinuousTransformer": lambda: (
        nets.ContinuousTransformer,
        {
            "blocks": [blocks.Block(**BLOCK)], "t_final": 1.0, "steps": 2, "scheme": "heun",
            "velocity": "block", "cost": "mean", "checkpointing": False, "batch_dim": 0,
        },
    ),
    "ContinuousTransformer.forward": lambda: (
        body(),
        {"x": draw(2, 4, 8), "valid": torch.ones(2, 4, dtype=torch.bool), "mask": None},
    ),
    "ContinuousTransformer.trajectory": lambda: (
        body().trajectory,
        {"x": draw(2, 4, 8), "valid": torch.ones(2, 4, dtype=torch.bool), "mask": None},
    ),
    "ContinuousTransformer.velocity_of": lambda: (body().velocity_of, {"x": draw(2, 4, 8)}),
    "NodeTransformer": lambda: (
        nets.NodeTransformer,
        {"blocks": [blocks.Block(**BLOCK)], "t_final": 1.0, "steps": 2, "checkpointing": True},
    ),
    "NodeTransformer.forward": lambda: (
        body(nets.NodeTransformer),
        {"x": draw(2, 4, 8), "valid": torch.ones(2, 4, dtype=torch.bool), "mask": None},
    ),
    "NodeTransformer.trajectory": lambda: (
        body(nets.NodeTransformer).trajectory,
        {"x": draw(2, 4, 8), "valid": None},
    ),
    "blocks.Attention": lambda: (
        blocks.Attention,
        BLOCK
        | {"head_width": 4, "causal": False, "bias": True, "qkv_bias": None, "project": True}
        | {"dropout": 0.0},
    ),
    "blocks.Attention.forward": lambda: (
        blocks.Attention(**BLOCK, causal=True),
        {"x": draw(2, 4, 8), "mask": torch.ones(2, 4, dtype=torch.bool)},
    ),
    "blocks.FeedForward": lambda: (
        blocks.FeedForward,
        {"width": 8, "hidden": 8, "bias": True, "gelu": "tanh", "dropout": 0.0},
    ),
    "blocks.FeedForward.forward": lambda: (blocks.FeedForward(8, 4), {"x": draw(2, 8)}),
    "blocks.Block": lambda: (
        blocks.Block,
        BLOCK
        | {"hidden": 8, "head_width": 4, "causal": False, "norm": True, "bias": True}
        | {"qkv_bias": None, "project": True, "skip": True, "gelu": "none", "dropout": 0.0},
    ),
    "blocks.Block.forward": lambda: (
        blocks.Block(**BLOCK, hidden=8),
        {"x": draw(2, 4, 8), "mask": torch.ones(2, 4, dtype=torch.bool)},
    ),
    "blocks.Stack": lambda: (blocks.Stack, {"blocks": [blocks.Block(**BLOCK)]}),
    "blocks.Stack.forward": lambda: (
        blocks.Stack([blocks.Block(**BLOCK)]),
        {"x": draw(2, 4, 8), "valid": torch.ones(2, 4, dtype=torch.bool)},
    ),
    "blocks.TokenEmbedding": lambda: (
        blocks.TokenEmbedding,
        {"vocabulary": 7, "context": 5, "width": 8, "std": 0.02, "dropout": 0.0},
    ),
    "blocks.TokenEmbedding.forward": lambda: (
        blocks.TokenEmbedding(7, 5, 8),
        {"tokens": ids(2, 5)},
    ),
    "ControlledResNet": lambda: (
        nets.ControlledResNet,
        {
            "dim": 2, "layers": 2, "t_final": 1.0, "scheme": "heun", "classes": 2, "width": 3,
            "activation": "tanh", "shared": False, "learn_lengths": True, "transport": 0.1,
            "penalty": 0.1,
        },
    ),
    "ControlledResNet.forward": lambda: (resnet(), {"x": draw(4, 2)}),
    "control.Dynamics": lambda: (
        control.Dynamics,
        {
            "layers": [nn.Linear(2, 2)], "t_final": 1.0, "steps": 1, "shared": True,
            "scheme": "rk4", "velocity": "residual", "learn_lengths": False, "timed": False,
            "transport": 0.1, "penalty": 0.1, "running": None,
        },
    ),
    "control.Dynamics.forward": lambda: (
        control.Dynamics([blocks.Block(**BLOCK)], transport=0.1),
        {"x": draw(2, 4, 8), "valid": torch.ones(2, 4, dtype=torch.bool), "mask": None},
    ),
    "control.Dynamics.plan": lambda: (
        control.Dynamics([blocks.Block(**BLOCK)], transport=0.1).plan,
        {"x": draw(2, 4, 8), "valid": None},
    ),
    "control.MSA": lambda: (
        control.MSA,
        {
            "rho": 0.1, "iterations": 2, "tolerance": 1e-3, "doublings": 2, "workers": 1,
            "devices": (),
        },
    ),
    "control.by_costates": lambda: (control.by_costates, {"objective": OBJECTIVE, "keep": 2}),
    "control.costates": lambda: (control.costates, controlled()),
    "control.extremal": lambda: (control.extremal, controlled()),
    "control.gradients": lambda: (control.gradients, controlled() | {"keep": "sqrt"}),
    "control.hamiltonian": lambda: (control.hamiltonian, controlled()),
    "control.optimality": lambda: (
        control.optimality,
        controlled() | {"iterations": 2, "tolerance": 0.1},
    ),
    "control.states": lambda: (control.states, {"network": resnet(), "x": draw(4, 2)}),
    "convex.ConvexProblem": lambda: (
        convex.ConvexProblem,
        {"output": draw(2, 3), "loss": "squared", "t_final": 1.0, "steps": 2, "lam": 1.0},
    ),
    "convex.ConvexProblem.value": lambda: (problem().value, {"x": draw(4, 3), "y": draw(4, 2)}),
    "convex.ConvexProblem.prediction": lambda: (problem().prediction, {"x": draw(4, 3)}),
    "convex.ConvexProblem.gradient": lambda: (
        problem().gradient,
        {"x": draw(4, 3), "y": draw(4, 2)},
    ),
    "convex.ConvexProblem.terminal_state": lambda: (
        problem().terminal_state,
        {"x0": draw(4, 3), "y": draw(4, 2)},
    ),
    "convex.ConvexProblem.velocities": lambda: (
        problem().velocities,
        {"x0": draw(4, 3), "y": draw(4, 2)},
    ),
    "convex.ConvexProblem.objective": lambda: (
        problem().objective,
        {"velocities": draw(2, 4, 3), "x0": draw(4, 3), "y": draw(4, 2)},
    ),
    "convex.ConvexProblem.minimise": lambda: (
        problem().minimise,
        {"x0": draw(4, 3), "y": draw(4, 2), "start": 0, "method": "newton"},
    ),
    "convex.ConvexProblem.trajectory": lambda: (
        problem().trajectory,
        {"x0": draw(4, 3), "velocities": draw(2, 4, 3)},
    ),
    "convex.ConvexProblem.stability": lambda: (
        convex.ConvexProblem(0.1 * draw(2, 3), steps=2).stability,
        {"x1": draw(4, 3), "y1": draw(4, 2), "x2": draw(4, 3, seed=1), "y2": draw(4, 2)},
    ),
    "generative.Potential": lambda: (
        generative.Potential,
        {"dim": 2, "width": 4, "layers": 2, "rank": 3, "condition": 1, "start": 0.5},
    ),
    "generative.Potential.forward": lambda: (
        flow().potential,
        {"x": draw(3, 2), "t": 0.5, "y": draw(1)},
    ),
    "generative.Potential.derivatives": lambda: (
        flow().potential.derivatives,
        {"x": draw(3, 2), "t": draw(3), "y": draw(3, 1), "laplacian": True, "hessian": False},
    ),
    "generative.Potential.operations": lambda: (
        flow().potential.operations,
        {"laplacian": False},
    ),
    "generative.OTFlow": lambda: (
        generative.OTFlow,
        {"potential": generative.Potential(2, width=4), "steps": 2, "t_final": 1.0},
    ),
    "generative.OTFlow.forward": lambda: (flow(), {"x": draw(3, 2), "y": draw(1)}),
    "generative.OTFlow.to_base": lambda: (flow().to_base, {"x": draw(3, 2), "y": draw(3, 1)}),
    "generative.OTFlow.from_base": lambda: (
        flow().from_base,
        {"z": draw(3, 2), "y": draw(3, 1), "exact": False},
    ),
    "generative.OTFlow.generate": lambda: (
        conditional().generate,
        {"z": draw(4, 2), "y": draw(4, 3)},
    ),
    "generative.OTFlow.log_density": lambda: (
        flow().log_density,
        {"x": draw(3, 2), "y": draw(1)},
    ),
    "generative.OTFlow.sample": lambda: (
        flow().sample,
        {"n": 3, "seed": 0, "y": draw(1), "exact": True},
    ),
    "generative.SparseTransformerFlow": lambda: (
        generative.SparseTransformerFlow,
        {
            "potential": generative.Potential(2, width=4), "steps": 2, "t_final": 1.0, "lam": 0.5,
            "beta": 1.0, "trainable": ("beta",), "kernel": "laplace", "convention": "inverse",
            "context": "masked", "tokens": 8, "prox": "smooth", "attended": (2,),
            "checkpointing": False, "determinant": "estimate", "probes": 2,
        },
    ),
    "generative.SparseTransformerFlow.forward": lambda: (flow(True), {"x": draw(8, 2)}),
    "generative.SparseTransformerFlow.set_context": lambda: (
        flow(True).set_context,
        {"x": draw(5, 2), "y": None},
    ),
    "generative.SparseTransformerFlow.to_base": lambda: (
        flow(True).to_base,
        {"x": draw(3, 2), "y": None, "context": draw(5, 2)},
    ),
    "generative.SparseTransformerFlow.from_base": lambda: (
        flow(True).from_base,
        {"z": draw(3, 2), "y": None, "context": (draw(5, 2), None)},
    ),
    "generative.SparseTransformerFlow.generate": lambda: (
        flow(True).generate,
        {"z": draw(3, 2), "y": None, "context": (draw(5, 2), None)},
    ),
    "generative.SparseTransformerFlow.log_density": lambda: (
        flow(True).log_density,
        {"x": draw(3, 2), "y": None, "context": None},
    ),
    "generative.SparseTransformerFlow.sample": lambda: (
        flow(True).sample,
        {"n": 3, "seed": 0, "y": None, "context": None},
    ),
    "generative.SparseTransformerFlow.ess": lambda: (
        flow(True).ess,
        {"x": draw(3, 2), "y": None, "context": draw(5, 2)},
    ),
    "generative.Likelihood": lambda: (generative.Likelihood, {"alpha": (1.0, 1.0, 0.1)}),
    "generative.attention": lambda: (
        generative.attention,
        {
            "x": draw(4, 2), "context": draw(4, 2, seed=1), "h": 0.1, "lam": 0.5, "beta": 1.0,
            "kernel": "laplace", "prox": "soft", "moments": "variance", "exclude_self": True,
        },
    ),
    "generative.log_normal": lambda: (generative.log_normal, {"z": draw(3, 2)}),
    "generative.log_normaliser": lambda: (
        generative.log_normaliser,
        {"y": draw(3, 2), "h": 0.1, "lam": 0.5, "beta": 1.0},
    ),
    "data.BytePairs": lambda: (data.BytePairs, {"encoder": b"{}", "merges": b""}),
    "data.Characters": lambda: (data.Characters, {"text": "some text"}),
    "data.Characters.encode": lambda: (data.Characters("some text").encode, {"text": "text"}),
    "data.Characters.decode": lambda: (data.Characters("text").decode, {"tokens": [0, 1]}),
    "data.CropBatches": lambda: (data.CropBatches, crops() | {"seed": 0}),
    "data.CropBatches.call": lambda: (data.CropBatches(**crops()), {"step": 3}),
    "data.ImageBatches": lambda: (
        data.ImageBatches,
        images() | {"seed": 0, "mean": 0.0, "std": 1.0, "augment": None},
    ),
    "data.ImageBatches.call": lambda: (data.ImageBatches(**images()), {"step": 3}),
    "data.ImageBatches.rows": lambda: (data.ImageBatches(**images()).rows, {"step": 3}),
    "data.ImageBatches.evaluation": lambda: (
        data.ImageBatches(**images()).evaluation,
        {"batch": 2},
    ),
    "data.RandomCrops": lambda: (
        data.RandomCrops,
        {"seed": 0, "scale": (0.1, 0.9), "ratio": (0.5, 2.0), "flip": 0.5},
    ),
    "data.RandomCrops.call": lambda: (
        data.RandomCrops(seed=1),
        {"images": draw(2, 3, 4, 4), "step": 3},
    ),
    "data.RandomCrops.boxes": lambda: (
        data.RandomCrops(seed=1).boxes,
        {"n": 3, "step": 2, "size": (4, 6)},
    ),
    "data.RandomPoses": lambda: (
        data.RandomPoses,
        {"seed": 0, "turn": 0.2, "stretch": (0.5, 2.0)},
    ),
    "data.RandomPoses.call": lambda: (
        data.RandomPoses(seed=1),
        {"points": draw(2, 5, 3), "step": 3},
    ),
    "data.cats_and_dogs": lambda: (data.cats_and_dogs, {"folder": "tests", "pixels": 8}),
    "data.Reviews": lambda: (
        data.Reviews,
        {
            "train_texts": ("bad",), "train_labels": ids(1), "test_texts": ("good",),
            "test_labels": ids(1), "source": "invented",
        },
    ),
    "data.TextBatches": lambda: (
        data.TextBatches,
        rows() | {"truncate": "end", "bucket": 2, "pad": 0, "pad_to_context": True, "seed": 0},
    ),
    "data.TextBatches.call": lambda: (data.TextBatches(**rows()), {"step": 3}),
    "data.TextBatches.rows": lambda: (data.TextBatches(**rows()).rows, {"step": 3}),
    "data.TextBatches.evaluation": lambda: (data.TextBatches(**rows()).evaluation, {"batch": 2}),
    "data.TrainedBytePairs": lambda: (
        data.TrainedBytePairs,
        {"texts": ["to be"], "vocabulary": 258, "lowercase": True, "cached": False},
    ),
    "data.TrainedBytePairs.encode": lambda: (learnt().encode, {"text": "to be"}),
    "data.TrainedBytePairs.encode_all": lambda: (learnt().encode_all, {"texts": ["to", "be"]}),
    "data.TrainedBytePairs.decode": lambda: (learnt().decode, {"tokens": [3, 4]}),
    "data.imdb": lambda: (
        data.imdb,
        {"folder": "tests", "split": "joined", "seed": 0, "keep_duplicates": True},
    ),
    "data.digits": lambda: (data.digits, {}),
    "data.drop_points": lambda: (
        data.drop_points,
        {
            "clouds": draw(2, 5, 3), "rate": 0.5, "seed": 0,
            "mask": torch.ones(2, 5, dtype=torch.bool),
        },
    ),
    "data.CloudBatches": lambda: (
        data.CloudBatches,
        clouds() | {"points": 3, "seed": 0, "fixed_subset": False, "augment": None},
    ),
    "data.CloudBatches.call": lambda: (data.CloudBatches(**clouds()), {"step": 3}),
    "data.CloudBatches.rows": lambda: (data.CloudBatches(**clouds()).rows, {"step": 3}),
    "data.CloudBatches.evaluation": lambda: (
        data.CloudBatches(**clouds()).evaluation,
        {"batch": 2},
    ),
    "data.Mesh": lambda: (data.Mesh, {"vertices": draw(3, 3), "faces": [[0, 1, 2]]}),
    "data.mnist_clouds": lambda: (data.mnist_clouds, {"folder": "tests", "digits": 10}),
    "data.modelnet40": lambda: (
        data.modelnet40,
        {"folder": "tests", "points": 5, "seed": 0, "partial": True},
    ),
    "data.read_off": lambda: (data.read_off, {"path": "tests/fuzz/test_net_calls.py"}),
    "data.rotate_points": lambda: (
        data.rotate_points,
        {"clouds": draw(2, 5, 3), "angle": 0.5, "seed": 0, "about": "third"},
    ),
    "data.sample_surface": lambda: (
        data.sample_surface,
        {"vertices": [[0, 0, 0], [1, 0, 0], [0, 1, 0]], "faces": [[0, 1, 2]], "points": 4,
         "seed": 0},
    ),
    "data.solids": lambda: (
        data.solids,
        {"train": 12, "test": 12, "points": 4, "noise": 0.1, "seed": 0},
    ),
    "data.standardised": lambda: (
        data.standardised,
        {"clouds": draw(2, 5, 3), "centre": "scalar"},
    ),
    "data.embedded_text": lambda: (data.embedded_text, {}),
    "data.gaussian_noise": lambda: (
        data.gaussian_noise,
        {"images": draw(2, 4, 4), "level": 0.5, "seed": 0},
    ),
    "data.mnist": lambda: (data.mnist, {"folder": "tests", "digits": 10}),
    "data.planar": lambda: (
        data.planar,
        {"name": "moons", "n": 4, "seed": 0, "part": "validation"},
    ),
    "data.PlanarBatches": lambda: (
        data.PlanarBatches,
        {"name": "rings", "batch": 4, "seed": 0},
    ),
    "data.PlanarBatches.call": lambda: (
        data.PlanarBatches("pinwheel", batch=3),
        {"step": 2},
    ),
    "data.read_idx": lambda: (data.read_idx, {"path": __file__, "dims": None}),
    "data.replace_tokens": lambda: (
        data.replace_tokens,
        {"tokens": ids(4, 5), "rate": 0.5, "vocabulary": 7, "seed": 0},
    ),
    "data.prepare_text": lambda: (
        data.prepare_text,
        {
            "source": "no-such-text.txt", "out": "no-such-folder", "name": "trial",
            "column": "text", "begins": None, "validation": 0.1, "seed": 0, "tokenizer": None,
            "workers": 1, "resume": False, "overwrite": False, "show": False,
        },
    ),
    "data.TokenFile": lambda: (
        data.TokenFile,
        {"path": "tests", "tokens": 5, "vocabulary": 7, "sha256": ""},
    ),
    "data.TokenFiles": lambda: (data.TokenFiles, {"folder": "tests", "vocabulary": 7}),
    "data.shakespeare": lambda: (data.shakespeare, {"tokens": "characters", "folder": "tests"}),
    "data.uniform_noise": lambda: (
        data.uniform_noise,
        {"images": draw(2, 4, 4), "level": 0.5, "seed": 0},
    ),
    "data.unit": lambda: (data.unit, {"images": ids(2, 4).to(torch.uint8)}),
    "data.windows": lambda: (data.windows, crops()),
    "diagnostics.check_stability": lambda: (
        diagnostics.check_stability,
        pairs() | {"cost": "mean", "entries": 1, "loss_weight": 1.0},
    ),
    "diagnostics.hidden_transport": lambda: (
        diagnostics.hidden_transport,
        {"before": draw(5, 3), "after": draw(4, 3), "p": 2.0, "ground": "euclidean"},
    ),
    "diagnostics.lipschitz": lambda: (
        diagnostics.lipschitz,
        {
            "function": nn.Linear(3, 2).double(), "x": draw(4, 3).double(), "perturbation": 1e-3,
            "seed": 0, "samples": 2, "iterations": 2,
        },
    ),
    "diagnostics.operator_norm": lambda: (diagnostics.operator_norm, {"layer": draw(3, 2)}),
    "diagnostics.speed_variation": lambda: (
        diagnostics.speed_variation,
        {"trajectory": path(), "per": "token", "valid": torch.ones(2, 4, dtype=torch.bool)},
    ),
    "diagnostics.stability_bound": lambda: (
        diagnostics.stability_bound,
        {
            "t_final": 1.0, "L": 0.5, "lam": 2.0, "cost": "mean", "entries": 1,
            "loss_weight": 1.0,
        },
    ),
    "diagnostics.step_costs": lambda: (
        diagnostics.step_costs,
        {"trajectory": path(), "share": True},
    ),
    "diagnostics.straightness": lambda: (
        diagnostics.straightness,
        {"trajectory": path(), "per": "sample", "valid": None},
    ),
    "diagnostics.transport_along": lambda: (
        diagnostics.transport_along,
        {"trajectory": path(), "perturbed": path(), "p": 1.0, "ground": "p-norm"},
    ),
    "diagnostics.transport_ratio": lambda: (
        diagnostics.transport_ratio,
        {
            "inputs": draw(4, 3), "perturbed_inputs": draw(4, 3, seed=1), "outputs": draw(4, 2),
            "perturbed_outputs": draw(4, 2, seed=1), "p": 2.0, "ground": "chordal",
        },
    ),
    "metrics.Perplexities": lambda: (
        metrics.Perplexities,
        {"of_mean": 1.0, "mean_of_sequences": 1.0},
    ),
    "metrics.bleu": lambda: (
        lambda predictions, reference, words: metrics.bleu(predictions, reference, words=words),
        {"predictions": ["to be or not"], "reference": ["to be or not"], "words": "moses"},
    ),
    "metrics.check_encoder": lambda: (metrics.check_encoder, {"encoder": "no-such-encoder"}),
    "metrics.generated": lambda: (
        metrics.generated,
        {
            "model": nets.GPT(**GPT), "beginnings": ids(2, 3), "targets": ids(2, 2),
            "temperature": 0.8, "top_k": 3, "seed": 0, "batch": 2,
        },
    ),
    "metrics.teacher_forced": lambda: (
        metrics.teacher_forced,
        {"model": nets.GPT(**GPT), "windows": [(ids(2, 5), ids(2, 5))]},
    ),
    "metrics.losses": lambda: (
        metrics.losses,
        {"model": nets.GPT(**GPT), "windows": [(ids(2, 5), ids(2, 5))]},
    ),
    "metrics.passages": lambda: (
        metrics.passages,
        {"tokens": ids(30), "beginning": 4, "continuation": 2, "most": 3},
    ),
    "metrics.perplexities": lambda: (metrics.perplexities, {"losses": draw(3, 4)}),
    "metrics.scores": lambda: (
        metrics.scores,
        {"predictions": ["a b", ""], "references": ["a c", "d"], "encoder": None, "device": "cpu"},
    ),
    "metrics.signature": lambda: (metrics.signature, {"words": "moses"}),
    "particles.TrainedHeads": lambda: (
        particles.TrainedHeads,
        {
            "heads": particles.QKV(draw(2, 1, 3, 3), draw(2, 1, 3, 3), draw(2, 1, 3, 3)),
            "order": [0, 1], "duration": 1.0, "score_factors": [1.0, 2.0],
            "value_factors": [1.0, 2.0], "causal": False, "centred": True,
        },
    ),
    "particles.TrainedHeads.with_heads": lambda: (
        heads().with_heads,
        {"scores": heads().layer_scores, "values": heads().layer_values},
    ),
    "particles.blocks_of": lambda: (particles.blocks_of, {"network": nets.GPT(**GPT)}),
    "particles.clouds_of": lambda: (
        particles.clouds_of,
        {"network": nets.GPT(**GPT), "inputs": ids(2, 5)},
    ),
    "particles.dropped": lambda: (
        particles.dropped,
        {"network": nets.GPT(**GPT), "radius": 1.0},
    ),
    "particles.head_law": lambda: (
        particles.head_law,
        {"network": nets.GPT(**GPT), "t_final": 1.0, "radius": [1.0, 2.0], "passes": 1},
    ),
    "particles.motion_of": lambda: (
        particles.motion_of,
        {"network": nets.GPT(**GPT), "inputs": ids(2, 5)},
    ),
    "particles.problem": lambda: (
        particles.problem,
        {
            "network": nets.GPT(**GPT), "inputs": ids(2, 5), "steps": 3, "t_final": 1.0,
            "radius": None, "passes": 1,
        },
    ),
    "particles.randomised": lambda: (particles.randomised, {"law": heads(), "seed": 0}),
    "particles.tied": lambda: (particles.tied, {"law": heads()}),
    "particles.tokens_of": lambda: (
        particles.tokens_of,
        {"network": body(), "inputs": draw(2, 4, 8)},
    ),
    "particles.velocity": lambda: (
        particles.velocity,
        {"law": heads(width=12), "x": directions(12), "t": 0.5},
    ),
    "train.Constant": lambda: (train.Constant, {"rate": 0.1}),
    "train.Constant.call": lambda: (train.Constant(0.1), {"step": 1}),
    "train.Cosine": lambda: (
        train.Cosine,
        {"rate": 0.1, "least": 0.0, "warm_up": 2, "steps": 10},
    ),
    "train.Cosine.call": lambda: (train.Cosine(0.1, 0.0, 2, 10), {"step": 1}),
    "train.StepDecay": lambda: (
        train.StepDecay,
        {"rates": (0.1, 0.2), "boundaries": (3,)},
    ),
    "train.StepDecay.call": lambda: (train.StepDecay((0.1,), ()), {"step": 1}),
    "train.TrainConfig": lambda: (train.TrainConfig, dict(SETTINGS)),
    "train.cross_entropy": lambda: (
        train.cross_entropy,
        {"output": draw(4, 3), "targets": ids(4, below=3)},
    ),
    "train.device": lambda: (train.device, {"name": "cpu"}),
    "train.load_model": lambda: (train.load_model, {"path": __file__, "model": network()}),
    "train.objective": lambda: (
        train.objective,
        {"loss_fn": functional.cross_entropy, "weight": 0.1},
    ),
    "train.save_model": lambda: (
        train.save_model,
        {"path": __file__, "model": network(), "description": "words"},
    ),
    "generative.Autoencoder": lambda: (
        generative.Autoencoder,
        {"latent": 2, "pixels": 4, "hidden": 3, "rectified": False},
    ),
    "generative.Autoencoder.forward": lambda: (coder(), {"images": draw(5, 4)}),
    "generative.Autoencoder.encode": lambda: (coder().encode, {"images": draw(5, 2, 2)}),
    "generative.Autoencoder.decode": lambda: (coder().decode, {"z": draw(5, 2)}),
    "generative.Autoencoder.standardise": lambda: (
        coder().standardise,
        {"images": draw(5, 4), "whiten": True},
    ),
    "generative.ReverseKL": lambda: (
        generative.ReverseKL,
        {"problem": inverse_problem(), "alpha": (1.0, 1.0, 0.1), "supervised": 0.5},
    ),
    "generative.ReverseKL.call": lambda: (
        lambda x, features, y: generative.ReverseKL(inverse_problem())(
            conditional(), x, features, y
        ),
        {"x": draw(4, 2), "features": draw(4, 3), "y": draw(4, 3, seed=1)},
    ),
    "train.train": lambda: (train.train, training()),
    "train.restore": lambda: (train.restore, {"path": __file__, "kind": nets.GPT}),
    "Pretrained": lambda: (nets.Pretrained, {}),
    "GPT.from_pretrained": lambda: (nets.GPT.from_pretrained, {"folder": "tests"}),
    "register": lambda: (partial(nets.register, type("Fuzzed", (nn.Module,), {})), {}),
    "config": lambda: (nets.config, {"network": nets.ViT(**VIT)}),
    "build": lambda: (nets.build, {"config": nets.config(nets.ViT(**VIT))}),
}  # fmt: skip

# Records that functions return, protocols, names of files, and the union of the schedules.
PLAIN = {
    "Flow", "Output", "Trajectory", "data.Images", "data.Text", "data.Tokenizer",
    "control.Extremal", "control.NonFiniteCostateError", "control.Optimality", "control.Violation",
    "data.PointClouds", "diagnostics.Bound", "diagnostics.Lipschitz", "diagnostics.Stability",
    "diagnostics.Transport",
    "generative.Attended", "generative.Derivatives", "generative.Generated", "generative.ToBase",
    "particles.Clouds", "particles.Dropped", "particles.Motion", "particles.Tied",
    "train.Batches", "train.CHECKPOINT", "train.Loss", "train.METRICS", "train.METRICS_JSON",
    "train.NonFiniteLossError", "train.Objective", "train.Schedule",
}  # fmt: skip


def wrong(rng):
    """Something else than what was asked for; torch's and NumPy's numbers among it."""
    nan, inf = float("nan"), float("inf")
    return rng.choice(
        [
            None, True, False, np.True_, 0, 1, -1, 3, 2**62, 10**30, 1.5, 2.0, -0.5, nan, inf, -inf,
            "False", "", "cpu", "words", b"x", 1j, [], (), {}, set(), [1, "a"], [[1.0], [2.0, 3.0]],
            {"a": 1}, object(), int, lambda *given: None, range(3), "2020-01-01",
            np.int64(3), np.float32(0.5), np.datetime64("2020-01-01"), np.array("x"),
            np.array(0.5), np.zeros(0), np.ones((2, 2)), np.ones((2, 4), bool), np.array([1j]),
            np.ma.masked_array([1.0, 2.0], [True, False]), np.array([object()]),
            torch.tensor(1.0), torch.tensor(3), torch.zeros(0), torch.zeros(0, 3), draw(3),
            draw(2, 4, 8), draw(2, 4, 8).double(), draw(2, 4, 7), draw(4, 3).half(), ids(2, 5),
            ids(2, 5).to(torch.uint8), ids(2, 9, below=900) - 5, torch.ones(2, 4, dtype=torch.bool),
            torch.zeros(2, 4, dtype=torch.bool), torch.zeros(4, 3, dtype=torch.complex64),
            torch.full((4, 3), nan), torch.full((2, 4, 8), inf), draw(4, 3).to_sparse(),
            torch.empty(4, 3, device="meta"), torch.empty(2, 5, dtype=torch.int64, device="meta"),
            draw(4, 3).requires_grad_(), nn.Linear(8, 8), nn.Identity(), nn.Sequential(),
            [nn.Linear(8, 8)], [3], nn.ReLU, network(), *strange(),
        ]
    )  # fmt: skip


def strange():
    """Numbers and tensors that exist, and that few programs expect."""
    numbers = [7e-46, 1e-45, 5e-324, 1e-300, 1e300]  # 0 or infinite in single precision
    return [
        *numbers, [[0, 1, 2], [0, 1]], [draw(4).to_sparse()],
        torch.nested.nested_tensor([draw(3, 3), draw(2, 3)]),
        torch.nested.nested_tensor([draw(4, 8), draw(4, 8)]),
        torch.nested.nested_tensor([draw(3, 3), draw(2, 3)], layout=torch.jagged),
        draw(4, 3).to_sparse_csr(), draw(2, 4, 8).to_sparse(),
        torch.quantize_per_tensor(draw(4, 3), 0.1, 0, torch.qint8),
        torch.zeros(4, 2, dtype=torch.complex64).conj().imag,
        draw(4, 2).to(torch.float8_e4m3fn), ids(2, 5).to(torch.uint16), draw(1, 2).expand(4, 2),
    ]  # fmt: skip


def frozen(value):
    """What a value holds, to see afterwards that nobody has changed it."""
    if isinstance(value, torch.Tensor):
        if value.is_meta or value.layout != torch.strided or value.is_nested or value.is_quantized:
            return id(value)
        flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        raw = flat.view(torch.uint8).numpy().tobytes()
        return value.dtype, tuple(value.shape), raw, value.requires_grad
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes() if value.dtype != object else None
    if isinstance(value, Mapping):
        return [(key, frozen(entry)) for key, entry in value.items()]
    if isinstance(value, list | tuple):
        return [frozen(entry) for entry in value]
    return repr(value) if isinstance(value, int | float | str | bytes) else id(value)


def called(function, given):
    """Call a function, and take what it yields; None or a wflow error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = function(**given)
            if inspect.isgenerator(found):
                for _ in range(5):
                    next(found, None)
        except WflowError as error:
            return error
    return None


def public():
    """Names that users import."""
    names = {name for name in nets.__all__ if not inspect.ismodule(getattr(nets, name))}
    for module in (control, data, diagnostics, generative, particles, train):
        names |= {f"{module.__name__.rpartition('.')[2]}.{name}" for name in module.__all__}
    for module in (convex, blocks):
        own = inspect.getmembers(module, inspect.isclass)
        names |= {
            f"{module.__name__.rpartition('.')[2]}.{name}"
            for name, kind in own
            if kind.__module__ == module.__name__ and name not in nets.__all__
        }
    return names


def test_every_public_name_is_called():
    assert public() == {name for name in CALLS if name in public()} | PLAIN


def test_every_call_works_as_it_stands():
    refused = {f"data.{name}" for name in ("BytePairs", "mnist", "shakespeare", "read_idx", "imdb")}
    refused |= {"data.cats_and_dogs", "data.mnist_clouds", "data.modelnet40", "data.read_off"}
    refused.add("GPT.from_pretrained")  # no such folder
    refused |= {f"data.{name}" for name in ("prepare_text", "TokenFile", "TokenFiles")}  # likewise
    refused |= {f"train.{name}" for name in ("load_model", "save_model", "restore")}  # foreign
    if missing({name: "metrics" for name in ("sacrebleu", "sacremoses")}):
        refused |= {"metrics.bleu", "metrics.signature"}
    if missing({name: "metrics" for name in ("sacrebleu", "sacremoses", "rouge_score")}):
        refused.add("metrics.scores")
    refused.add("metrics.check_encoder")  # there is none of this name
    for name, make in CALLS.items():
        error = called(*make())
        assert (error is not None) == (name in refused), f"{name}: {error}"


def offline(*given):
    raise InputError("downloads are not tried here")


def test_calls_with_wrong_arguments_work_or_raise_a_wflow_error(cases, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for those that name a file
    monkeypatch.delenv("WFLOW_DATA", raising=False)
    for module in (download, archives):
        monkeypatch.setattr(module, "download", offline)
    rng = random.Random(2024)
    names = list(CALLS)
    rng.shuffle(names)
    faults = []
    for number in range(cases(150, 600)):
        name = names[number % len(names)]
        torch.manual_seed(number)
        function, given = CALLS[name]()
        if not given:
            continue
        changed = rng.choice(list(given))
        given[changed] = wrong(rng)
        before = frozen(given)
        try:
            called(function, given)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            faults.append(f"{name}({changed}={given[changed]!r:.80}): {reason:.200}")
        else:
            assert frozen(given) == before, f"{name}({changed}=...) changed what it was given"
    assert not faults, "\n".join(faults)
