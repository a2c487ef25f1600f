r"""
Oscillating heads: common and spread phases
===========================================

Heads that follow :math:`\dot D_h = M(t + \varphi_h) - D_h` with a periodic target M
never come to rest, and neither do the tokens. With common phases, :math:`\varphi_h = 0`,
all heads pull alike and :math:`G^2` does not depend on their number. With spread phases,
:math:`\varphi_h = 2\pi h/H`, the oscillations average out and G² falls to a small positive plateau
([MHT] figure 2, bottom).
"""

import matplotlib.pyplot as plt

import wflow

x0 = wflow.tokens.cross_polytope(n=60, d=3, spread=0.05, seed=42)
heads = [1, 2, 4, 8, 16]


def solve(phases, H):
    law = wflow.heads.Oscillating(3, phases=phases)
    save = wflow.SaveAt(every=2)
    return wflow.solve(
        x0, law, heads=H, t_final=30.0, dt=0.05, scheme="rk4", seed=0, save=save
    ).isel(path=0)


runs = {(phases, H): solve(phases, H) for phases in ("common", "spread") for H in heads}

# %%
# G² over time on one scale, and its mean over the last two periods against H.

fig, axes = plt.subplots(1, 3, figsize=(9.6, 3.2))
colours = dict(zip(heads, plt.cm.viridis([0, 0.22, 0.45, 0.7, 0.9]), strict=True))
level = {}
for (phases, H), run in runs.items():
    ax = axes[0 if phases == "common" else 1]
    ax.semilogy(run.time, run.upper_gradient_sq, color=colours[H], lw=1, label=f"{H}")
    level[phases, H] = float(run.upper_gradient_sq.sel(time=slice(30 - 4 * 3.14159, None)).mean())
for ax, phases in zip(axes, ("common", "spread"), strict=False):
    ax.set(xlabel="time $t$", title=f"{phases} phases", ylim=(1e-6, 20))
axes[0].set_ylabel(r"squared upper gradient $G^2$")
axes[1].legend(title="heads $H$", ncols=2)
for phases, marker in (("common", "o-"), ("spread", "s--")):
    axes[2].loglog(heads, [level[phases, H] for H in heads], marker, label=phases)
axes[2].set(xlabel="heads $H$", ylabel=r"mean of $G^2$, $t > 30 - 4\pi$", xticks=heads)
axes[2].set_xticks(heads, map(str, heads), minor=False)
axes[2].minorticks_off()
axes[2].legend(title="phases")
plt.show()

for H in heads:
    print(f"H = {H:2}  common {level['common', H]:.2e}  spread {level['spread', H]:.2e}")
ratio = level["common", 16] / level["common", 4]
print(f"common phases, H = 16 against 4: {ratio:.3f}")
