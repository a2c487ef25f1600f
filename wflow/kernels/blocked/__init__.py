"""Exact sums for many coordinates, as products of blocks of matrices that fit in the
cache: `products` has the products, `sums` the pass for velocities and terms, `weighted` that for
the sums of each head over weighted sources. Start with `sums`.
"""
