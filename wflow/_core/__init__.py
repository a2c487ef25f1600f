"""Internals shared by all packages of wflow, not meant to be imported by users.

Errors, printable texts, checks of arguments, safe opening and atomic replacement of files, random
numbers, fingerprints of custom objects, threads, forks, signals, progress, free memory, Butcher
tableaux, adaptive steps, command-line values, and the two tools of compiled code: SIMD vectors and
the cache on disk.
Every package may import it; it imports none. Start with `checks` and `errors`.
"""
