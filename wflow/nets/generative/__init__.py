"""Generative networks: flows along the gradient of a potential, with or without sparse attention.

It imports the package `nets` below it. Start with `potential`.
"""
