"""Training of networks: `train` (configuration, objective, step, loop), `schedules` of the
rate, `loaders` of batches, `parallel` processes, the `history` of a training, its `identity`,
which decides what is resumed, and the files of networks and trainings (`checkpoint`). Start with
`train`.
"""
