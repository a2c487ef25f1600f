"""Valid arguments of every public call of `wflow.nets`, for fuzz and for tables of refusals."""

from functools import partial
from operator import attrgetter

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from trainings import OBJECTIVE, Points, config, network

from wflow import nets
from wflow.nets import (
    blocks,
    convex,
    generative,
    metrics,
    particles,
    train,
)
from wflow.sampling import forward


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def there(*shape):
    return torch.ones(*shape, dtype=torch.bool)


def ids(*shape, below=7):
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(0))


GPT = {"vocabulary": 7, "context": 5, "width": 8, "depth": 2, "heads": 2}
VIT = {"image": (1, 4, 4), "patch": 2, "classes": 3, "width": 8, "heads": 2}
TEXT = GPT | {"classes": 3}
SETS = {"features": 3, "classes": 3, "width": 8, "heads": 2, "inducing": 2}
BLOCK = {"width": 8, "heads": 2}


def gpt2_state(vocabulary=11, context=7, width=6, depth=2) -> dict[str, torch.Tensor]:
    """Return random weights with the names and shapes of a published GPT-2."""
    shapes = {"wte.weight": (vocabulary, width), "wpe.weight": (context, width)}
    shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    maps = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width)}
    maps |= {"mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width)}
    for i in range(depth):
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{name}.weight": (width,), f"h.{i}.{name}.bias": (width,)}
        for name, shape in maps.items():
            shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[1:]}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def body(wrap=nets.ContinuousTransformer):
    return wrap([blocks.Block(**BLOCK) for _ in range(2)], steps=2)


def sparse():
    phi = generative.Potential(2, width=4)
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
        "log": None,
    }  # fmt: skip


SETTINGS = {
    "steps": 2, "batch": 4, "schedule": train.Constant(0.1), "optimizer": "adam",
    "betas": (0.9, 0.99), "weight_decay": 0.1, "clip": 1.0, "accumulate": 1,
    "precision": "float32", "compile": False, "evaluate_every": None, "checkpoint_every": 10,
    "seed": 0, "device": "cpu",
}  # fmt: skip

# Objects whose methods are called, if they are not made with the arguments of their class.
OBJECTS = {
    "generative.SparseTransformerFlow": lambda: sparse(),
    "particles.TrainedHeads": lambda: heads(),
}

# Functions that are called otherwise than by their name.
FUNCTIONS = {
    "generative.ReverseKL.call": lambda: reverse_kl,
    "metrics.bleu": lambda: bleu,
    "register": lambda: partial(nets.register, type("Fuzzed", (nn.Module,), {})),
}


def bleu(predictions, reference, words):
    return metrics.bleu(predictions, reference, words=words)


def reverse_kl(x, features, y):
    return generative.ReverseKL(inverse_problem())(conditional(), x, features, y)


def call_of(name, /, **changes):
    """Return the function of a name, and arguments that are made again for every call."""
    given = ARGUMENTS[name]() | changes
    if name in FUNCTIONS:
        return FUNCTIONS[name](), given
    owner, _, method = name.rpartition(".")
    if owner not in ARGUMENTS:
        return attrgetter(name)(nets), given
    made = OBJECTS[owner]() if owner in OBJECTS else attrgetter(owner)(nets)(**ARGUMENTS[owner]())
    return made if method in ("forward", "call") else getattr(made, method), given


