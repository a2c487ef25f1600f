"""Runs whose paths are spread over processes and machines, by Dask.

`job` is the part of a run that a worker computes, with its files, `plan` cuts a run into tasks,
`dispatch` sends them, `workers` starts or finds the workers and has `wflow.distributed.solve`. It
imports the packages from `_core` to `particles`; `nets` and the packages after it may import it.
Start with `workers`.
"""

from wflow.distributed.workers import solve

__all__ = [
    "solve",
]
