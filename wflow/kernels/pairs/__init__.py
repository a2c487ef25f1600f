"""Exact sums by Numba: `sweep` is the loop over tokens j, `headsums` sums over heads and computes
velocities and terms, `fused` is the pass over all paths. `weighted` and `diffusion` are the passes
for the sums of each head over weighted sources and for the Laplacian of the energy. `plain` is the
reference: the sums as one loop, which the tests compare with the others. Start with it.
"""
