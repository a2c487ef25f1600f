"""Attention of clouds of tokens: flows, and energy, mobilities, velocity of one cloud.

`pairs` has the sums over pairs of tokens that a flow is computed from; `flows` says how heads move
tokens, for the flows of wflow and custom ones, and evaluates velocities and energy terms of any of
them; `cloud` has the functions of one cloud that the root of the package exports. It imports
`_core`, `sphere`, `kernels` and `heads`; `particles` and the packages after it may import it. Start
with `flows`.
"""
