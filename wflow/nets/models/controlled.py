"""Residual network as a control problem: x' = sigma(K x + b), with an affine classifier.

The network of [GPTOC] section 4.3, after Benning, Celledoni, Ehrhardt, Owren, Schönlieb (2019), by
any explicit Runge-Kutta scheme.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from wflow._core.checks import check_choice, switch, whole
from wflow._core.errors import InputError
from wflow._core.tableaux import Tableau
from wflow.nets.blocks import Output, as_flow
from wflow.nets.checks import in_memory, tensor
from wflow.nets.dynamics import Dynamics
from wflow.nets.pretrained import Pretrained
from wflow.nets.registry import register

Activation = Literal["tanh", "relu", "sigmoid", "softplus"]
_ACTIVATIONS = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
}


@register
class ControlledResNet(Pretrained):
    r"""Residual network whose layers are the control of a dynamical system [1]_ [2]_.

    Parameters
    ----------
    dim : int
        Number of features of a sample.
    layers : int
        Number of steps N.
    t_final : float, default 1.0
        End time T; with T = N and ``euler`` it is the classic residual network.
    scheme : str, Tableau or mapping, default "euler"
        As for `wflow.nets.control.Dynamics`.
    classes : int, default 2
        Outputs of the classifier.
    width : int, optional
        Width of the states, at least `dim`: samples are filled up with zeros. None is `dim`.
    activation : {"tanh", "relu", "sigmoid", "softplus"}
        The function sigma.
    shared : bool, default False
        Whether all steps share K and b.
    learn_lengths, transport, penalty : bool or float
        As for `wflow.nets.control.Dynamics`.

    Raises
    ------
    InputError
        For sizes and weights out of range, and an unknown scheme or activation.

    Notes
    -----
    With Euler's scheme and :math:`h = T/N`

    .. math:: x_{l+1} = x_l + h\, \sigma(K_l x_l + b_l), \qquad \mathrm{output} = W_f x_N + b_f.

    In the theory: :ref:`the control problem <theory-control-problem>`.

    References
    ----------
    .. [1] Croizet et al., "GPT Project Part 1 Report" (2025), section 4.3, eqs. 13 to 17.
    .. [2] Benning, Celledoni, Ehrhardt, Owren and Schönlieb, "Deep learning as optimal control
       problems: models and numerical methods", J. Comput. Dyn. 6 (2019), eq. 1.

    Examples
    --------
    >>> import torch
    >>> from torch.nn import functional
    >>> from wflow import nets
    >>> net = nets.ControlledResNet(2, layers=5, scheme="heun")
    >>> x, labels = torch.randn(8, 2), torch.arange(8) % 2
    >>> found = nets.control.gradients(net, x, lambda out: functional.cross_entropy(out, labels))
    >>> found["body.layers.0.0.weight"].shape
    torch.Size([2, 2])
    """

    @in_memory
    def __init__(
        self,
        dim: int,
        *,
        layers: int,
        t_final: float = 1.0,
        scheme: str | Tableau | Mapping[str, Any] = "euler",
        classes: int = 2,
        width: int | None = None,
        activation: Activation = "tanh",
        shared: bool = False,
        learn_lengths: bool = False,
        transport: float = 0.0,
        penalty: float = 0.0,
    ) -> None:
        super().__init__()
        self.dim, layers = whole(dim, "dim"), whole(layers, "layers")
        classes = whole(classes, "classes")
        self.width = self.dim if width is None else whole(width, "width")
        if self.width < self.dim:
            raise InputError(f"width is {width}: expected at least dim = {dim}, or None")
        check_choice("activation", activation, _ACTIVATIONS)
        shared = switch(shared, "shared")
        parts = [
            nn.Sequential(nn.Linear(self.width, self.width), _ACTIVATIONS[activation]())
            for _ in range(1 if shared else layers)
        ]
        self.body: nn.Module = Dynamics(
            parts,
            t_final,
            layers,
            shared=shared,
            scheme=scheme,
            learn_lengths=learn_lengths,
            transport=transport,
            penalty=penalty,
        )
        self.head = nn.Linear(self.width, classes)

    def forward(self, x: Tensor) -> Output:
        """Classify samples.

        Parameters
        ----------
        x : Tensor, shape (samples, dim)
            Features.

        Returns
        -------
        Output
            Outputs (samples, classes) of the classifier, and the running cost.

        Raises
        ------
        InputError
            For other shapes or types.
        """
        if not torch.compiler.is_compiling():
            tensor(x, "x", "real", self.head.weight)
            if x.ndim != 2 or x.shape[1] != self.dim:
                raise InputError(f"x is of shape {tuple(x.shape)}: expected (samples, {self.dim})")
        state, cost = as_flow(self.body(functional.pad(x, (0, self.width - self.dim))))
        return Output(self.head(state), cost)
