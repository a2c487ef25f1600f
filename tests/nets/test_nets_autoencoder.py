"""Autoencoder: the affine map of its latent space, files, errors."""

import pytest
import torch
from torch.nn import functional

from wflow import InputError, nets
from wflow.nets import train
from wflow.nets.generative import Autoencoder


def coder(latent=3, **options):
    torch.manual_seed(0)
    return Autoencoder(latent, pixels=12, **options)


def pictures(n=200):
    return torch.rand(n, 3, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("hidden", [0, 7])
def test_standardising_moves_the_latent_vectors_and_no_reconstruction(whiten, hidden):
    net, images = coder(hidden=hidden).double(), pictures().double()
    before, raw = net(images), net.encode(images)
    net.standardise(images, whiten=whiten)
    z = net.encode(images)
    assert torch.allclose(net(images), before, rtol=1e-12)
    assert torch.allclose(z.mean(0), torch.zeros(3).double(), atol=1e-12)
    assert torch.allclose(z.std(0), torch.ones(3).double(), rtol=1e-9)
    correlated = (z.T.cov() - torch.eye(3)).abs().max()
    assert correlated < 1e-9 if whiten else correlated > 1e-3
    net.standardise(images, whiten=whiten)  # of what it is without: no change
    assert torch.allclose(net.encode(images), z, rtol=1e-9, atol=1e-12)
    root = net.root if whiten else raw.std(0).diag()
    assert torch.allclose(net.root, root)


def test_a_rectified_encoder_has_entries_that_are_zero():
    images = pictures()
    z = coder(rectified=True).encode(images)
    assert (z == 0).any() and (z >= 0).all()
    assert not (coder().encode(images) == 0).any()


def test_it_trains_and_comes_back_from_its_folder(tmp_path):
    net, images = coder(hidden=8), pictures(64).flatten(1)
    images = (images[:, :1] + images[:, 1:2] * torch.linspace(0, 1, 12)) / 2  # of a plane
    pairs = torch.utils.data.TensorDataset(images, images)
    config = train.TrainConfig(steps=60, batch=32, schedule=train.Constant(2e-2), device="cpu")
    history = train.train(net, train.objective(functional.mse_loss), pairs, config)
    assert history["data"][-1] < 0.5 * history["data"][0]
    net.standardise(pictures(), whiten=True)
    net.save_pretrained(tmp_path)
    again = Autoencoder.from_pretrained(tmp_path)
    assert torch.equal(again(images), net(images)) and nets.config(again) == nets.config(net)
    assert torch.equal(again.encode(images), net.encode(images))


def test_latent_vectors_without_a_spread_are_refused():
    net, images = coder(), pictures()
    with torch.no_grad():
        net.encoder[0].weight[1] = net.encoder[0].weight[0]
    net.standardise(images)
    with pytest.raises(InputError, match="2 of 3"):
        net.standardise(images, whiten=True)
