"""Sums by series of harmonics on the circle and the sphere, linear in the number of
tokens: `series` chooses how many terms a head needs and forms moments and coefficients, `fast`
evaluates them for velocities and terms, `laplacian` for the energy's Laplacian, `weighted` for the
sums of each head over weighted sources. Start with `fast`.
"""
