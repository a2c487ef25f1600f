"""Derivatives of runs: what a loss of the tokens depends on.

`adjoint` has `wflow.gradient`, the discrete adjoint of `wflow.solve`; `laws` the adjoints of the
head laws, `losses` the losses that come with their derivatives, `interop` runs as functions of
torch and JAX, `inference` heads from observed tokens, `control` heads that carry tokens to a
target, both by `search`. `tangent` moves tangent vectors along with a run, for the exponents of
`lyapunov` and the constants of `lipschitz`. It imports the packages from `_core` to
`transport`; `meanfield` and the packages after it may import it. Start with `adjoint`.
"""
