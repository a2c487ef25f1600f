"""Sums over all pairs of targets and sources, for every head: the inner loop of the whole package.

`pairs` goes through all pairs with Numba, `blocked` does so by matrix products for large d,
`harmonic` replaces the pairs by a series on the circle and the sphere, `torch` runs on a GPU.
`evaluate` chooses between them: it is what other packages call. The package imports `_core` and
`sphere`, and every package after it may import it. Start with `evaluate`, then `pairs/fused`.
"""
