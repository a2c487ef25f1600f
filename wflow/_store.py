"""Where the values of a run go: the interface, and the store in memory."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._rundisk import Index
from wflow.schema import VARIABLES, RunLayout

if TYPE_CHECKING:
    import xarray


class Store(Protocol):
    """Where a solver puts the values of a run.

    `index` has one entry per leading dimension of the variable: an int, a slice of step one, or
    (at most one of them) a sequence of ints; dimensions left out are taken whole.
    """

    def write(self, name: str, index: tuple[Index, ...], values: ArrayLike) -> None:
        """Set the values of a variable at an index; `values` broadcasts."""

    def read(self, name: str, index: tuple[Index, ...] = ()) -> NDArray[Any]:
        """Values of a variable at an index; NaN where none was written."""


class MemoryStore:
    """A Store of arrays in memory, for runs without a file."""

    def __init__(self, layout: RunLayout) -> None:
        self.layout = layout
        self._arrays = {name: np.full(layout.shape(name), np.nan) for name in layout.names}

    def write(self, name: str, index: tuple[Index, ...], values: ArrayLike) -> None:
        """Set the values of a variable at an index; `values` broadcasts."""
        self._arrays[name][index] = values

    def read(self, name: str, index: tuple[Index, ...] = ()) -> NDArray[Any]:
        """Values of a variable at an index; NaN where none was written."""
        return np.array(self._arrays[name][index])

    def dataset(self, attrs: Mapping[str, Any], *, complete: bool = True) -> "xarray.Dataset":
        """Give the run as a Dataset, equal to that of `open_run` for the same values.

        Parameters
        ----------
        attrs : of `dataset_attrs`
        complete : whether the run reached its end

        Returns
        -------
        xarray.Dataset that shares the arrays of this store
        """
        import xarray

        layout = self.layout
        return xarray.Dataset(
            {
                name: (layout.dims(name), array, VARIABLES[name].attrs)
                for name, array in self._arrays.items()
            },
            coords={
                name: (VARIABLES[name].dims, values, VARIABLES[name].attrs)
                for name, values in layout.coordinates().items()
            },
            attrs={**attrs, "complete": int(complete)},
        )
