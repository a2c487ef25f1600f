"""Compiled functions: decorators, cache, SIMD vectors, and all that Numba does not document.

`functions` has the decorators: `kernel` for what Python calls, `loop_body` for the long body of a
parallel loop, `internal` for what only compiled functions call. `cache` keeps their code on disk.
`vectors` has SIMD vectors and their operations, `sweeps`, `adjoints` and `tiles` the loops that are
written in LLVM's terms, `tasks` the calls by address; `watch` notices compilation. No other package
imports llvmlite, or a name of Numba that its documentation does not describe; `undocumented` lists
those names and checks each of them when it is loaded. Start with `functions.py`.
"""