ARGUMENTS = {
    "GPT": lambda: dict(GPT, norm=True, bias=False, skip=True, gelu="none", dropout=0.0),
    "GPT.forward": lambda: dict(tokens=ids(2, 5), targets=ids(2, 5)),
    "GPT.count": lambda: dict(positions=True),
    "GPT.generate": lambda: dict(tokens=ids(2, 3), new=2, temperature=0.8, top_k=3, generator=None),
    "GPT.from_gpt2": lambda: dict(state=gpt2_state(7, 5, 8, 1), heads=2, dropout=0.0),
    "ViT": lambda: dict(VIT, depth=1, head_width=None, hidden=4, qkv_bias=False, project=None,
        skip=True, position_std=1.0, dropout=0.1),
    "ViT.forward": lambda: dict(images=draw(2, 1, 4, 4)),
    "TextClassifier": lambda: dict(TEXT, hidden=8, pad=0, pooling="max", norm=True, skip=True,
        dropout=0.0, form="published", embedding_std=0.5),
    "TextClassifier.forward": lambda: dict(tokens=ids(2, 5)),
    "SetTransformer": lambda: dict(SETS, blocks=2, seeds=1, norm=True, skip=True, dropout=0.0,
        form="published", embedding="block"),
    "SetTransformer.forward": lambda: dict(points=draw(2, 4, 3), mask=there(2, 4)),
    "ContinuousTransformer": lambda: dict(blocks=[blocks.Block(**BLOCK)], t_final=1.0, steps=2,
        scheme="heun", velocity="block", cost="mean", checkpointing=False, batch_dim=0,
        returns="flow"),
    "ContinuousTransformer.forward": lambda: dict(x=draw(2, 4, 8), valid=there(2, 4), mask=None),
    "ContinuousTransformer.trajectory": lambda: dict(x=draw(2, 4, 8), valid=there(2, 4), mask=None),
    "ContinuousTransformer.velocity_of": lambda: dict(x=draw(2, 4, 8)),
    "MinimizingMovement": lambda: dict(width=8, heads=2, head_width=None, tau=1.0, steps=2,
        metric="weighted", direction="ascent", causal=False, tolerance=1e-4, iterations=20),
    "MinimizingMovement.forward": lambda: dict(x=draw(2, 4, 8)),
    "MinimizingMovement.energy": lambda: dict(x=draw(2, 4, 8), context=None),
    "NodeTransformer": lambda: dict(blocks=[blocks.Block(**BLOCK)], t_final=1.0, steps=2,
        checkpointing=True),
    "NodeTransformer.forward": lambda: dict(x=draw(2, 4, 8), valid=there(2, 4), mask=None),
    "NodeTransformer.trajectory": lambda: dict(x=draw(2, 4, 8), valid=None),
    "blocks.Attention": lambda: dict(BLOCK, head_width=4, causal=False, bias=True, qkv_bias=None,
        project=True, dropout=0.0),
    "blocks.Attention.forward": lambda: dict(x=draw(2, 4, 8), mask=there(2, 4)),
    "blocks.FeedForward": lambda: dict(width=8, hidden=8, bias=True, gelu="tanh", dropout=0.0),
    "blocks.FeedForward.forward": lambda: dict(x=draw(2, 8)),
    "blocks.Block": lambda: dict(BLOCK, hidden=8, head_width=4, causal=False, norm=True, bias=True,
        qkv_bias=None, project=True, skip=True, gelu="none", dropout=0.0),
    "blocks.Block.forward": lambda: dict(x=draw(2, 4, 8), mask=there(2, 4)),
    "blocks.Stack": lambda: dict(blocks=[blocks.Block(**BLOCK)]),
    "blocks.Stack.forward": lambda: dict(x=draw(2, 4, 8), valid=there(2, 4)),
    "blocks.TokenEmbedding": lambda: dict(vocabulary=7, context=5, width=8, std=0.02, dropout=0.0),
    "blocks.TokenEmbedding.forward": lambda: dict(tokens=ids(2, 5)),
    "ControlledResNet": lambda: dict(dim=2, layers=2, t_final=1.0, scheme="heun", classes=2,
        width=3, activation="tanh", shared=False, learn_lengths=True, transport=0.1, penalty=0.1),
    "ControlledResNet.forward": lambda: dict(x=draw(4, 2)),
    "control.Dynamics": lambda: dict(layers=[blocks.Block(**BLOCK)], t_final=1.0, steps=1,
        shared=True, scheme="rk4", velocity="residual", learn_lengths=False, timed=False,
        transport=0.1, penalty=0.1, running=None),
    "control.Dynamics.forward": lambda: dict(x=draw(2, 4, 8), valid=there(2, 4), mask=None),
    "control.Dynamics.plan": lambda: dict(x=draw(2, 4, 8), valid=None),
    "control.MSA": lambda: dict(rho=0.1, iterations=2, tolerance=1e-3, doublings=2, workers=1,
        devices=()),
    "control.by_costates": lambda: dict(objective=OBJECTIVE, keep=2),
    "control.costates": controlled,
    "control.extremal": controlled,
    "control.gradients": lambda: dict(controlled(), keep="sqrt"),
    "control.hamiltonian": controlled,
    "control.optimality": lambda: dict(controlled(), iterations=2, tolerance=0.1),
    "control.states": lambda: dict(network=resnet(), x=draw(4, 2)),
    "convex.ConvexProblem": lambda: dict(output=0.1 * draw(2, 3), loss="squared", t_final=1.0,
        steps=2, lam=1.0),
    "convex.ConvexProblem.value": lambda: dict(x=draw(4, 3), y=draw(4, 2)),
    "convex.ConvexProblem.prediction": lambda: dict(x=draw(4, 3)),
    "convex.ConvexProblem.gradient": lambda: dict(x=draw(4, 3), y=draw(4, 2)),
    "convex.ConvexProblem.terminal_state": lambda: dict(x0=draw(4, 3), y=draw(4, 2)),
    "convex.ConvexProblem.velocities": lambda: dict(x0=draw(4, 3), y=draw(4, 2)),
    "convex.ConvexProblem.objective": lambda: dict(velocities=draw(2, 4, 3), x0=draw(4, 3),
        y=draw(4, 2)),
    "convex.ConvexProblem.minimise": lambda: dict(x0=draw(4, 3), y=draw(4, 2), start=0,
        method="newton"),
    "convex.ConvexProblem.trajectory": lambda: dict(x0=draw(4, 3), velocities=draw(2, 4, 3)),
    "convex.ConvexProblem.stability": lambda: dict(x1=draw(4, 3), y1=draw(4, 2), x2=draw(4, 3,
        seed=1), y2=draw(4, 2)),
    "generative.Potential": lambda: dict(dim=2, width=4, layers=2, rank=3, condition=1, start=0.5),
    "generative.Potential.forward": lambda: dict(x=draw(3, 2), t=0.5, y=draw(1)),
    "generative.Potential.derivatives": lambda: dict(x=draw(3, 2), t=draw(3), y=draw(3, 1),
        laplacian=True, hessian=False),
    "generative.Potential.operations": lambda: dict(laplacian=False),
    "generative.OTFlow": lambda: dict(potential=generative.Potential(2, width=4, condition=1),
        steps=2, t_final=1.0),
    "generative.OTFlow.forward": lambda: dict(x=draw(3, 2), y=draw(1)),
    "generative.OTFlow.to_base": lambda: dict(x=draw(3, 2), y=draw(3, 1)),
    "generative.OTFlow.from_base": lambda: dict(z=draw(3, 2), y=draw(3, 1), exact=False),
    "generative.OTFlow.generate": lambda: dict(z=draw(4, 2), y=draw(4, 1)),
    "generative.OTFlow.log_density": lambda: dict(x=draw(3, 2), y=draw(1)),
    "generative.OTFlow.sample": lambda: dict(n=3, seed=0, y=draw(1), exact=True),
    "generative.SparseTransformerFlow": lambda: dict(potential=generative.Potential(2, width=4),
        steps=2, t_final=1.0, lam=0.5, beta=1.0, trainable=("beta",), kernel="laplace",
        convention="inverse", context="masked", tokens=8, itself=False, prox="smooth",
        attended=(2,), checkpointing=False, determinant="estimate", probes=2),
    "generative.SparseTransformerFlow.forward": lambda: dict(x=draw(8, 2)),
    "generative.SparseTransformerFlow.set_context": lambda: dict(x=draw(5, 2), y=None),
    "generative.SparseTransformerFlow.to_base": lambda: dict(x=draw(3, 2), y=None, context=draw(5,
        2)),
    "generative.SparseTransformerFlow.from_base": lambda: dict(z=draw(3, 2), y=None,
        context=(draw(5, 2), None)),
    "generative.SparseTransformerFlow.generate": lambda: dict(z=draw(3, 2), y=None, context=(draw(5,
        2), None)),
    "generative.SparseTransformerFlow.log_density": lambda: dict(x=draw(3, 2), y=None,
        context=None),
    "generative.SparseTransformerFlow.sample": lambda: dict(n=3, seed=0, y=None, context=None),
    "generative.SparseTransformerFlow.ess": lambda: dict(x=draw(3, 2), y=None, context=draw(5, 2)),
    "generative.Likelihood": lambda: dict(alpha=(1.0, 1.0, 0.1)),
    "generative.attention": lambda: dict(x=draw(4, 2), context=draw(4, 2, seed=1), h=0.1, lam=0.5,
        beta=1.0, kernel="laplace", prox="soft", moments="variance", exclude_self=True),
    "generative.log_normal": lambda: dict(z=draw(3, 2)),
    "generative.log_normaliser": lambda: dict(y=draw(3, 2), h=0.1, lam=0.5, beta=1.0),
    "data.BytePairs": lambda: dict(encoder=b"{}", merges=b""),
    "data.Characters": lambda: dict(text="some text"),
    "data.Characters.encode": lambda: dict(text="text"),
    "data.Characters.decode": lambda: dict(tokens=[0, 1]),
    "data.CropBatches": lambda: dict(crops(), seed=0),
    "data.CropBatches.call": lambda: dict(step=3),
    "data.ImageBatches": lambda: dict(images(), seed=0, mean=0.0, std=1.0, augment=None),
    "data.ImageBatches.call": lambda: dict(step=3),
    "data.ImageBatches.rows": lambda: dict(step=3),
    "data.ImageBatches.evaluation": lambda: dict(batch=2),
    "data.RandomCrops": lambda: dict(seed=0, scale=(0.1, 0.9), ratio=(0.5, 2.0), flip=0.5),
    "data.RandomCrops.call": lambda: dict(images=draw(2, 3, 4, 4), step=3),
    "data.RandomCrops.boxes": lambda: dict(n=3, step=2, size=(4, 6)),
    "data.RandomPoses": lambda: dict(seed=0, turn=0.2, stretch=(0.5, 2.0)),
    "data.RandomPoses.call": lambda: dict(points=draw(2, 5, 3), step=3),
    "data.cats_and_dogs": lambda: dict(folder="tests", pixels=8),
    "data.Reviews": lambda: dict(train_texts=("bad",), train_labels=ids(1), test_texts=("good",),
        test_labels=ids(1), source="invented"),
    "data.TextBatches": lambda: dict(rows(), truncate="end", bucket=2, pad=0, pad_to_context=True,
        seed=0),
    "data.TextBatches.call": lambda: dict(step=3),
    "data.TextBatches.rows": lambda: dict(step=3),
    "data.TextBatches.evaluation": lambda: dict(batch=2),
    "data.TrainedBytePairs": lambda: dict(texts=["to be"], vocabulary=258, lowercase=True,
        cached=False),
    "data.TrainedBytePairs.encode": lambda: dict(text="to be"),
    "data.TrainedBytePairs.encode_all": lambda: dict(texts=["to", "be"]),
    "data.TrainedBytePairs.decode": lambda: dict(tokens=[3, 4]),
    "data.imdb": lambda: dict(folder="tests", split="joined", seed=0, keep_duplicates=True),
    "data.digits": dict,
    "data.drop_points": lambda: dict(clouds=draw(2, 5, 3), rate=0.5, seed=0, mask=there(2, 5)),
    "data.CloudBatches": lambda: dict(clouds(), points=3, seed=0, fixed_subset=False, augment=None),
    "data.CloudBatches.call": lambda: dict(step=3),
    "data.CloudBatches.rows": lambda: dict(step=3),
    "data.CloudBatches.evaluation": lambda: dict(batch=2),
    "data.Mesh": lambda: dict(vertices=draw(3, 3), faces=[[0, 1, 2]]),
    "data.mnist_clouds": lambda: dict(folder="tests", digits=10),
    "data.modelnet40": lambda: dict(folder="tests", points=5, seed=0, partial=True),
    "data.read_off": lambda: dict(path="tests/fuzz/test_net_calls.py"),
    "data.rotate_points": lambda: dict(clouds=draw(2, 5, 3), angle=0.5, seed=0, about="third"),
    "data.sample_surface": lambda: dict(vertices=[[0, 0, 0], [1, 0, 0], [0, 1, 0]], faces=[[0, 1,
        2]], points=4, seed=0),
    "data.solids": lambda: dict(train=12, test=12, points=4, noise=0.1, seed=0),
    "data.standardised": lambda: dict(clouds=draw(2, 5, 3), centre="scalar"),
    "data.embedded_text": dict,
    "data.gaussian_noise": lambda: dict(images=draw(2, 4, 4), level=0.5, seed=0),
    "data.mnist": lambda: dict(folder="tests", digits=10),
    "data.planar": lambda: dict(name="moons", n=4, seed=0, part="validation"),
    "data.PlanarBatches": lambda: dict(name="rings", batch=4, seed=0),
    "data.PlanarBatches.call": lambda: dict(step=2),
    "data.read_idx": lambda: dict(path=__file__, dims=None),
    "data.replace_tokens": lambda: dict(tokens=ids(4, 5), rate=0.5, vocabulary=7, seed=0),
    "data.prepare_text": lambda: dict(source="no-such-text.txt", out="no-such-folder", name="trial",
        column="text", begins=None, validation=0.1, seed=0, tokenizer=None, workers=1,
        resume=False, overwrite=False, show=False),
    "data.TokenFile": lambda: dict(path="tests", tokens=5, vocabulary=7, sha256=""),
    "data.TokenFiles": lambda: dict(folder="tests", vocabulary=7),
    "data.shakespeare": lambda: dict(tokens="characters", folder="tests"),
    "data.uniform_noise": lambda: dict(images=draw(2, 4, 4), level=0.5, seed=0),
    "data.unit": lambda: dict(images=ids(2, 4).to(torch.uint8)),
    "data.windows": crops,
    "diagnostics.check_stability": lambda: dict(pairs(), cost="mean", entries=1, loss_weight=1.0),
    "diagnostics.hidden_transport": lambda: dict(before=draw(5, 3), after=draw(4, 3), p=2.0,
        ground="euclidean"),
    "diagnostics.lipschitz": lambda: dict(function=nn.Linear(3, 2).double(), x=draw(4, 3).double(),
        perturbation=1e-3, seed=0, samples=2, iterations=2),
    "diagnostics.operator_norm": lambda: dict(layer=draw(3, 2)),
    "diagnostics.speed_variation": lambda: dict(trajectory=path(), per="token", valid=there(2, 4)),
    "diagnostics.stability_bound": lambda: dict(t_final=1.0, L=0.5, lam=2.0, cost="mean", entries=1,
        loss_weight=1.0),
    "diagnostics.step_costs": lambda: dict(trajectory=path(), share=True),
    "diagnostics.straightness": lambda: dict(trajectory=path(), per="sample", valid=None),
    "diagnostics.transport_along": lambda: dict(trajectory=path(), perturbed=path(), p=1.0,
        ground="p-norm"),
    "diagnostics.transport_ratio": lambda: dict(inputs=draw(4, 3), perturbed_inputs=draw(4, 3,
        seed=1), outputs=draw(4, 2), perturbed_outputs=draw(4, 2, seed=1), p=2.0, ground="chordal"),
    "metrics.bleu": lambda: dict(predictions=["to be or not"], reference=["to be or not"],
        words="moses"),
    "metrics.check_encoder": lambda: dict(encoder="no-such-encoder"),
    "metrics.generated": lambda: dict(model=nets.GPT(**GPT), beginnings=ids(2, 3), targets=ids(2,
        2), temperature=0.8, top_k=3, seed=0, batch=2),
    "metrics.teacher_forced": lambda: dict(model=nets.GPT(**GPT), windows=[(ids(2, 5), ids(2, 5))]),
    "metrics.losses": lambda: dict(model=nets.GPT(**GPT), windows=[(ids(2, 5), ids(2, 5))]),
    "metrics.passages": lambda: dict(tokens=ids(30), beginning=4, continuation=2, most=3),
    "metrics.perplexities": lambda: dict(losses=draw(3, 4)),
    "metrics.scores": lambda: dict(predictions=["a b", ""], references=["a c", "d"], encoder=None,
        device="cpu"),
    "metrics.signature": lambda: dict(words="moses"),
    "particles.TrainedHeads": lambda: dict(heads=particles.QKV(draw(2, 1, 3, 3), draw(2, 1, 3, 3),
        draw(2, 1, 3, 3)), order=[0, 1], duration=1.0, score_factors=[1.0, 2.0], value_factors=[1.0,
        2.0], causal=False, centred=True),
    "particles.TrainedHeads.with_heads": lambda: dict(scores=heads().layer_scores,
        values=heads().layer_values),
    "particles.blocks_of": lambda: dict(network=nets.GPT(**GPT)),
    "particles.clouds_of": lambda: dict(network=nets.GPT(**GPT), inputs=ids(2, 5)),
    "particles.dropped": lambda: dict(network=nets.GPT(**GPT), radius=1.0),
    "particles.head_law": lambda: dict(network=nets.GPT(**GPT), t_final=1.0, radius=[1.0, 2.0],
        passes=1),
    "particles.motion_of": lambda: dict(network=nets.GPT(**GPT), inputs=ids(2, 5)),
    "particles.problem": lambda: dict(network=nets.GPT(**GPT), inputs=ids(2, 5), steps=3,
        t_final=1.0, radius=None, passes=1),
    "particles.randomised": lambda: dict(law=heads(), seed=0),
    "particles.tied": lambda: dict(law=heads()),
    "particles.tokens_of": lambda: dict(network=body(), inputs=draw(2, 4, 8)),
    "particles.velocity": lambda: dict(law=heads(width=12), x=directions(12), t=0.5),
    "train.Constant": lambda: dict(rate=0.1),
    "train.Constant.call": lambda: dict(step=1),
    "train.Cosine": lambda: dict(rate=0.1, least=0.0, warm_up=2, steps=10),
    "train.Cosine.call": lambda: dict(step=1),
    "train.StepDecay": lambda: dict(rates=(0.1, 0.2), boundaries=(3,)),
    "train.StepDecay.call": lambda: dict(step=1),
    "train.TrainConfig": lambda: dict(SETTINGS),
    "train.cross_entropy": lambda: dict(output=draw(4, 3), targets=ids(4, below=3)),
    "train.device": lambda: dict(name="cpu"),
    "train.load_model": lambda: dict(path=__file__, model=network()),
    "train.objective": lambda: dict(loss_fn=functional.cross_entropy, weight=0.1),
    "train.save_model": lambda: dict(path=__file__, model=network(), description="words"),
    "generative.Autoencoder": lambda: dict(latent=2, pixels=4, hidden=3, rectified=False),
    "generative.Autoencoder.forward": lambda: dict(images=draw(5, 4)),
    "generative.Autoencoder.encode": lambda: dict(images=draw(5, 2, 2)),
    "generative.Autoencoder.decode": lambda: dict(z=draw(5, 2)),
    "generative.Autoencoder.standardise": lambda: dict(images=draw(5, 4), whiten=True),
    "generative.ReverseKL": lambda: dict(problem=inverse_problem(), alpha=(1.0, 1.0, 0.1),
        supervised=0.5),
    "generative.ReverseKL.call": lambda: dict(x=draw(4, 2), features=draw(4, 3), y=draw(4, 3,
        seed=1)),
    "train.train": training,
    "train.restore": lambda: dict(path=__file__, kind=nets.GPT),
    "Pretrained": dict,
    "GPT.from_pretrained": lambda: dict(folder="tests"),
    "register": dict,
    "config": lambda: dict(network=nets.ViT(**VIT)),
    "build": lambda: dict(config=nets.config(nets.ViT(**VIT))),
}  # fmt: skip
