"""The study of energy-stable layers, end to end and small."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from scripts import script  # noqa: E402

from wflow import nets  # noqa: E402

study, gpt = script("energy_stable_layers"), script("energy_stable_gpt")


def test_the_study_writes_its_tables_and_figures(run_study, no_data):
    done = run_study("energy_stable_layers", "--preset", "smoke", "--device", "cpu")
    table = done.table
    assert table.sizes == {"model": 4, "seed": 1, "level": 4, "layer": 9}
    assert (table["wrong_way"].sel(model=["ascent", "descent"]) == 0).all()
    assert done.drawn("collapse", "learning_curves") and done.findings == []


def test_the_study_of_a_gpt_writes_its_table_and_figure(run_study, no_data):
    done = run_study("energy_stable_gpt", "--preset", "smoke", "--device", "cpu")
    table = done.table
    assert table.sizes == {"model": 4, "seed": 1, "rate": 4, "layer": 9}
    movements = table.sel(model=["ascent", "descent"])
    assert (movements["wrong_way"] == 0).all() and (movements["wrong_way_moved"] > 0).any()
    assert done.drawn("collapse") and done.findings == []


def test_replaced_characters_are_those_of_the_input_alone():
    flags = gpt.EnergyStableGpt.of("smoke", device="cpu")
    text = gpt.load(flags)
    net, seen = torch.nn.Linear(1, 1), []

    def forward(tokens):
        seen.append(tokens)
        return SimpleNamespace(output=torch.zeros(*tokens.shape, text.vocabulary))

    net.forward = forward
    loss, right = gpt.answers(flags, net, text, torch.device("cpu"), rate=1.0)
    assert loss == pytest.approx(np.log(text.vocabulary), rel=1e-5)
    true = text.test[: flags.tests + 1]
    assert right == pytest.approx(float((true[1:] == 0).double().mean()))
    assert (torch.cat([x.flatten() for x in seen]) != true[:-1]).all()


@pytest.mark.parametrize("name", study.MODELS)
def test_hidden_states_by_layer_are_those_of_the_network(name):
    flags = study.EnergyStableLayers.of("smoke", device="cpu")
    images = study.load(flags)
    net, clean = study.network(flags, name, images, 0), study.normalised(images)
    with torch.no_grad():
        states = study.layers(net.body, net.embed(clean))
        end = nets.blocks.as_flow(net.body(states[0])).state
    assert len(states) == 1 + study.DEEPER * flags.depth
    assert torch.allclose(states[flags.depth], end, atol=1e-5)


def test_cosine_and_rank_of_orthogonal_and_equal_tokens():
    for x, cosine, rank in ((torch.eye(4)[None], 0.0, 4.0), (torch.ones(1, 4, 6), 1.0, 1.0)):
        assert study.mean_cosine(x) == pytest.approx(cosine, abs=1e-6)
        assert study.effective_rank(x) == pytest.approx(rank, rel=1e-3)
