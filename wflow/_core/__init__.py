"""Internals shared by all packages of wflow, not meant to be imported by users.

Errors, printable texts, checks of arguments, safe opening and atomic replacement of files, random
numbers, fingerprints of custom objects, threads, forks, signals, progress, free memory, Butcher
tableaux, adaptive steps and command-line values. `compiler` holds what compiled functions are made
of.
Every package may import it; it imports none. Start with `checks` and `errors`.
"""
