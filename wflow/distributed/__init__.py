"""Runs whose paths are spread over processes and machines, by Dask.

`parts` computes some paths of a run into a file, and joins such files into the run; `dispatch` cuts
runs into parts and has workers compute them; `client` starts or finds the workers and has
`wflow.distributed.solve`; `sweep` computes runs over a grid of arguments, here or by workers. It
imports the packages from `_core` to `particles`, and `meanfield`; `nets` and the packages after it
may import it. Start with `client`.
"""

from wflow.distributed.client import solve

__all__ = [
    "solve",
]


def __dir__() -> list[str]:
    return __all__
