r"""
An animated sphere
==================

The clustering of tokens in ascent, as a film: `wflow.plots.animate` turns the snapshots of a run
into an animation of the circle or the sphere.
"""

import numpy as np

import wflow

x0 = wflow.tokens.uniform(n=300, d=3, seed=1)
D = 6.0 * np.eye(3)[None]  # one head, beta = 6: metastable clusters
times = np.round(np.concatenate([np.linspace(0, 2, 31), np.geomspace(2.1, 15, 20)]), 2)
save = wflow.SaveAt(every=10, snapshots=times, budget=False)
run = wflow.solve(
    x0, wflow.heads.Frozen(), heads=D, t_final=15.0, dt=0.01, direction="ascent", scheme="heun",
    save=save,
)  # fmt: skip

# %%
# Every snapshot is a frame. ``animate(run, "sphere.gif")`` also writes a GIF, and "sphere.mp4" an
# MP4 where ffmpeg is installed.

animation = wflow.plots.animate(run, fps=10)
animation

# %%
# How many groups there are at the beginning and at the end:

over = wflow.clusters.over_time(run, 0.1, quantities=["count"]).isel(snapshot_path=0)
print(f"{int(over['count'][0])} clusters at t = 0, {int(over['count'][-1])} at t = 15")
