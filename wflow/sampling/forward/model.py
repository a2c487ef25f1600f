"""The contract of a forward model: outputs of parameters, and the adjoint of their derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import reals, shown, whole
from wflow._core.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FloatArray = NDArray[np.float64]
Pullback = Callable[[FloatArray], FloatArray]
TensorPullback = Callable[["Tensor"], "Tensor"]


class ForwardModel:
    r"""Map F from parameters to what is observed without noise; a custom one overrides `evaluate`.

    A model that overrides `evaluate_torch`, too, is evaluated on the device of a flow in torch.

    Attributes
    ----------
    dim : int
        Number d of parameters.
    outputs : int
        Number m of outputs.

    Notes
    -----
    An inverse problem observes :math:`y = F(x) + \varepsilon` [1]_. The gradient of its log
    likelihood is :math:`DF(x)^T (y - F(x)) / \sigma^2`, which `linearise` gives at the cost of one
    adjoint solve.

    References
    ----------
    .. [1] Stuart, "Inverse problems: a Bayesian perspective", Acta Numerica 19 (2010).

    Examples
    --------
    >>> import numpy as np
    >>> from wflow.sampling import forward
    >>> class Square(forward.ForwardModel):
    ...     dim = outputs = 2
    ...     def evaluate(self, x):
    ...         return x**2, lambda w: 2 * x * w
    >>> Square().vjp([[3.0, 1.0]], [[1.0, 0.0]])
    array([[6., 0.]])
    """

    dim: int
    outputs: int

    def evaluate(self, x: FloatArray) -> tuple[FloatArray, Pullback]:
        """Compute F(x) and prepare DF(x)^T: what a custom model defines and `linearise` checks.

        Parameters
        ----------
        x : ndarray, shape (n, dim)
            Parameters, finite.

        Returns
        -------
        values : ndarray, shape (n, outputs)
            Outputs.
        pullback : callable
            Map from weights (n, outputs) to DF(x)^T w (n, dim).
        """
        raise NotImplementedError(f"{type(self).__name__} does not override evaluate")

    def evaluate_torch(self, x: Tensor) -> tuple[Tensor, TensorPullback]:
        """Return what `evaluate` returns, as tensors on the device of the parameters.

        A model that does not override it is evaluated by NumPy on the CPU. Gradients are not
        recorded where `nets.generative.ReverseKL` calls it and the pullback: one that takes
        derivatives by autograd does so within `torch.enable_grad`.

        Parameters
        ----------
        x : Tensor, shape (n, dim)
            Parameters, finite, which do not require gradients.

        Returns
        -------
        values : Tensor, shape (n, outputs)
            Outputs.
        pullback : callable
            Map from weights (n, outputs) to DF(x)^T w (n, dim).

        Raises
        ------
        InputError
            For an `evaluate` that breaks its contract.
        """
        values, pull = self._evaluated(x.cpu().double().numpy())

        def pullback(w: Tensor) -> Tensor:
            with np.errstate(all="ignore"):
                return x.new_tensor(pull(w.cpu().double().numpy()))

        return x.new_tensor(values), pullback

    def _on_device(self, name: str, like: Tensor) -> Tensor:
        """Return an array of the model on the device of a tensor, and in its precision.

        It is copied there once: a copy from the CPU makes the device wait.
        """
        import torch

        array, known = getattr(self, name), _COPIES.setdefault(self, {})
        key = name, like.device, like.dtype
        if key not in known or known[key][0] is not array:
            copy = torch.as_tensor(array, device=like.device)
            known[key] = array, copy.to(like) if copy.is_floating_point() else copy
        return known[key][1]

    def __call__(self, x: ArrayLike) -> FloatArray:
        """Return the outputs of parameters.

        Parameters
        ----------
        x : array_like, shape (n, dim)
            Parameters.

        Returns
        -------
        ndarray, shape (n, outputs)
            Outputs.

        Raises
        ------
        InputError
            For parameters of another shape or not finite, and where outputs are not finite.
        """
        return self.linearise(x)[0]

    def linearise(self, x: ArrayLike) -> tuple[FloatArray, Pullback]:
        """Return the outputs, and a function for the adjoint of the derivative there.

        Parameters
        ----------
        x : array_like, shape (n, dim)
            Parameters.

        Returns
        -------
        values : ndarray, shape (n, outputs)
            Outputs F(x).
        pullback : callable
            Map from weights w (n, outputs) to DF(x)^T w (n, dim).

        Raises
        ------
        InputError
            For parameters of another shape or not finite, and where outputs are not finite; the
            function: for weights of another shape, and where the gradient is not finite.
        """
        self._sizes()
        given = self._array(x, "x", self.dim)
        found, pull = self._evaluated(given)
        values = self._finite(found, "outputs", self.outputs, given)

        def pullback(w: ArrayLike) -> FloatArray:
            weights = self._array(w, "w", self.outputs)
            if len(weights) != len(given):
                raise InputError(f"w has {len(weights)} rows: expected {len(given)}, as many as x")
            with np.errstate(all="ignore"):
                slope = np.asarray(pull(weights), dtype=np.float64)
            return self._finite(slope, "gradients", self.dim, given)

        return values, pullback

    def vjp(self, x: ArrayLike, w: ArrayLike) -> FloatArray:
        """Return DF(x)^T w, the gradient of <w, F(x)>.

        Parameters
        ----------
        x : array_like, shape (n, dim)
            Parameters.
        w : array_like, shape (n, outputs)
            Weights of the outputs.

        Returns
        -------
        ndarray, shape (n, dim)
            Gradients, exact for the discrete model.

        Raises
        ------
        InputError
            For arrays of other shapes or not finite, and where a result is not finite.
        """
        return self.linearise(x)[1](w)  # type: ignore[arg-type]

    def _evaluated(self, x: FloatArray) -> tuple[FloatArray, Pullback]:
        """What `evaluate` returns, its form checked; its values may be no finite numbers."""
        name = type(self).__name__
        with np.errstate(all="ignore"):
            found = self.evaluate(x)
            if not isinstance(found, tuple) or len(found) != 2 or not callable(found[1]):
                raise InputError(
                    f"{name}: evaluate returns {shown(found)}: expected a pair, outputs "
                    f"({len(x)}, {self.outputs}) and the adjoint of the derivative as a function"
                )
            values = np.asarray(found[0], dtype=np.float64)
        self._shaped(values, "outputs", self.outputs, x)
        return values, found[1]

    def _sizes(self) -> tuple[int, int]:
        """The numbers of parameters and outputs, which a custom model may lack."""
        for name in ("dim", "outputs"):
            if not hasattr(self, name):
                raise InputError(
                    f"{type(self).__name__} has no {name}: a forward model defines the numbers "
                    "dim and outputs"
                )
        return whole(self.dim, "dim"), whole(self.outputs, "outputs")

    def _array(self, value: ArrayLike, name: str, columns: int) -> FloatArray:
        array = reals(value, name)
        if array.ndim != 2 or array.shape[1] != columns:
            raise InputError(f"{name} has shape {array.shape}: expected (n, {columns})")
        return array

    def _shaped(self, found: FloatArray, what: str, columns: int, x: FloatArray) -> None:
        if found.shape != (len(x), columns):
            raise InputError(
                f"{type(self).__name__}: {what} have shape {found.shape}: expected "
                f"({len(x)}, {columns})"
            )

    def _finite(self, found: FloatArray, what: str, columns: int, x: FloatArray) -> FloatArray:
        name = type(self).__name__
        self._shaped(found, what, columns, x)
        bad = ~np.isfinite(found).all(axis=1)
        if bad.any():
            first = int(np.argmax(bad))
            raise InputError(
                f"{name}: {what} are not finite for {int(bad.sum())} of {len(x)} parameters, the "
                f"first is row {first} with |x| up to {np.abs(x[first]).max():.3g}: keep "
                "parameters near the prior, or refine the scheme"
            )
        return found


# Of each model: name, device and precision -> the array, and its copy there.
_COPIES: WeakKeyDictionary[
    ForwardModel, dict[tuple[str, torch.device, torch.dtype], tuple[NDArray[Any], Tensor]]
] = WeakKeyDictionary()
