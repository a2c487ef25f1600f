"""The study of GPTs trained by Pontryagin's principle: networks, measurements, findings, resume."""

import math
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")

from scripts import VERDICTS, script  # noqa: E402

from wflow import nets  # noqa: E402
from wflow.study.networks import Results  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread", "no_data")

study = script("pontryagin_gpt")
SMOKE = study.PontryaginGpt.of("smoke", device="cpu")


@pytest.fixture
def text():
    return study.load(SMOKE)


def logits(flags, model, text, tokens, **options):
    return study.network(flags, model, text.vocabulary, 0, **options).eval()(tokens).output


def test_one_step_of_the_velocity_is_size_s_and_deep_is_the_gpt_of_its_blocks(text):
    tokens = text.test[:30].view(2, 15)
    flags = replace(SMOKE, steps=1)
    plain = logits(flags, study.Model("S", "MSA"), text, tokens)
    for model, options in (
        (study.Model("continuous", "MSA"), {}),
        (study.Model("S", "MSA"), {"checkpointing": True}),
    ):
        torch.testing.assert_close(logits(flags, model, text, tokens, **options), plain)
    torch.manual_seed(0)
    gpt = nets.GPT(vocabulary=text.vocabulary, context=SMOKE.context, width=SMOKE.width,
                   depth=SMOKE.blocks, heads=SMOKE.heads).eval()  # fmt: skip
    deep = logits(SMOKE, study.Model("deep", "MSA"), text, tokens)
    torch.testing.assert_close(deep, gpt(tokens).output)


def test_plans_train_as_the_models_say(text):
    runs = {name: study.plan(SMOKE, text, model, 0) for name, model in study.MODELS.items()}
    for name, model in study.MODELS.items():
        run = runs[name]
        of_msa = model.method == "MSA"
        assert isinstance(run.config.optimizer, nets.control.MSA) == of_msa
        assert run.config.steps == (SMOKE.maximised if of_msa else SMOKE.iterations)
        rate = nets.config(run.model)["arguments"].get("dropout", 0.0)
        assert rate == (0.0 if model.fixed else SMOKE.dropout)
    fixed = runs["S MSA fixed"]
    inputs, targets = fixed.batches(0)
    assert fixed.batches(7)[0] is inputs and len(inputs) == fixed.config.batch == SMOKE.rows
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    with_cost = runs["continuous cost"]
    batch = tuple(tensor[:2] for tensor in with_cost.batches.tensors)
    with_cost.model.eval()
    loss = with_cost.objective(with_cost.model, *batch)
    data, cost = loss.parts["data"].item(), with_cost.model(batch[0]).cost.item()
    assert loss.total.item() == pytest.approx(data + SMOKE.lam * cost, rel=1e-6)
    assert cost > 0


def test_gradients_agree_and_a_wrong_one_shows(text, monkeypatch):
    net = study.network(SMOKE, study.MODELS["continuous cost"], text.vocabulary, 0)
    assert study.difference(SMOKE, text, net, 0) < 1e-12
    gradients = nets.control.gradients

    def wrong(*arguments, **options):
        found = gradients(*arguments, **options)
        return {name: 1.001 * g for name, g in found.items()}

    monkeypatch.setattr(nets.control, "gradients", wrong)
    assert study.difference(SMOKE, text, net, 0) == pytest.approx(1e-3, rel=1e-6)


def test_the_range_of_the_hamiltonian_falls_at_the_order_of_the_scheme(text):
    model = study.MODELS["continuous cost"]
    net = study.network(SMOKE, model, text.vocabulary, 0)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(5)  # states that move
    found = study.along(SMOKE, text, model, net)
    assert len(found.values) == SMOKE.steps + 1
    inputs, targets = study.probe(SMOKE, text)
    net.double().eval()
    state = net.embed(inputs).detach().requires_grad_()
    end = net.body(state)
    loss = nets.train.cross_entropy(net.head(end.state), targets) + SMOKE.lam * end.cost
    p = -torch.autograd.grad(loss, state)[0]
    f = net.body.velocity_of(state)
    first = (p * f).sum() - SMOKE.lam * f.square().mean() / 2
    assert found.values[0] == pytest.approx(first.item(), rel=1e-10)
    assert found.range == max(found.values) - min(found.values)
    assert 0.8 < study.order(SMOKE, text, model, net) < 1.3


def test_memory_counts_what_a_call_holds():
    device = torch.device("cpu")
    call = lambda: [torch.zeros(500, 500) for _ in range(4)]  # noqa: E731
    assert study.networks.memory(call, device) == pytest.approx(4.0, rel=0.01)


