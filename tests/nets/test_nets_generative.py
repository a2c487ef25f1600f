"""Flows of wflow.nets.generative: derivatives, densities, inverses, attention, training."""

import math
import warnings

import numpy as np
import pytest
import torch
from slopes import assert_slopes
from torch.autograd import functional
from trainings import assert_same, crash, run

from wflow import InputError, nets, sampling
from wflow.nets import generative, train
from wflow.nets.generative import moments
from wflow.nets.generative.determinant import log_det_estimate
from wflow.nets.generative.moments import attend, interaction, proximal

pytestmark = pytest.mark.usefixtures("one_thread")

KERNELS = ("exact", "laplace", "published")
DOUBLE = torch.float64


def draw(*shape, seed=0, dtype=DOUBLE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def potential(dim=2, seed=0, scale=0.2, **options):
    """Return a potential whose weights are all random, so that no term vanishes."""
    phi = generative.Potential(dim, **{"width": 8} | options).double()
    with torch.no_grad():
        for i, weight in enumerate(phi.parameters()):
            weight.copy_(scale * draw(*weight.shape, seed=100 * seed + i))
    return phi


SMOOTH = {"lam": 0.5, "prox": "smooth", "drift": "euler"}
ATTRACTING = SMOOTH | {"steps": 3, "beta": 2.0, "convention": "attracting"}


def sparse(phi=None, seed=3, tokens=40, **options):
    flow = generative.SparseTransformerFlow(phi or potential(), **{"steps": 4} | options).double()
    flow.set_context(draw(tokens, flow.dim, seed=seed))
    return flow.eval()


def plain_value(phi, s):
    """Return phi(s) for one point, in torch's own operations."""
    u = torch.log(2 * torch.cosh(phi.opening.weight @ s + phi.opening.bias))
    for layer in phi.residual:
        u = u + torch.log(2 * torch.cosh(layer.weight @ u + layer.bias)) / len(phi.residual)
    return phi.w @ u + (phi.A @ s).square().sum() / 2 + phi.b @ s + phi.c


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("dim", [1, 3, 5])
def test_the_derivatives_of_the_potential_are_those_of_autograd(dim, layers):
    phi = potential(dim, layers=layers, condition=2, scale=0.6)
    x, t, y = draw(4, dim), draw(4, seed=1), draw(4, 2, seed=2)
    at = phi.derivatives(x, t, y, hessian=True)
    s = torch.cat([x, t[:, None], y], 1)
    for i in range(4):
        value = plain_value(phi, s[i])
        first = functional.jacobian(lambda p: plain_value(phi, p), s[i])
        second = functional.hessian(lambda p: plain_value(phi, p), s[i])[:dim, :dim]
        assert abs(phi(x, t, y)[i] - value) < 1e-12
        assert (at.gradient[i] - first[:dim]).abs().max() < 1e-12
        assert abs(at.time[i] - first[dim]) < 1e-12
        assert (at.hessian[i] - second).abs().max() < 1e-12
        assert abs(at.laplacian[i] - second.trace()) < 1e-12
    alone = phi.derivatives(x, t, y)
    assert (alone.laplacian - at.laplacian).abs().max() < 1e-12
    assert phi.derivatives(x, t, y, laplacian=False).laplacian is None


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("layers", [2, 3])
def test_a_backward_pass_goes_through_all_derivatives(layers, order):
    phi, x = potential(2, layers=layers, width=3), draw(3, 2).requires_grad_()
    options = {"laplacian": order > 0, "hessian": order == 2}

    def loss():
        parts = [part for part in phi.derivatives(x, 0.3, **options) if part is not None]
        return sum((part * draw(*part.shape, seed=i)).sum() for i, part in enumerate(parts))

    assert_slopes(loss, [x, *phi.parameters()])


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_the_potential_is_finite_for_large_arguments(dtype):
    phi, x = potential().to(dtype), torch.full((1, 2), 1e4, dtype=dtype, requires_grad=True)
    at = phi.derivatives(x, 0.0)
    (phi(x, 0.0) + at.laplacian + at.gradient.sum()).sum().backward()
    assert torch.isfinite(phi(x, 0.0)).all() and torch.isfinite(x.grad).all()


def test_a_small_start_is_a_factor_of_the_potential_of_ot_flow():
    x, values = draw(5, 2, dtype=torch.float32), []
    for start in (1.0, 0.1):
        torch.manual_seed(0)
        values.append(generative.Potential(2, width=4, start=start)(x, 0.5))
    torch.testing.assert_close(values[1], 0.1 * values[0])


def plain_weights(x, c, h, lam, beta, kernel, alone=False):
    """Return the softmax of U over all pairs, from the kernels of wflow.sampling."""
    given = {"h": h, "beta": beta, "prior": sampling.L1(lam), "kernel": kernel}
    scores = torch.as_tensor(sampling.interaction(x.numpy(), c.numpy(), **given))
    return torch.softmax(scores.fill_diagonal_(-torch.inf) if alone else scores, 1)


@pytest.mark.parametrize("lam", [0.0, 0.7])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_moments_of_attention_are_those_of_the_softmax_over_all_pairs(kernel, alone, lam):
    x, h, beta = draw(9, 3), 0.2, 1.3
    c = x if alone else draw(7, 3, seed=1)
    weights = plain_weights(x, c, h, lam, beta, kernel, alone)
    mean = weights @ c
    spread = torch.einsum("nl,li,lj->nij", weights, c, c) - mean[:, :, None] * mean[:, None]
    options = {"h": h, "lam": lam, "beta": beta, "kernel": kernel, "exclude_self": alone}
    at = generative.attention(x, c, **options, moments="covariance")
    assert (at.mean - mean).abs().max() < 1e-12
    assert (at.covariance - spread).abs().max() < 1e-12
    diagonal = generative.attention(x, c, **options, moments="variance").covariance
    assert (diagonal - spread.diagonal(dim1=1, dim2=2)).abs().max() < 1e-12


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("prox", ["soft", "smooth"])
def test_attention_is_differentiated_by_tokens_lambda_and_beta(kernel, prox):
    options = {"h": 0.3, "kernel": kernel, "prox": prox, "moments": "covariance"}

    def outputs(x, c, lam, beta):
        return tuple(generative.attention(x, c, **options, lam=lam, beta=beta))

    given = draw(4, 2), draw(5, 2, seed=1), *torch.tensor([0.7, 1.3], dtype=DOUBLE)
    assert torch.autograd.gradcheck(outputs, tuple(x.clone().requires_grad_() for x in given))


def test_attention_in_parts_is_attention_at_once(monkeypatch):
    x = draw(30, 2).requires_grad_()

    def both():
        at = generative.attention(x, x, h=0.2, lam=0.5, moments="variance", exclude_self=True)
        (slope,) = torch.autograd.grad(at.mean.sin().sum() + at.covariance.sum(), x)
        return at.mean, at.covariance, at.log_sum, slope

    whole = both()
    monkeypatch.setattr(moments, "_PAIRS", 70)
    for part, one in zip(both(), whole, strict=True):
        assert (part - one).abs().max() < 1e-12


def test_the_log_normaliser_is_stable_and_that_of_the_prior():
    y = torch.linspace(-300, 300, 41, dtype=DOUBLE)[:, None].requires_grad_()
    value = generative.log_normaliser(y, h=0.1, lam=2.0, beta=1.5)
    expected = sampling.L1(2.0).log_normaliser(y.detach().numpy(), h=0.1, beta=1.5)
    assert np.allclose(value.detach().numpy(), expected, rtol=1e-10)
    (slope,) = torch.autograd.grad(value.sum(), y)
    # Far out, log Z(y) is -(beta / 2) (lambda |y| - lambda^2 h / 2) and a constant.
    assert abs(slope[0, 0] - 1.5) < 1e-10 and abs(slope[-1, 0] + 1.5) < 1e-10


def test_single_precision_agrees_with_double():
    x, options = draw(50, 2) + 3, {"h": 0.125, "lam": 1.0, "moments": "covariance"}
    double, single = (generative.attention(y, y, **options) for y in (x, x.float()))
    for one, other in zip(double, single, strict=True):
        assert one is None or (one - other).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("flow", "reach", "n"),
    [
        (generative.OTFlow(potential(scale=0.5), steps=8), 6.0, 101),
        (sparse(**SMOOTH, beta=0.5), 6.5, 161),
        (sparse(lam=0.5, beta=0.5, kernel="laplace", drift="rk4", prox="smooth"), 6.5, 161),
        (sparse(**SMOOTH, beta=0.5, itself=True), 4.5, 161),
        (sparse(**ATTRACTING), 4.0, 121),
    ],
    ids=["ot-flow", "exact", "laplace", "itself", "attracting"],
)
def test_densities_integrate_to_one(flow, reach, n):
    u = torch.linspace(-reach, reach, n, dtype=DOUBLE)  # x = sinh(u) reaches the tails
    points = torch.cartesian_prod(u.sinh(), u.sinh())
    weights = torch.cartesian_prod(u.cosh(), u.cosh()).prod(1) * (u[1] - u[0]) ** 2
    with torch.no_grad():
        parts = [flow.log_density(part) for part in points.split(20_000)]
    assert abs(float((torch.cat(parts).exp() * weights).sum()) - 1) < 1e-3


