"""Evaluations of adaptive and of fixed steps, until two tokens merge and after.

    python benchmarks/adaptive_steps.py [--json benchmarks/results/adaptive_steps.json]

Two tokens at an angle of pi - 0.02, one head D = 8 I, ascent: a metastable state. Their angle obeys

    theta' = -2 beta sin theta/(1 + e^(beta (1 - cos theta)))     softmax
    theta' = -beta e^(beta cos theta) sin theta                   unnormalised

which quadrature solves to thirteen digits. They count as merged at an angle of 1e-3. Stated are

- the time of merging, the evaluations of `dopri5` until then in one call of `wflow.solve`, and its
  errors: of the time at which it reaches its last angle, relative to the time of merging; of the
  angle at half that time; and of the tokens when their angle has decayed by 20 e-foldings more.
  While the tokens cross from one state to the other, an error in time is one in the angle, of
  theta' times as much, for any scheme;
- the largest step 2^-k of `rk4` whose error in time, from an angle of 1.5 on alone, is no larger
  than that of `dopri5`, and the evaluations that such steps need for the whole way;
- evaluations per unit of time after merging. There the angle decays at the rate beta (softmax) or
  beta e^beta, and an explicit scheme may step no further than 3.3 over that rate (`rk4`: 2.8),
  whatever the tolerance: the problem has become stiff.
"""

import argparse
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
from report import write
from scipy.integrate import quad
from scipy.optimize import brentq

import wflow
from wflow.heads import Frozen

BETA, BEGIN, NEAR, MERGED = 8.0, math.pi - 0.02, 1.5, 1e-3
Name = Literal["softmax", "unnormalised"]
RATES: dict[Name, float] = {  # of the angle after merging
    "softmax": BETA,
    "unnormalised": BETA * math.exp(BETA),
}


def speed(angle: float, flow: str) -> float:
    """-theta', per unit of time."""
    if flow == "softmax":
        return 2 * BETA * math.sin(angle) / (1 + math.exp(BETA * (1 - math.cos(angle))))
    return BETA * math.exp(BETA * math.cos(angle)) * math.sin(angle)


def duration(before: float, after: float, flow: str) -> float:
    """Time from one angle to a smaller one, integrated over the logarithm near both ends."""
    options: dict[str, Any] = {"epsabs": 0, "epsrel": 1e-13, "limit": 500}
    middle = min(before, math.pi - 1)
    far = quad(
        lambda s: math.exp(s) / speed(math.pi - math.exp(s), flow),
        math.log(math.pi - before), math.log(math.pi - middle), **options,
    )  # fmt: skip
    near = quad(lambda s: math.exp(s) / speed(math.exp(s), flow),
                math.log(after), math.log(middle), **options)  # fmt: skip
    return float(far[0] + near[0])


def solved(angle: float, t_final: float, dt: float, flow: Any, scheme: Any) -> tuple[Any, Any]:
    """The last tokens (2, 2) from an angle on, and the run."""
    x0 = np.array([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
    run = wflow.solve(
        x0, Frozen(), heads=BETA * np.eye(2)[None], t_final=t_final, dt=dt, flow=flow,
        direction="ascent", scheme=scheme, save=wflow.SaveAt(every=10**9, budget=False),
    )  # fmt: skip
    return run["tokens"].values[0, -1], run


def angle_of(tokens: Any) -> float:
    """The angle between two tokens; near pi from their sum, which keeps the digits there."""
    apart, sum_ = (float(np.linalg.norm(tokens[0] - s * tokens[1])) for s in (1, -1))
    return 2 * math.atan2(apart, sum_)


def time_error(before: float, tokens: Any, asked: float, flow: str) -> float:
    """By how much later or earlier than asked the true solution reaches the angle of tokens."""
    return abs(duration(before, angle_of(tokens), flow) - asked)


def measured(flow: Name) -> dict[str, Any]:
    """The figures of one flow."""
    merging, near = duration(BEGIN, MERGED, flow), duration(NEAR, MERGED, flow)
    tokens, run = solved(BEGIN, merging, merging, flow, "dopri5")
    error = time_error(BEGIN, tokens, merging, flow)
    half, _ = solved(BEGIN, merging / 2, merging / 2, flow, "dopri5")
    angle = brentq(lambda a: duration(BEGIN, a, flow) - merging / 2, NEAR, BEGIN, xtol=1e-14)
    later = merging + 20 / RATES[flow]
    after, _ = solved(BEGIN, later, later, flow, "dopri5")
    middle = np.array([math.cos(BEGIN / 2), math.sin(BEGIN / 2)])
    steps = 1
    while time_error(NEAR, solved(NEAR, near, near / steps, flow, "rk4")[0], near, flow) > error:
        steps *= 2
    span = 400 / RATES[flow]
    _, rest = solved(MERGED, span, span, flow, "dopri5")
    return {
        "flow": flow,
        "merging_time": merging,
        "evaluations": int(run["evaluations"][0, -1]),
        "time_error": error / merging,
        "half_time_error": abs(angle_of(half) - angle),
        "token_error": float(np.abs(after - middle).max()),
        "rk4_dt": near / steps,
        "rk4_evaluations": 4 * merging * steps / near,
        "evaluations_per_time": float(rest["evaluations"][0, -1]) / span,
        "rk4_evaluations_per_time": 4 * RATES[flow] / 2.785,
    }


def main() -> None:
    """Print the figures of both flows, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [measured(flow) for flow in RATES]
    for row in rows:
        print(
            f"{row['flow']}: merged at t = {row['merging_time']:.6g}\n"
            f"  dopri5: {row['evaluations']} evaluations, relative error of the time "
            f"{row['time_error']:.2g}, of the angle at half of it {row['half_time_error']:.2g}, of "
            f"the tokens after merging {row['token_error']:.2g}\n"
            f"  rk4 with that error: dt = {row['rk4_dt']:.3g}, {row['rk4_evaluations']:.3g} "
            "evaluations\n"
            f"  after merging, per unit of time: dopri5 {row['evaluations_per_time']:.5g}, rk4 at "
            f"its limit of stability {row['rk4_evaluations_per_time']:.5g}"
        )
    if options.json is not None:
        write(options.json, "python benchmarks/adaptive_steps.py", 1, rows=rows)


if __name__ == "__main__":
    main()
