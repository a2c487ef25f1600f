r"""
Clusters and metastability
==========================

In the direction `ascent` tokens attract each other. For :math:`D = \beta I` they gather in one
cluster in the end, but for large β groups form first that live for times that grow exponentially
with β: metastable clusters ([GLPR] sections 5 and 7; here on the circle). The time scales differ by
orders of magnitude, so that the adaptive scheme `dopri5` is the right one: its steps become as long
as the flow allows.
"""

import matplotlib.pyplot as plt
import numpy as np

import wflow

x0 = wflow.tokens.uniform(n=48, d=2, seed=6)
betas = [1.0, 4.0, 9.0]
times = np.concatenate([[0], np.geomspace(0.1, 1e3, 101)])


def solve(beta):
    save = wflow.SaveAt(every=10**6, snapshots=times, budget=False)
    return wflow.solve(
        x0, wflow.heads.Frozen(), heads=beta * np.eye(2)[None], t_final=1e3, dt=0.1,
        direction="ascent", scheme=wflow.Dopri5(rtol=1e-7, atol=1e-9), save=save,
    )  # fmt: skip


runs = {beta: solve(beta) for beta in betas}

# %%
# Clusters are the components of the tokens linked at a distance of at most 0.1 radians. A plateau
# is a number of clusters (2 to 9 here) that lasts for a while on the logarithmic scale of time.

fig, (ax, order) = plt.subplots(1, 2, figsize=(8, 3.2))
last = {}
for beta, colour in zip(betas, ["C0", "C1", "C3"], strict=True):
    over = wflow.clusters.over_time(runs[beta], 0.1, quantities=["count", "order_parameter"])
    over = over.isel(snapshot_path=0).sel(snapshot=slice(0.05, None))
    ax.step(over.snapshot, over["count"], where="post", color=colour, label=rf"$\beta = {beta:g}$")
    order.semilogx(over.snapshot, over.order_parameter, color=colour)
    plateaus = wflow.clusters.plateaus(over.snapshot, over["count"], below=10)
    lasting = [f"{p.count} clusters from t = {p.start:.1f} to {p.end:.0f}" for p in plateaus]
    print(f"beta = {beta:g}:", ", ".join(lasting) or "no plateau")
    last[beta] = plateaus, int(over["count"][-1])
ax.set(xlabel="time $t$", ylabel="number of clusters", xscale="log", yscale="log")
ax.set_yticks([1, 2, 3, 5, 10, 20, 48], ["1", "2", "3", "5", "10", "20", "48"])
ax.minorticks_off()
ax.legend()
order.set(xlabel="time $t$", ylabel=r"order parameter $|\bar x|$", ylim=(0, 1.05))
plt.show()

# %%
# The tokens for β = 9. Which scale counts is answered without choosing one: the partition of single
# linkage that persists over the widest range of scales.

stored = runs[9.0].snapshot.values  # the steps nearest to the times asked for
shots = wflow.plots.token_snapshots(runs[9.0], which=0, times=stored[[0, 20, 60, -1]])
for t in stored[[20, 60, -1]]:
    cloud = runs[9.0].tokens.isel(snapshot_path=0).sel(snapshot=t)
    found = wflow.clusters.persistent_count(cloud)
    print(f"t = {t:6.1f}: {found.count} clusters, persistence {found.persistence:.1e}")

# %%
# The cost: evaluations of the velocity, against those of `rk4` with steps that resolve the start.

for beta, run in runs.items():
    print(f"beta = {beta:g}: {int(run.evaluations[0, -1])} evaluations up to t = 1000")