def test_ot_flow_integrates_by_runge_kutta_and_sums_its_penalties():
    phi = potential(3, condition=2, scale=0.4)
    flow = generative.OTFlow(phi, steps=3, t_final=0.6)
    x, y, h = draw(5, 3), draw(5, 2, seed=1), 0.2
    found = flow.to_base(x, y)
    log_det = transport = hjb = 0
    for k in (3, 2, 1):
        slope, total = torch.zeros_like(x), torch.zeros_like(x)
        for node, weight in ((0, 1 / 6), (0.5, 1 / 3), (0.5, 1 / 3), (1, 1 / 6)):
            at = phi.derivatives(x - node * h * slope, k * h - node * h, y)
            slope, energy = at.gradient, at.gradient.square().sum(1) / 2
            total = total + weight * slope
            log_det = log_det - h * weight * at.laplacian
            transport = transport + h * weight * energy
            hjb = hjb + h * weight * (at.time + energy).abs()
        x = x - h * total
    for one, other in zip(found[:4], (x, log_det, transport, hjb), strict=True):
        assert (one - other).abs().max() < 1e-12


@pytest.mark.parametrize(
    "options",
    [
        *({**SMOOTH, "kernel": kernel} for kernel in KERNELS),
        {**SMOOTH, "phi": potential(5)},  # no closed determinant
        {**SMOOTH, "phi": potential(5), "itself": True},
        {**SMOOTH, "beta": 0.2, "itself": True, "kernel": "laplace"},
        *(ATTRACTING | changes for changes in ({}, {"lam": 0.0, "beta": 8.0}, {"attended": (2,)})),
    ],
)
def test_the_log_determinant_is_that_of_the_map(options):
    flow = sparse(**options)
    x = draw(3, flow.dim)
    for point, value in zip(x, flow.to_base(x).log_det, strict=True):
        jacobian = functional.jacobian(lambda p: flow.to_base(p[None]).z[0], point)
        assert abs(torch.linalg.slogdet(jacobian)[1] - value) < 1e-12


