"""Training of networks: `train` (configuration, objective, step, loop), `schedules` of the
rate, `loaders` of batches, `parallel` processes, the `history` of a training, its `folder` and
`identity`, which decide what is resumed, and the files of networks (`checkpoint`). Start with
`train`.
"""
