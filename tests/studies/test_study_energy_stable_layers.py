"""The study of energy-stable layers, end to end and small."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from scripts import script  # noqa: E402

from wflow import nets  # noqa: E402

study = script("energy_stable_layers")


def test_the_study_writes_its_tables_and_figures(run_study, no_data):
    done = run_study("energy_stable_layers", "--preset", "smoke", "--device", "cpu")
    table = done.table
    assert table.sizes == {"model": 4, "seed": 1, "level": 4, "layer": 9}
    assert (table["wrong_way"].sel(model=["ascent", "descent"]) == 0).all()
    assert done.drawn("collapse", "learning_curves") and done.findings == []


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
