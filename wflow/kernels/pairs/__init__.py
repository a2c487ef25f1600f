"""Exact sums by Numba: `sweep` is the loop over tokens j, `headsums` what follows from its
sums for velocities and terms, `fused` the pass over all paths. `weighted`, `diffusion` and
`mobility` are the passes for the sums of each head over weighted sources, for the Laplacian of the
energy and for the gradient of the effective mobility. Start with `sweep`.
"""