def test_an_estimate_of_the_log_determinant_with_all_sign_vectors_is_exact():
    x, c = draw(5, 4).requires_grad_(), draw(30, 4, seed=1).requires_grad_()
    beta = torch.tensor(0.7, dtype=DOUBLE, requires_grad=True)
    scores = interaction(x, c, 0.3, 0.5, beta, "exact", "smooth")
    diagonal = 1 - proximal(x, 0.15, "smooth")[1] / 2
    pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=DOUBLE)
    found = log_det_estimate(scores, c, diagonal, scores.slope / 2, torch.kron(pair, pair), False)
    at = attend(scores, c, "covariance", False)
    expected = torch.logdet(torch.diag_embed(diagonal) + scores.slope / 2 * at.covariance)
    torch.testing.assert_close(found.mean, at.mean, rtol=1e-12, atol=1e-12)
    values = found.log_det, expected
    torch.testing.assert_close(*values, rtol=1e-12, atol=1e-12)
    slopes = (torch.autograd.grad(v.sum(), (x, c, beta), retain_graph=True) for v in values)
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("beta", [1e-6, 0.3, 20.0])
def test_estimated_log_determinants_state_their_error(beta):
    given = {"phi": potential(24), "lam": 0.5, "beta": beta, "steps": 2}
    exact, estimated = sparse(**given), sparse(**given, determinant="estimate", probes=50)
    x = draw(30, 24, seed=5)
    right, found = exact.to_base(x), estimated.to_base(x)
    torch.testing.assert_close(found.z, right.z, rtol=1e-12, atol=1e-12)
    assert not right.log_det_error.any()
    gap = found.log_det - right.log_det
    assert (gap.square().mean() <= 4 * found.log_det_error.square().mean() + 1e-20).all()
    torch.testing.assert_close(estimated.to_base(x[:3]).log_det, found.log_det[:3])


