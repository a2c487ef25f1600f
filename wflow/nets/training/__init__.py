"""Training of networks: `train` (configuration, objective, step, loop), `schedules` of the
rate, `parallel` processes, the `history` of a training, `checkpoint` files and `restore`. Start
with `train`.
"""
