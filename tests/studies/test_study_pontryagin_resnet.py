"""The study of networks trained by the maximum principle: data, passes, gradients, verdicts."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")

from scripts import VERDICTS, script  # noqa: E402

from wflow import nets  # noqa: E402
from wflow.study.networks import Results  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

study = script("pontryagin_resnet")
SMOKE = study.PontryaginResnet.of("smoke", device="cpu")
MODELS = study.MODELS


@pytest.mark.parametrize("name", list(study.RED))
def test_points_lie_in_the_square_and_both_classes_have_about_half(name):
    x, y = study.points(name, 4000, 3, 0)
    assert x.shape == (4000, 2) and x.dtype == torch.float32 and x.abs().max() < 1.2
    assert 0.4 < y.double().mean() < 0.6
    again, other = study.points(name, 4000, 3, 0), study.points(name, 4000, 3, 1)
    assert torch.equal(again[0], x) and torch.equal(again[1], y) and not torch.equal(other[0], x)


def test_red_points_are_between_two_circles_in_a_cross_in_squares_on_an_arm():
    x, y = study.points("donut", 4000, 0)
    radius = x.norm(dim=1)
    assert radius[y == 1].min() > 0.4 and radius[y == 1].max() < 0.9
    assert ((radius < 0.4) & (y == 0)).sum() > 100 and ((radius > 0.9) & (y == 0)).sum() > 100
    x, y = study.points("cross", 4000, 0)
    assert (x.abs().min(1).values < 0.3)[y == 1].all() and (x.abs() > 0.29).all(1)[y == 0].all()
    x, y = study.points("squares", 4000, 0)
    assert torch.equal(y, (x[:, 0] * x[:, 1] > 0).long())
    x, y = study.points("linear", 4000, 0)
    assert torch.equal(y, (x[:, 0] + x[:, 1] / 2 > 0.1).long())
    x, y = study.points("spiral", 4000, 0)
    turned = torch.where(y[:, None] == 1, -x, x)  # both arms are one
    radius, angle = turned.norm(dim=1), torch.atan2(turned[:, 1], turned[:, 0])
    gap = (2.5 * torch.pi * radius - angle + torch.pi) % (2 * torch.pi) - torch.pi
    assert (gap.abs() * radius).median() < 0.3 and (gap.abs() < 1.2)[radius > 0.3].all()


def test_networks_have_equal_parameters_and_equal_weights_at_the_beginning():
    models = study.models(replace(SMOKE, datasets=("donut",)))
    assert len(models) == 13 and next(iter(models)) == "donut classic"
    found = [study.network(SMOKE, model, 4).state_dict() for model in models.values()]
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        assert all(torch.equal(found[0][key], other[key]) for key in other)


def test_classic_network_adds_what_its_layers_return():
    net = study.network(SMOKE, MODELS["donut classic"], 0)
    x, _ = study.points("donut", 7, 0)
    state = torch.cat([x, torch.zeros(7, 1)], dim=1)
    for layer in net.body.layers:
        state = state + torch.tanh(state @ layer[0].weight.T + layer[0].bias)
    assert torch.allclose(net(x).output, net.head(state), atol=1e-6)


@pytest.mark.parametrize("name", ["classic", "heun adam", "rk4 gradient", "heun emsa"])
def test_passes_are_the_evaluations_of_layers(name):
    model, calls = MODELS[f"donut {name}"], []
    run = study.plan(SMOKE, None, model, 0)
    for layer in run.model.body.layers:
        layer.register_forward_hook(lambda *_: calls.append(1))
    config = replace(run.config, steps=1)
    history = nets.train.train(run.model, run.objective, run.batches, config)
    forward, backward = study.passes(model, history)
    last = 0 if name == "classic" else 1  # the sweep has its last evaluation once
    assert len(calls) == pytest.approx(SMOKE.layers * forward[0] - last)
    assert backward.shape == (1,) and backward[0] >= study.STAGES[model.scheme]


def test_errors_of_gradients_are_found(monkeypatch):
    x, y = study.points("donut", 20, 0)
    net = study.network(SMOKE, MODELS["donut rk4 adam"], 0)
    assert study.mismatch([net], x, y) < 1e-14
    right = nets.control.gradients

    def wrong(*args):
        return {name: 1.25 * value for name, value in right(*args).items()}

    monkeypatch.setattr(nets.control, "gradients", wrong)
    assert study.mismatch([net], x, y) == pytest.approx(0.25)


def test_trajectories_end_at_their_distance_from_the_boundary():
    net = study.network(SMOKE, MODELS["donut heun adam"], 1)
    x, y = study.points("donut", 20, 0)
    found = study.pictured(net, x, y)
    states, region = np.array(found["states"]), np.array(found["region"])
    assert states.shape == (SMOKE.layers + 1, 20, 2) and region.shape == (study.SIDE, study.SIDE)
    logits = net(x).output.detach()
    size = float((net.head.weight[1] - net.head.weight[0]).detach().norm())
    want = (logits[:, 1] - logits[:, 0]).numpy() / size
    np.testing.assert_allclose(states[-1, :, 0], want, atol=2e-3)
    corner = net(torch.tensor([[-1.1, 1.1]])).output.softmax(1)[0, 1].item()
    assert region[0, -1] == pytest.approx(corner, abs=1e-3)


def history(loss, forward=None, backward=None):
    values = {"loss": ("step", loss), "seconds": ("step", np.ones(len(loss)))}
    if forward is not None:
        values |= {"forward": ("step", forward), "backward": ("step", backward)}
    return xr.Dataset(values)


def test_losses_are_compared_after_equal_work():
    plain = history(np.linspace(1.0, 0.1, 10))  # 3 passes an iteration
    own = history(np.array([1.0, 0.8]), np.array([4.0, 6.0]), np.array([5.0, 7.0]))  # 9, 13
    names = "donut euler emsa", "donut euler adam"
    results = Results(
        {names[0]: [{"loss": 0.5}], names[1]: [{"loss": 0.0}]}, {names[0]: [own], names[1]: [plain]}
    )
    one, other = study.at_equal_work(results, *names)
    assert one == pytest.approx([0.5]) and other == pytest.approx([0.3])  # 22 passes, 7 iterations
    assert study.after_iterations(results, names[0], 1) == pytest.approx([0.8])
    assert study.after_iterations(results, names[1], 50) == pytest.approx([0.0])
    rk4 = Results({"donut rk4 adam": [{"loss": 0.0}]}, {"donut rk4 adam": [plain]})
    (course,) = study.courses(rk4, "donut rk4 adam")
    assert course.passed[0] == 0 and course.passed[-1] == 120


def synthetic(better, seeds=3):
    """Return results that do what is claimed, or the opposite."""
    records, histories = {}, {}
    order = {"euler": 0, "heun": 1, "rk4": 2}
    for name, (data, scheme, method) in MODELS.items():
        if data not in ("donut", "linear"):
            continue
        place = order[scheme] if better else -order[scheme]
        fast = (method == "emsa") == better
        records[name], histories[name] = [], []
        for seed in range(seeds):
            # With equal work in each iteration, so that schemes are compared by their stages.
            rate = 0.4 * study.STAGES[scheme] ** 1.5 if better else 0.1
            steps = np.arange(30)
            loss = np.exp(-rate * steps * (1.5 if fast else 1) - 0.01 * seed)
            counts = np.full(30, 2.0), np.full(30, 1.0)
            histories[name].append(history(loss, *(counts if "msa" in method else ())))
            records[name].append({
                "loss": float(loss[-1] / 2), "accuracy": 0.8 + 0.05 * place + 0.001 * seed,
                "mismatch": 1e-16 if better else 1e-3,
                "rises": (0.1 - 0.03 * place) if method == "gradient"
                else float((method == "msa") == better), "failed": 0.0, "diverged": False,
            })  # fmt: skip
    if not better:
        for seed in range(seeds):
            records["donut classic"][seed]["accuracy"] = 0.5
    return Results(records, histories)


def findings(results):
    return study.findings(replace(SMOKE, maximisations=5), None, results)


def test_findings_are_decided_by_the_numbers():
    good = findings(synthetic(True))
    assert len(good) == 2 + 2 * 4 + 3 * 3 + 2 and {f.verdict for f in good} <= set(VERDICTS)
    assert [f.prediction for f in good if f.verdict != "confirmed"] == []
    bad = findings(synthetic(False))
    parted = [f for f in bad if "behave alike" in f.prediction]
    assert [f.verdict for f in parted] == ["confirmed in part"]
    assert {f.verdict for f in bad if f not in parted} == {"not confirmed"}
    one = findings(synthetic(True, seeds=1))
    better = [f for f in one if "better results" in f.prediction]
    assert {f.verdict for f in better} == {"inconclusive"}
    assert all("spread unknown" in f.found for f in better)


def test_study_writes_its_tables_and_resumes(resumed, monkeypatch):
    monkeypatch.setattr(study.networks, "memory", lambda call, device: 0.5)
    flags = ["--datasets", "donut", "--device", "cpu"]
    then = ("--only", "donut euler adam", "donut heun emsa")
    done = resumed("pontryagin_resnet", *flags, only="donut classic", then=then)
    for words in ("| classic ", "| heun emsa ", "44 parameters"):
        assert words in done.said
    assert done.drawn("donut_curves", "donut_regions", "donut_trajectories")
    table = done.table.sel(seed=0)
    assert table["loss"].sizes == {"model": 3}
    assert (table["mismatch"] < 1e-14).all() and (table["kilobytes"] == 500).all()
    classic, euler = (
        table["loss"].sel(model=f"donut {name}") for name in ("classic", "euler adam")
    )
    assert float(classic) == pytest.approx(float(euler), rel=1e-5)
    assert table["forward"].sel(model="donut classic") == 1
    assert table["forward"].sel(model="donut heun emsa") > 10