@pytest.mark.parametrize(
    "flow",
    [
        generative.OTFlow(potential(scale=0.5)),
        sparse(steps=8, lam=0.5, drift="euler"),
        sparse(steps=8, lam=2.0, kernel="laplace"),
        sparse(steps=8, lam=0.5, kernel="published"),
        sparse(steps=8, lam=0.0, attended=(7, 8)),
        sparse(steps=8, lam=2.0, itself=True),
        sparse(**ATTRACTING),
        sparse(**ATTRACTING | {"lam": 0.0, "beta": 8.0}),
    ],
    ids=["ot-flow", "exact", "laplace", "published", "late", "itself", "attracting", "no prior"],
)
def test_samples_are_the_inverse_of_the_way_to_the_base(flow):
    x, z = draw(10, 2), flow.draws(10, seed=1)
    tolerance = 1e-12 if getattr(flow, "convention", None) == "attracting" else 1e-10
    assert (flow.from_base(flow.to_base(x).z) - x).abs().max() < tolerance
    assert (flow.to_base(flow.from_base(z)).z - z).abs().max() < tolerance


def test_samples_lie_closer_to_the_context_than_those_of_the_other_convention():
    changes = {"convention": "inverse"}
    near, away = (sparse(**ATTRACTING | more | {"beta": 8.0}) for more in ({}, changes))
    gaps = [torch.cdist(flow.sample(200, seed=2), flow.context_x) for flow in (near, away)]
    assert gaps[0].amin(1).mean() < gaps[1].amin(1).mean()


def test_a_flow_without_layers_is_ot_flow():
    phi, x = potential(), draw(20, 2)
    bare = generative.SparseTransformerFlow(phi, steps=3, attended=(), context="batch").eval()
    plain = generative.OTFlow(phi, steps=3)
    for one, other in zip(bare.to_base(x), plain.to_base(x), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)
    z = bare.draws(5, seed=0)
    torch.testing.assert_close(bare.from_base(z, context=x), plain.from_base(z))


def test_a_point_does_not_see_the_others_unless_attention_couples_them():
    x = draw(6, 2)
    alone = [generative.OTFlow(potential()), sparse(lam=0.5), sparse(lam=0.5, context="masked")]
    for flow in alone:  # in evaluation the kept context serves
        whole = flow.to_base(x)
        for part, other in zip(whole[:4], flow.to_base(x[2:3])[:4], strict=True):
            assert (part[2:3] - other).abs().max() < 1e-12
    coupled = sparse(lam=0.5, context="masked").train()
    assert (coupled.to_base(x).z[:4] - coupled.to_base(x[:4]).z).abs().max() > 1e-6


@pytest.mark.filterwarnings("ignore:the published layers fold")
@pytest.mark.parametrize("context", ["masked", "batch"])
@pytest.mark.parametrize("convention", ["inverse", "published"])
def test_permuted_tokens_have_permuted_images(context, convention):
    flow = sparse(lam=0.5, context=context, convention=convention).train()
    x, order = draw(10, 2), torch.randperm(10, generator=torch.Generator().manual_seed(0))
    for one, other in zip(flow.to_base(x)[:4], flow.to_base(x[order])[:4], strict=True):
        assert (one[order] - other).abs().max() < 1e-12


