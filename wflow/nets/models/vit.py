"""Vision transformer: an image as a sequence of patches, classified by a class token.

Dosovitskiy et al., "An image is worth 16x16 words" (ICLR 2021). The defaults are the MNIST
experiment of [OTT] (arXiv 2505.13499, Appendix I): one block, one head, no feed-forward layer,
patches of 7 x 7.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from wflow._core.checks import number, whole
from wflow._core.errors import InputError
from wflow.nets.blocks import Block, Stack, layer_norm, rate
from wflow.nets.checks import check_dense, in_memory, tensor
from wflow.nets.continuous import Output, as_flow
from wflow.nets.pretrained import Pretrained
from wflow.nets.registry import register


@register
class ViT(Pretrained):
    """Vision transformer: logits = W norm(x_0(T)) + b, where x_0 is the class token.

    `embed` makes hidden states (batch, 1 + patches, width) of images, `body` moves them, `head`
    reads the class token. The body may be replaced by what keeps their shape.

    Parameters
    ----------
    image : tuple of int, default (1, 28, 28)
        Channels, rows and columns of the images.
    patch : int, default 7
        Rows and columns of a patch.
    classes : int, default 10
        Number of classes.
    width : int, default 128
        Width d of the hidden states.
    depth : int, default 1
        Number of blocks.
    heads, head_width : int
        Number of heads and their width k; None is width / heads.
    hidden : int, optional
        Inner width of the feed-forward layers; None leaves them out.
    qkv_bias : bool, default False
        Whether queries, keys and values have biases.
    project : bool, optional
        Whether attention has an output matrix; None has one unless a single head has the width of
        the hidden states, where it could be multiplied into the values.
    skip : bool, default True
        False leaves the skip connection of the feed-forward layers out, for N-ODE blocks.
    position_std : float, default 1.0
        Standard deviation of positions and class token at the start. 1 is that of the published
        MNIST experiment; Dosovitskiy et al. have 0.02.
    dropout : float, default 0.0
        Rate of dropout in embedding and blocks.

    Raises
    ------
    InputError
        For patches that do not fill the image, a width that the heads cannot share, and sizes out
        of range.

    Notes
    -----
    With the defaults it has 59,658 parameters, and 17,546 with width 64.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.ViT(width=64)
    >>> net.body = nets.ContinuousTransformer(net.body, t_final=1.0, steps=20)
    >>> logits, cost = net(torch.zeros(2, 1, 28, 28))
    >>> logits.shape, sum(p.numel() for p in net.parameters())
    (torch.Size([2, 10]), 17546)
    """

    @in_memory
    def __init__(
        self,
        *,
        image: tuple[int, int, int] = (1, 28, 28),
        patch: int = 7,
        classes: int = 10,
        width: int = 128,
        depth: int = 1,
        heads: int = 1,
        head_width: int | None = None,
        hidden: int | None = None,
        qkv_bias: bool = False,
        project: bool | None = None,
        skip: bool = True,
        position_std: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if project is None:
            project = whole(heads, "heads") > 1 or head_width not in (None, width)
        self.embed = PatchEmbedding(image, patch, width, position_std=position_std, dropout=dropout)
        self.body: nn.Module = Stack(
            Block(
                width,
                heads,
                hidden=hidden,
                head_width=head_width,
                qkv_bias=qkv_bias,
                project=project,
                skip=skip,
                dropout=dropout,
            )
            for _ in range(whole(depth, "depth"))
        )
        self.head = ClassTokenHead(width, classes)

    def forward(self, images: Tensor) -> Output:
        """Classify images.

        Parameters
        ----------
        images : Tensor, shape (batch, channels, rows, columns)
            Floating point.

        Returns
        -------
        Output
            Logits (batch, classes), and the transport cost.

        Raises
        ------
        InputError
            For images of another shape or of integers.
        """
        state, cost = as_flow(self.body(self.embed(images)))
        return Output(self.head(state), cost)


class PatchEmbedding(nn.Module):
    """Class token, then a linear map of each patch, plus learned positions (Dosovitskiy eq. 1).

    Parameters
    ----------
    image, patch, width, position_std, dropout : tuple of int or int or float
        As for `ViT`.
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        patch: int,
        width: int,
        *,
        position_std: float = 0.02,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not isinstance(image, tuple | list) or len(image) != 3:
            raise InputError(f"image is {image!r}: expected (channels, rows, columns)")
        names = ("channels", "rows", "columns")
        channels, rows, columns = (whole(n, name) for n, name in zip(image, names, strict=True))
        self.image, self.patch = (channels, rows, columns), whole(patch, "patch")
        patch = self.patch
        if rows % patch or columns % patch:
            raise InputError(
                f"patches of {patch} x {patch} do not fill images of {rows} x {columns}: expected "
                "rows and columns that are multiples of the patch"
            )
        patches, width = (rows // patch) * (columns // patch), whole(width, "width")
        std = number(position_std, "position_std", 0)
        self.linear = nn.Linear(channels * patch * patch, width)
        self.class_token = nn.Parameter(std * torch.randn(width))
        self.positions = nn.Parameter(std * torch.randn(1 + patches, width))
        self.dropout = rate(dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (batch, channels, rows, columns) to (batch, 1 + patches, width)."""
        if not torch.compiler.is_compiling():
            self._check(images)
        batch, (channels, rows, columns), size = images.shape[0], self.image, self.patch
        grid = images.reshape(batch, channels, rows // size, size, columns // size, size)
        patches = grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (batch, patches, c p p)
        first = self.class_token.expand(batch, 1, -1)
        x = torch.cat([first, self.linear(patches)], dim=1)  # (batch, 1 + patches, width)
        return functional.dropout(x + self.positions, self.dropout, self.training)

    def extra_repr(self) -> str:
        return f"image={self.image}, patch={self.patch}, dropout={self.dropout}"

    def _check(self, images: Tensor) -> None:
        check_dense(images, "images", "real")
        if images.ndim != 4 or images.shape[1:] != self.image:
            raise InputError(
                f"images are of shape {tuple(images.shape)}: expected (batch, "
                f"{', '.join(map(str, self.image))})"
            )
        if not images.is_floating_point():
            raise InputError(
                f"images are {images.dtype}: expected floating point; scale them to [0, 1] and "
                "normalise them first"
            )
        tensor(images, "images", "real", self.linear.weight)


class ClassTokenHead(nn.Module):
    """Layer norm and linear map of the class token: (batch, 1 + patches, width) to logits."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = layer_norm(width)
        self.linear = nn.Linear(width, whole(classes, "classes"))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (batch, tokens, width) to logits (batch, classes)."""
        return self.linear(self.norm(hidden[:, 0]))
