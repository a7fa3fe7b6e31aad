"""Do differences of predictions, integrated gradients and layer-wise relevance agree on which step was decisive?

    python -m experiments.contribution_analysis             writes experiments/results/contribution_analysis.csv
    python -m experiments.contribution_analysis --quick     tiny sizes, prints only

A return predictor is fitted on episodes of a uniformly random policy, for three environments and five kinds of LSTM.
On fresh episodes each analysis names the step whose contribution stands out most from the episode's median.  A row per
environment and kind:  `quality` of the predictor (1 - error / variance of the returns);  `gap`, worst completeness gap
of the integrated gradients at 64 points, relative to the spread of the returns;  `conserved`, worst error of the
relevances' sum, likewise;  `gradients`, `relevance`, share of episodes in which that analysis names the same step as
the differences;  `decisive`, share in which the differences name a step that the environment calls decisive.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro

import envs
import jaxcredit as jc
from jaxcredit.agents.rollout import collect, start
from jaxcredit.training.logging import print_table

RESULTS = Path("experiments/results/contribution_analysis.csv")
TASKS = ("WatchRepair", "TraceBack", "CoinLine")
KINDS: dict[str, dict[str, Any]] = {
    "input gate": {"gate": "input"},
    "monotonic": {"gate": "input", "monotonic": True},
    "recurrent gate": {"gate": "recurrent"},
    "recurrent, monotonic": {"gate": "recurrent", "monotonic": True},
    "full": {"gate": "full"},
}
BATCH = 32


def random_episodes(env: Any, params: Any, key: jax.Array, number: int) -> jc.Trajectory:
    """Whole episodes of the uniformly random policy, with what the environment calls decisive in `extras`."""
    actions = env.num_actions

    def act(noise: jax.Array, carry: Any, observation: Any, first: jax.Array) -> Any:
        return carry, (noise * actions).astype(jnp.int32), jnp.zeros((number, actions))

    noise_key, start_key, play_key = jax.random.split(key, 3)
    noise = jax.random.uniform(noise_key, (env.horizon, number))
    runner = start(env, params, start_key, number, ())
    return collect(env, params, act, play_key, noise, runner, episodic=True, keep_info=("decisive",))[1]


def analysed(task: str, settings: dict[str, Any], batches: int, fresh: int) -> dict[str, float]:
    """Fit, then analyse fresh episodes in all ways."""
    env, params = envs.make(task)
    rudder = jc.as_arrays(jc.RUDDER(learning_rate=1e-2, path_steps=64, **settings))
    init_key, fit_key, fresh_key = jax.random.split(jax.random.key(0), 3)

    def fit(state: Any, key: jax.Array) -> tuple[Any, None]:
        play_key, credit_key = jax.random.split(key)
        return rudder.update(credit_key, state, random_episodes(env, params, play_key, BATCH))[0], None

    @jax.jit
    def everything() -> Any:
        example = jax.eval_shape(lambda key: random_episodes(env, params, key, BATCH), init_key)
        state, _ = jax.lax.scan(fit, rudder.init(init_key, example), jax.random.split(fit_key, batches))
        episodes = random_episodes(env, params, fresh_key, fresh)
        features = rudder.features(episodes, state.returns.std)
        prediction = rudder.predictor.apply(state.params, features, episodes.mask)
        return state, episodes, prediction, rudder.attribution(state, features, episodes.mask)

    state, episodes, prediction, attribution = jax.device_get(everything())
    change = np.diff(prediction.total, axis=0, prepend=prediction.before)
    named = {
        name: standing_out(x, episodes.mask)
        for name, x in (
            ("differences", change), ("gradients", attribution.contribution), ("relevance", prediction.relevance),
        )
    }  # fmt: skip
    returns = np.where(episodes.mask, episodes.reward, 0).sum(axis=0)
    error = state.returns.mean + state.returns.std * prediction.total[-1] - returns
    total = prediction.total[-1] - prediction.before
    columns = np.arange(fresh)
    return {
        "quality": 1 - np.square(error).mean() / returns.var(),
        "gap": np.abs(attribution.contribution.sum(axis=0) - attribution.total).max(),
        "conserved": np.abs(prediction.relevance.sum(axis=0) - total).max(),
        "gradients": np.mean(named["gradients"] == named["differences"]),
        "relevance": np.mean(named["relevance"] == named["differences"]),
        "decisive": np.mean(episodes.extras["decisive"][named["differences"], columns]),
    }


def standing_out(contribution: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The step of each episode whose contribution lies farthest from the median of all its steps, `[T, B] -> [B]`."""
    shown = np.where(mask, contribution, np.nan)
    return np.nanargmax(np.abs(shown - np.nanmedian(shown, axis=0)), axis=0)


def main(quick: bool = False) -> None:
    """Fit and analyse.

    Args:
      quick: tiny sizes: does everything run?
    """
    rows = []
    for task in TASKS:
        for kind, settings in KINDS.items():
            result = analysed(task, settings, 2 if quick else 100, 8 if quick else 256)
            rows.append({"task": task, "kind": kind, **{name: float(x) for name, x in result.items()}})
            print(f"{len(rows)} of {len(TASKS) * len(KINDS)}: {rows[-1]}", flush=True)
    if not quick:
        pd.DataFrame(rows).to_csv(RESULTS, index=False, float_format="%.4g")
    names = [name for name in rows[0] if name not in ("task", "kind")]
    cells = [(row["task"], row["kind"], *(f"{row[name]:.3g}" for name in names)) for row in rows]
    print_table("Contribution analysis", cells, ["task", "kind", *names])


if __name__ == "__main__":
    tyro.cli(main)