def test_a_batch_gives_its_first_rows_as_an_independent_context():
    flow, x = sparse(lam=0.5, tokens=15).train(), draw(25, 2)
    found = flow(x)
    assert len(found.z) == 10
    assert torch.equal(found.z, flow.to_base(x[15:], context=x[:15]).z)
    with pytest.raises(InputError, match="context"):
        flow(x[:15])


@pytest.mark.filterwarnings("ignore:the published layers fold", "ignore:h is .* absorbs")
def test_the_published_convention_is_equations_22_to_24_as_printed():
    phi, h, lam, beta = potential(scale=0.4), 0.25, 0.5, 2.0
    options = {"convention": "published", "kernel": "published", "lam": lam, "beta": beta}
    flow = generative.SparseTransformerFlow(phi, steps=4, **options).double().eval()

    def shrink(x):
        return x.sign() * (x.abs() - lam * h).clamp(min=0)

    def change(p, tokens):
        """Return S(x) - M(x; X) at one point."""
        x, y = p[None], tokens[None]
        near, square = shrink(x)[:, None] - y, (x[:, None] - y).square().sum(2)
        prior = lam * shrink(tokens).abs().sum(1)
        u = -beta / 2 * ((square - near.square().sum(2)) / (2 * h) - prior)
        return (shrink(x) - torch.softmax(u, 1) @ tokens)[0]

    x, log_density = draw(12, 2), 0
    found = flow.to_base(x)
    for k in range(4, 0, -1):
        tokens = x
        jacobians = [functional.jacobian(lambda p, c=tokens: change(p, c), p) for p in tokens]
        log_density = log_density + torch.stack([j.trace() for j in jacobians]) / 2  # (24)
        x = torch.stack([p + change(p, tokens) / 2 for p in tokens])  # (23)
        at = phi.derivatives(x, (k - 0.5) * h)
        log_density, x = log_density - h * at.laplacian, x - h * at.gradient
    assert (found.z - x).abs().max() < 1e-12
    assert (found.log_det - log_density).abs().max() < 1e-12

    z = x = flow.draws(12, seed=1)
    for k in range(4):
        x = x + h * phi.derivatives(x, k * h).gradient
        x = torch.stack([p + change(p, x) / 2 for p in x])  # (22)
    assert (flow.from_base(z) - x).abs().max() < 1e-12


@pytest.mark.filterwarnings("ignore:h is .* absorbs")
def test_published_layers_that_fold_are_reported():
    options = {"steps": 8, "convention": "published", "lam": 2.0}
    there = sparse(**options, kernel="laplace", beta=20.0)
    back = sparse(**options, kernel="published", beta=4.0)
    x = torch.cat([draw(40, 2) - 3, draw(40, 2, seed=1) + 3])
    z = torch.cat([draw(40, 2) / 3 - 1, draw(40, 2, seed=1) / 3 + 1])
    for call, start in ((there.to_base, x), (back.from_base, z), (back.generate, z)):
        with pytest.warns(UserWarning, match=r"published layers fold.*%"):
            call(start)
    with pytest.warns(UserWarning, match="fold"):
        there.train()(x)
    with warnings.catch_warnings():  # in training once: the share is in the history
        warnings.simplefilter("error")
        assert 0 < float(there(x).folded) <= 1


def test_effective_sizes_are_those_of_the_weights():
    flow, x = sparse(lam=0.5, steps=2, attended=(2,)), draw(5, 2)
    without, sizes = flow.ess(x)
    weights = plain_weights(x, flow.context_x, 0.5, 0.5, 1.0, "exact")
    assert torch.allclose(sizes, 1 / weights.square().sum(1)) and without.isnan().all()


def test_effective_sizes_count_the_token_itself():
    flow, x = sparse(lam=0.5, steps=2, attended=(2,), beta=3.0, itself=True), draw(5, 2)
    lam, context = flow.lam, flow.context_x
    others = interaction(x, context, 0.5, lam, 3.0, "exact", "soft")
    excess = (others.bias + others.slope / 2 * context.square().sum(1)).mean()
    own = others.slope / 2 * x.square().sum(1) + excess
    scores = torch.cat([others.query @ context.T + others.bias, own[:, None]], 1)
    assert torch.allclose(flow.ess(x)[1], 1 / scores.softmax(1).square().sum(1))