def test_steps_of_msa_are_counted():
    history = xr.Dataset(
        {
            "loss": ("step", [3.0, 2.0, 2.5, 1.0]),
            "loss_after": ("step", [2.5, 2.1, 2.5, 0.5]),
            "failed": ("step", [0.0, 0.0, 1.0, 0.0]),
            "trials": ("step", [1.0, 3.0, 21.0, 1.0]),
            "unconverged": ("step", [2.0, 1.0, 0.0, 1.0]),
            "test_loss": ("evaluation", [3.0, 3.5, 1.0]),
        }
    )
    assert study.steps_of(history) == {
        "failed": 1, "doubled": 0.5, "unconverged": 0.5, "rose": 1, "loss_rises": 1 / 3,
        "test_rises": 0.5,
    }  # fmt: skip


def curve(tests, seconds, every=10):
    places = every * np.arange(len(tests))
    return xr.Dataset(
        {"test_loss": ("evaluation", tests), "seconds": ("step", np.full(places[-1], seconds))},
        {"evaluation": places},
    )


def test_adam_is_asked_after_as_many_batches_and_after_as_much_time():
    histories = {
        "S MSA": [curve([4.0, 3.0, 2.0], 1.0)],
        "S costates": [curve([4.0, 3.5, 3.2, 2.5, 2.2, 2.1], 0.5)],
    }
    found = study.adam_beside(Results({}, histories), "S MSA")
    assert found["batches"].tolist() == [3.2]
    assert found["time"].tolist() == [2.2] and found["own"].tolist() == [2.0]  # after 20 s
    histories["S costates"] = [curve([4.0, 3.5, 3.2], 0.5)]
    found = study.adam_beside(Results({}, histories), "S MSA")
    assert found["time"].tolist() == [3.2] and found["own"].tolist() == [3.0]  # after 10 s
    assert study.beside("continuous MSA cost") == "continuous cost"


def test_study_writes_its_tables_and_resumes(resumed):
    then = ("--only", "continuous MSA", "S MSA fixed")
    done = resumed("pontryagin_gpt", "--device", "cpu", only="continuous costates", then=then)
    assert "sonnets" in done.said and "Extended MSA" in done.said
    assert done.drawn("losses", "hamiltonian", "steps")
    table = done.table.sel(seed=0)
    assert np.isfinite(table["test"]).all() and (table["gradients"] < 1e-12).all()
    assert np.isfinite(table["hamiltonian"].sel(model="continuous MSA")).all()
    of_costates = table.sel(model="continuous costates")
    assert of_costates["memory_costates"] < of_costates["memory_back_propagation"]
    assert of_costates["apart"] < 1e-12
    assert table["rose"].sel(model="S MSA fixed") == 0
    assert np.isnan(table["order"].sel(model="S MSA fixed"))


GOOD = {
    "test": 2.0, "gradients": 1e-15, "apart": 1e-14, "nudged": 1e-14, "memory_costates": 1.0,
    "memory_back_propagation": 2.0, "memory_checkpoint": 1.5, "rose": 0.0, "failed": 0.0,
    "test_rises": 0.0, "straightness": 1.2, "speed": 0.3, "variation": 0.5, "order": 1.0,
    "variation_before": 1.0, "iterations": 20,
}  # fmt: skip
BAD = {
    "test": 4.0, "gradients": 1e-3, "apart": 1e-3, "memory_costates": 3.0, "rose": 1.0,
    "failed": 1.0, "test_rises": 0.5, "straightness": 1.0, "speed": 0.1, "variation": 0.1,
    "order": 2.0,
}  # fmt: skip


def records(of=lambda name: {}, own=2.0):
    """Return records of three seeds that show what is claimed, apart from the changes of a model.

    `own` is the last test loss of MSA, beside 3 of Adam.
    """
    found = {}
    for name, model in study.MODELS.items():
        good = GOOD | ({"straightness": 1.1, "speed": 0.2, "variation": 0.3} if model.cost else {})
        shift = {"test": 0.01, "straightness": 0.001, "speed": 0.001, "variation": 0.001}
        found[name] = [
            {key: value + seed * shift.get(key, 0) for key, value in (good | of(name)).items()}
            for seed in range(3)
        ]
    histories = {
        name: [
            curve([5.0, 3.5, last + 0.1 * seed * (model.method != "MSA")], 0.1) for seed in range(3)
        ]
        for name, model in study.MODELS.items()
        if (last := own if model.method == "MSA" else 3.0)
    }
    return Results(found, histories)


def test_findings_are_decided_by_the_numbers():
    good = study.findings(None, None, records())
    assert len(good) == 14 and all(f.verdict == "confirmed" for f in good)
    before = {"variation_before": 0.01}
    worse = records(lambda name: BAD | ({} if study.MODELS[name].cost else before), own=4.0)
    every = study.findings(None, None, worse)
    assert not any(f.verdict == "confirmed" for f in every if f.prediction != good[11].prediction)
    assert {f.verdict for f in every} <= set(VERDICTS)
    near = study.findings(None, None, records(lambda name: {"test": 3.05} if "MSA" in name else {}))
    texts = [f for f in near if "as many batches" in f.prediction]
    assert [f.verdict for f in texts] == ["inconclusive"]
    assert math.isfinite(float(texts[0].found.split()[2]))
