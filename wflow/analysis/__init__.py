"""Analysis of clouds, head laws and runs.

`clusters` (with omega-limits; `linkage` has its single linkage), `equilibria`, `stationary` laws,
`stability` of pairs of runs, `fits` of power laws, and `verify` for run files. Each name but
`linkage` is an attribute of `wflow`. The package imports those from `_core` to `transport`;
`distributed` and the packages after it may import it. Start with the module of the question.
"""