@pytest.mark.parametrize("kernel", ["exact", "laplace"])
def test_tokens_that_attend_to_themselves_stay_near_with_the_published_number_of_steps(kernel):
    dim = 4
    phi = generative.Potential(dim, width=8, start=0.05)
    norms = []
    for itself in (True, False):
        flow = sparse(phi, steps=48, lam=2.0, kernel=kernel, itself=itself, tokens=32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without it most have no inverse
            norms.append(flow.sample(20, seed=1).norm(dim=1).quantile(0.9))
    assert norms[0] < 2 * dim**0.5 < 1e6 < norms[1]


def test_checkpointed_layers_give_the_same_gradients():
    slopes = []
    for checkpointing in (False, True):
        flow = sparse(lam=0.5, trainable=("lam", "beta"), checkpointing=checkpointing).train()
        flow.to_base(draw(8, 2)).log_det.sum().backward()
        slopes.append([p.grad for p in flow.parameters() if p.grad is not None])
    assert len(slopes[0]) > 8 and all(map(torch.equal, *slopes))


MAP = torch.tensor([[1.2, 0.5], [0.0, 0.6]], dtype=DOUBLE)
ENTROPY = 1 + math.log(2 * math.pi) + math.log(0.72)  # of MAP z + 1


class Gaussians:
    """Draws of MAP z + 1, a batch a step; calls `fault` at one of them."""

    def __init__(self, batch, fault=None, at=-1):
        self.batch, self._fault, self._at = batch, fault, at

    def __call__(self, step):
        if step == self._at:
            self._fault()
        return (draw(self.batch, 2, seed=step) @ MAP.T + 1,)


@pytest.mark.parametrize("layers", [False, True])
def test_a_flow_learns_a_gaussian(layers):
    torch.manual_seed(0)
    phi = generative.Potential(2, width=4)
    flow: generative.OTFlow | generative.SparseTransformerFlow
    if layers:
        given = {"steps": 2, "lam": 0.1, "attended": (2,), "tokens": 128}
        flow = generative.SparseTransformerFlow(phi, **given).double()
    else:
        flow = generative.OTFlow(phi, steps=2).double()
    rate = train.Cosine(0.2 if layers else 0.1, least=1e-3, warm_up=5, steps=110)
    settings = train.TrainConfig(steps=110, batch=256, schedule=rate, device="cpu")
    train.train(flow, generative.Likelihood((1.0, 1e-3, 1e-3)), Gaussians(256), settings)
    if layers:
        flow.eval().set_context(Gaussians(128)(20_000)[0])
    with torch.no_grad():
        nll = -flow.log_density(Gaussians(4000)(10_000)[0]).mean()
    assert abs(float(nll) - ENTROPY) < 0.05


@pytest.mark.filterwarnings("ignore:h Hess phi exceeds 1")
def test_a_resumed_training_has_the_bits_of_an_unbroken_one(tmp_path):
    def network():
        torch.manual_seed(0)
        options = {"steps": 2, "lam": 0.5, "tokens": 10, "trainable": ("lam", "beta")}
        phi = generative.Potential(2, width=6)
        return generative.SparseTransformerFlow(phi, determinant="estimate", **options).double()

    settings = {"steps": 6, "batch": 30, "checkpoint_every": 2}
    options = {"objective": generative.Likelihood(), "evaluate": None, "config": settings}
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, network(), Gaussians(30, crash, 4), **options)
    resumed = run(tmp_path, network(), Gaussians(30), resume=True, **options)
    assert_same(resumed, run(None, network(), Gaussians(30), **options))


def test_flows_are_saved_with_their_context(tmp_path):
    flow = sparse(lam=0.5, trainable=("beta",), attended=(1, 4))
    flow.save_pretrained(tmp_path / "flow")
    found = generative.SparseTransformerFlow.from_pretrained(tmp_path / "flow")
    assert nets.config(found) == nets.config(flow)
    assert torch.equal(found.sample(5, seed=1), flow.sample(5, seed=1))
