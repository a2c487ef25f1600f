"""The unit sphere S^{d-1}, on which tokens live.

Projection, retraction and geodesics (`geometry`, `geodesics`), initial token clouds (`tokens`, with
`embeddings` for files), real harmonics on the circle and the sphere (`harmonics`; `polynomials` for
NumPy). It imports `_core`; everything that handles tokens may import it. Start with `geometry`.
"""

from wflow.sphere.geometry import as_tokens, exponential, normalise, project

__all__ = [
    "as_tokens",
    "exponential",
    "normalise",
    "project",
]


def __dir__() -> list[str]:
    return __all__
