"""Runs with different steps on the same Brownian paths of the heads, to measure strong orders."""

import numpy as np

from wflow._core.rng import CounterNormals


class Brownian:
    """Increments W of Brownian paths and their integrals since the start of a step, the areas.

    Steps are multiples of the finest.
    """

    def __init__(self, steps, paths, heads, d, t_final):
        draw = CounterNormals(5).draw_paths
        shape = (steps, heads, d, d)
        self.dt = t_final / steps
        W, Z = (draw(shape, paths=range(paths), step=k) for k in (0, 1))
        self.W = np.sqrt(self.dt) * W
        self.area = self.dt * (self.W + np.sqrt(self.dt / 3) * Z) / 2

    def normals(self, dt, t):
        """The two independent normals (paths, heads, d, d) of a step from t; zero at the end."""
        count, first = round(dt / self.dt), round(t / self.dt)
        here = slice(first, first + count)
        W, areas = self.W[:, here], self.area[:, here]
        total = W.sum(1)
        area = areas.sum(1) + self.dt * (np.cumsum(W, 1) - W).sum(1)
        return total / np.sqrt(dt), (2 * area / dt - total) * np.sqrt(3 / dt)


def on(path, law_type):
    """Return a law of that type whose normals are those of a Brownian path, for whole batches."""

    class OnPath(law_type):
        def step(self, D, t, dt, normals):
            return super().step(D, t, dt, path.normals(dt, t)[0])

        def additive_step(self, D, t, dt, normals, mean_normals):
            return super().additive_step(D, t, dt, *path.normals(dt, t))

    return OnPath
