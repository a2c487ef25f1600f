r"""An autoencoder of images: the space of few coordinates in which a flow is trained.

    coder = generative.Autoencoder(16, hidden=256)
    nets.train.train(coder, nets.train.objective(functional.mse_loss), batches, config)
    coder.standardise(images, whiten=True)
    z = coder.encode(images)                     # (n, 16): mean 0 and covariance I
    pictures = coder.decode(flow.sample(100))    # (100, 784)

[RWPO] section 4.3 follows the code of OT-Flow, whose encoder ends in a ReLU: the law of its latent
vectors has atoms at zero and no density, and a likelihood is unbounded. Here that is an option.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from wflow._core.checks import switch, whole
from wflow._core.errors import InputError
from wflow.nets.blocks import evaluating
from wflow.nets.checks import in_memory, tensor
from wflow.nets.pretrained import Pretrained
from wflow.nets.registry import register

__all__ = ["Autoencoder"]

_ROWS = 10_000  # images at a time


@register
class Autoencoder(Pretrained):
    r"""Encoder B to latent vectors and decoder D back to pixels in [0, 1] [1]_.

    .. math::

        B(x) = R^{-1} (\tilde B(x) - m), \qquad D(z) = \tilde D(m + R z),

    where m and R are 0 and I until `standardise` takes them from the latent vectors of images.
    Without a hidden layer :math:`\tilde B` is a linear map and :math:`\tilde D` a linear map with a
    sigmoid; with one, each has a ReLU in between.

    Parameters
    ----------
    latent : int
        Number d of latent coordinates.
    pixels : int, default 784
        Number of pixels of an image.
    hidden : int, default 0
        Width of a hidden layer of encoder and decoder; 0 for none.
    rectified : bool, default False
        End the encoder in a ReLU, as the code of OT-Flow does. Latent vectors then have entries
        that are exactly zero, and their law has no density.

    Raises
    ------
    InputError
        For sizes out of range.

    References
    ----------
    .. [1] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior", 2025, section 4.3.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import generative
    >>> coder = generative.Autoencoder(2, pixels=9)
    >>> images = torch.rand(5, 3, 3)
    >>> coder.standardise(images)
    >>> z = coder.encode(images)
    >>> z.shape, coder.decode(z).shape
    (torch.Size([5, 2]), torch.Size([5, 9]))
    """

    mean: Tensor
    root: Tensor

    @in_memory
    def __init__(
        self, latent: int, *, pixels: int = 784, hidden: int = 0, rectified: bool = False
    ) -> None:
        super().__init__()
        self.latent = whole(latent, "latent")
        self.pixels = whole(pixels, "pixels")
        self.hidden = whole(hidden, "hidden", 0)
        self.rectified = switch(rectified, "rectified")
        between = [self.hidden] if self.hidden else []
        encoder = _dense([self.pixels, *between, self.latent])
        self.encoder = nn.Sequential(*encoder, *([nn.ReLU()] if self.rectified else []))
        self.decoder = nn.Sequential(*_dense([self.latent, *between, self.pixels]), nn.Sigmoid())
        self.register_buffer("mean", torch.zeros(self.latent))
        self.register_buffer("root", torch.eye(self.latent))

    def forward(self, images: Tensor) -> Tensor:
        """Reconstruct images.

        Parameters
        ----------
        images : Tensor, shape (n, pixels) or (n, ...) with as many pixels
            Pixels in [0, 1].

        Returns
        -------
        Tensor, shape (n, pixels)
            Pixels in (0, 1).

        Raises
        ------
        InputError
            For images of another size or type.
        """
        return self.decode(self.encode(images))

    def encode(self, images: Tensor) -> Tensor:
        """Encode images to latent vectors.

        Parameters
        ----------
        images : Tensor, shape (n, pixels) or (n, ...) with as many pixels
            Pixels in [0, 1].

        Returns
        -------
        Tensor, shape (n, latent)
            Latent vectors, standardised by `mean` and `root`.

        Raises
        ------
        InputError
            For images of another size or type.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> generative.Autoencoder(2, pixels=9).encode(torch.rand(5, 3, 3)).shape
        torch.Size([5, 2])
        """
        found: Tensor = torch.linalg.solve(self.root, self._raw(images) - self.mean, left=False)
        return found

    def decode(self, z: Tensor) -> Tensor:
        """Decode latent vectors to pictures.

        Parameters
        ----------
        z : Tensor, shape (n, latent)
            Standardised latent vectors.

        Returns
        -------
        Tensor, shape (n, pixels)
            Pixels in (0, 1).

        Raises
        ------
        InputError
            For vectors of another length or type.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> generative.Autoencoder(2, pixels=9).decode(torch.zeros(5, 2)).shape
        torch.Size([5, 9])
        """
        tensor(z, "z", "real", self.mean)
        if z.ndim != 2 or z.shape[1] != self.latent:
            raise InputError(f"z is of shape {tuple(z.shape)}: expected (n, {self.latent})")
        found: Tensor = self.decoder(self.mean + z @ self.root)
        return found

    def standardise(self, images: Tensor, *, whiten: bool = False) -> None:
        """Set `mean` and `root` so that the latent vectors of images have mean 0 and variance 1.

        Both are kept in files with the weights. What the network makes of an image stays the same.

        Parameters
        ----------
        images : Tensor, shape (n, pixels) or (n, ...) with as many pixels
            Pixels in [0, 1], n >= 2.
        whiten : bool, default False
            Remove correlations, too: `root` is the symmetric square root of the covariance in place
            of its diagonal, and needs more than `latent` images.

        Raises
        ------
        InputError
            For images of another size or type, too few of them, and a latent coordinate that is the
            same for all (with `whiten`, any combination of coordinates).

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> coder = generative.Autoencoder(2, pixels=9)
        >>> images = torch.rand(50, 9)
        >>> coder.standardise(images, whiten=True)
        >>> bool(torch.allclose(coder.encode(images).T.cov(), torch.eye(2), atol=1e-4))
        True
        """
        tensor(images, "images", "real", self.mean)
        whiten = switch(whiten, "whiten")
        if not images.ndim:
            raise InputError("images is a single number: expected pixels (n, ...)")
        with evaluating(self), torch.no_grad():
            raw = torch.cat([self._raw(part) for part in images.split(_ROWS)]).double()
        least = self.latent + 1 if whiten else 2
        if len(raw) < least:
            raise InputError(f"images are {len(raw)}: expected at least {least}, to take a spread")
        covariance = raw.T.cov().reshape(self.latent, self.latent)
        if not whiten:
            covariance = covariance.diagonal().diag()
        if not bool(covariance.isfinite().all()):
            raise InputError("the latent vectors of the images are not finite: train again")
        values, vectors = torch.linalg.eigh(covariance)
        if float(values[0]) <= 1e-10 * float(values[-1]):
            count = int((values <= 1e-10 * values[-1]).sum())
            raise InputError(
                f"the latent vectors of the images lie in {self.latent - count} of {self.latent} "
                "dimensions: train the autoencoder with fewer coordinates, another seed, or "
                "without rectified"
            )
        self.mean.copy_(raw.mean(0))
        self.root.copy_((vectors * values.sqrt()) @ vectors.T)

    def extra_repr(self) -> str:
        return f"latent={self.latent}, pixels={self.pixels}, hidden={self.hidden}"

    def _raw(self, images: Tensor) -> Tensor:
        """Return latent vectors before they are standardised."""
        tensor(images, "images", "real", self.mean)
        shape = tuple(images.shape)
        if images.ndim < 2 or not len(images) or images[:1].numel() != self.pixels:
            raise InputError(
                f"images are of shape {shape}: expected (n, {self.pixels}), or n images of "
                f"{self.pixels} pixels"
            )
        found: Tensor = self.encoder(images.flatten(1))
        return found


def _dense(sizes: list[int]) -> list[nn.Module]:
    """Return linear layers of these sizes, with a ReLU between two."""
    layers: list[nn.Module] = [nn.Linear(sizes[0], sizes[1])]
    for size, following in pairwise(sizes[1:]):
        layers += [nn.ReLU(), nn.Linear(size, following)]
    return layers
