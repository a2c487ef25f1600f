"""The particle system: a finite number of tokens and heads, moved through time.

`options` has `SaveAt` and `Compute`, `problem` checks what is asked for, `schemes` makes one step,
`budget` keeps the running integrals of the energy budget, `integrate` moves batches of paths,
`solver` is `wflow.solve`. It imports the packages from `_core` to `attention`; `transport` and the
packages after it may import it. Start with `solver`, then `integrate`.
"""
