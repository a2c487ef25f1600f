"""Exact sums for many coordinates, as products of blocks of matrices that fit in the cache:
`products` multiplies, `sums` computes velocities and terms, `weighted` the sums of each head over
weighted sources. Start with `sums`.
"""
