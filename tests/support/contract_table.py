"""The tables that the contract tests run over.  A new estimator or function adds one line here."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxcredit as jc

STEPS, COLUMNS, ACTIONS = 6, 3, 2
HEADS, ROWS = 2, 3  # of the memory that the policy read

_FITS: dict[str, Any] = {"fits": 1, "fit_batch": 2, "capacity": 64}
_RATIOS: dict[str, Any] = {"hidden": (2,), "learning_rate": 0.1}
_RUDDER = jc.RUDDER(hidden=2, min_quality=-2.0, **_FITS)

ESTIMATORS = {
    "MonteCarlo": jc.MonteCarlo(gamma=0.9),
    "MonteCarlo without baseline": jc.MonteCarlo(gamma=0.9, baseline=False),
    "NStep": jc.NStep(gamma=0.9, n=2),
    "TDLambda": jc.TDLambda(gamma=0.9, lam=0.8),
    "GAE": jc.GAE(gamma=0.9, lam=0.8),
    "VTrace": jc.VTrace(gamma=0.9, lam=0.8),
    "ScaleReward": jc.ScaleReward(gamma=0.9),
    "RUDDER": _RUDDER,
    "RUDDER recurrent": _RUDDER.replace(gate="recurrent", residual="end"),
    "RUDDER full": _RUDDER.replace(gate="full", past_rewards=True, inputs="difference"),
    "RUDDER relevance": _RUDDER.replace(gate="forget", analysis="relevance", buffer="lessons", chunk=4),
    "RUDDER gradients": _RUDDER.replace(monotonic=True, analysis="gradients", path_steps=2, auxiliary_weight=1.0),
    "RewardDecomposition": jc.RewardDecomposition(hidden=(2,), **_FITS),
    "RewardDecomposition random": jc.RewardDecomposition(hidden=(2,), subset=2, unbiased=True, **_FITS),
    "SequenceModelling": jc.SequenceModelling(width=4, heads=1, **_FITS),
    "AREL": jc.AREL(width=4, heads=1, readout=(2,), **_FITS),
    "Diaster": jc.Diaster(units=2, hidden=(2,), **_FITS),
    "Shaping": jc.Shaping(_RUDDER),
    "IRCR": jc.IRCR(),
    "TemporalValueTransport": jc.chain(
        jc.TemporalValueTransport(gamma=0.5, threshold=0.5, top_rows=2), jc.GAE(gamma=0.9, lam=0.8)
    ),
    "TemporalRewardTransport": jc.TemporalRewardTransport(
        jc.GAE(gamma=0.9, lam=0.8), horizon=2, threshold=0.01, width=2, hidden=2
    ),
    "SyntheticReturns": jc.SyntheticReturns(learning_rate=0.1, capacity=3, fits=2, hidden=(2,)),
    "AlignRUDDER": jc.AlignRUDDER(
        known=np.eye(3, dtype=np.float32),
        profile=jc.Profile(np.array([0, 1, 0], np.int32), np.array([[1.0, -9.0], [-9.0, 2.0]], np.float32), 0.5),
        radius=np.inf,
    ),
    "COCOA": jc.COCOA(gamma=0.9, num_outcomes=20, **_RATIOS),
    "StateHCA": jc.StateHCA(gamma=0.9, pays="td_error", immediate="learned", form="contrastive", **_RATIOS),
    "ReturnHCA": jc.ReturnHCA(gamma=0.9, **_RATIOS),
    "ReturnHCA taken": jc.ReturnHCA(gamma=0.9, credits="taken", **_RATIOS),
    "chain": jc.chain(_RUDDER, jc.GAE(gamma=0.9, lam=0.8)),
}

VARIANTS_OF_REWRITERS = (
    "RUDDER recurrent",
    "RUDDER full",
    "RUDDER relevance",
    "RUDDER gradients",
    "RewardDecomposition random",
    "AREL",
)
VARIANTS = (*VARIANTS_OF_REWRITERS, "ReturnHCA taken")
REWRITERS = (
    "ScaleReward",
    "RUDDER",
    "RewardDecomposition",
    "SequenceModelling",
    "Diaster",
    "Shaping",
    "IRCR",
    "AlignRUDDER",
    "SyntheticReturns",
    *VARIANTS_OF_REWRITERS,
)
BOOTSTRAPS = (
    "MonteCarlo",
    "NStep",
    "TDLambda",
    "GAE",
    "VTrace",
    "TemporalValueTransport",
    "TemporalRewardTransport",
    "chain",
)

READS = ("read_weights", "read_strengths", "read_index")

FUNCTIONS = {
    "discounted_returns": lambda d: jc.discounted_returns(d["reward"], d["next_value"], *d["ends"], gamma=0.9),
    "n_step_returns": lambda d: jc.n_step_returns(d["reward"], d["next_value"], *d["ends"], gamma=0.9, n=2),
    "lambda_returns": lambda d: jc.lambda_returns(d["reward"], d["next_value"], *d["ends"], gamma=0.9, lam=0.8),
    "td_lambda": lambda d: jc.td_lambda(d["reward"], d["value"], d["next_value"], *d["ends"], gamma=0.9, lam=0.8),
    "gae": lambda d: jc.gae(d["reward"], d["value"], d["next_value"], *d["ends"], gamma=0.9, lam=0.8),
    "vtrace": lambda d: jnp.stack(
        jc.vtrace(
            d["reward"],
            d["value"],
            d["next_value"],
            *d["ends"],
            d["log_rho"],
            gamma=0.9,
            lam=0.8,
            clip_rho=1.0,
            clip_c=1.0,
        )
    ),
    "trajectory_control_variate": lambda d: jc.trajectory_control_variate(
        d["reward"], d["action"], d["action_value"], d["next_value"], d["probability"], *d["ends"], gamma=0.9
    ),
    "contribution_credit": lambda d: jc.contribution_credit(
        d["action_value"][None] - d["value"][:, None, None], d["reward"], d["action"], d["probability"], d["mask"]
    ),
    "hindsight_ratio": lambda d: jc.hindsight_ratio(d["action_value"], d["probability"]),
    "hindsight_loss": lambda d: jc.hindsight_loss(d["action_value"], d["probability"], d["action"], form="contrastive"),
    "later_sums": lambda d: jc.later_sums(d["reward"], d["action"], d["mask"], number=2, gamma=0.9),
    "hindsight_coefficient": lambda d: jc.hindsight_coefficient(d["probability"][::-1], d["probability"]),
    "return_hindsight_credit": lambda d: jc.return_hindsight_credit(
        d["probability"][::-1], d["probability"], d["reward"], d["mask"]
    ),
    "return_hindsight_advantage": lambda d: jc.return_hindsight_advantage(
        d["probability"][::-1], d["probability"], d["action"], d["reward"], d["mask"]
    ),
    "profile_redistribution": lambda d: jc.profile_redistribution(
        jnp.append(d["action"], 0), d["reward"].sum(), d["mask"], jnp.eye(2) * 3 - 1, 0.5
    ),
    "action_targets": lambda d: jc.action_targets(
        d["reward"], d["next_value"], d["mask"], *d["ends"], learner="q", gamma=0.9, lam=0.8
    ),
    "redistribute_differences": lambda d: jc.redistribute_differences(d["value"], d["reward"].sum(), d["mask"]),
    "complete_return": lambda d: jc.complete_return(d["value"], d["reward"].sum(), d["mask"], residual="spread"),
    "integrated_gradients": lambda d: (
        jc.integrated_gradients(
            lambda x: jnp.tanh(x.sum()), d["reward"][:, None] * d["action_value"], d["mask"], steps=4
        ).contribution
    ),
    "lrp_lstm": lambda d: jc.lrp_lstm(d["reward"][:, None], d["value"][:, None], d["next_value"][:1]),
    "summed_reward_loss": lambda d: jc.summed_reward_loss(d["reward"], d["value"][0], d["mask"], variance_weight=2.0),
    "sub_trajectory_loss": lambda d: jc.sub_trajectory_loss(d["reward"], d["action"][0], d["value"][0], d["mask"]),
    "transport_value": lambda d: jc.transport_value(
        *(d[name] for name in READS), d["value"], *d["ends"], window=1, threshold=0.5
    ),
    "attention_importance": lambda d: jc.attention_importance(
        jax.nn.softmax(d["reward"][:, None] * d["value"]), *d["ends"]
    ),
    "transport_reward": lambda d: jc.transport_reward(
        jax.nn.sigmoid(d["value"]), d["reward"], d["next_value"], *d["ends"], horizon=2
    ),
    "synthetic_return": lambda d: jc.synthetic_return(d["reward"], d["value"], d["next_value"], *d["ends"], capacity=2),
    "augmented_reward": lambda d: jc.augmented_reward(d["value"], d["reward"], alpha=0.3, beta=2.0),
    "auxiliary_targets": lambda d: jc.auxiliary_targets(d["reward"], d["mask"], window=2),
}


def batch(seed: int = 0, steps: int = STEPS, dtype: str = "float32") -> jc.Trajectory:
    """Whole episodes, one per column: column 0 terminates early, 1 is truncated early, 2 fills the window."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=(steps, COLUMNS, *shape)), dtype)

    lengths = np.minimum([3, 4, steps], steps)
    t = np.arange(steps)[:, None]
    mask, last = t < lengths, t == lengths - 1
    reads = (steps, COLUMNS, HEADS, ROWS)
    value, next_value, reward, log_prob, old = (jnp.where(mask, draw(), 0) for _ in range(5))
    return jc.Trajectory(
        observation=draw(3),
        action=jnp.asarray(rng.integers(0, ACTIONS, size=(steps, COLUMNS)), jnp.int32),
        reward=reward,
        terminated=jnp.asarray(last & (np.arange(COLUMNS) == 0)),
        truncated=jnp.asarray(last & (np.arange(COLUMNS) > 0)),
        first=jnp.asarray(np.broadcast_to(t == 0, mask.shape)),
        mask=jnp.asarray(mask),
        behaviour_log_prob=old,
        log_prob=log_prob,
        logits=draw(ACTIONS),
        value=value,
        next_value=next_value,
        next_observation=draw(3),
        extras={
            "read_weights": jax.nn.softmax(draw(HEADS, ROWS)),
            "read_strengths": jnp.abs(draw(HEADS)) + 0.5,
            "read_index": jnp.asarray(rng.integers(-2, np.arange(steps)[:, None, None, None] + 1, reads), jnp.int32),
        },
    )


def poisoned(trajectory: jc.Trajectory) -> jc.Trajectory:
    """The same trajectory with garbage on every padded step."""
    pad = ~trajectory.mask

    def spoil(x: jax.Array) -> jax.Array:
        wide = pad.reshape(pad.shape + (1,) * (x.ndim - 2))
        if x.dtype == jnp.bool_:
            return x ^ wide
        if jnp.issubdtype(x.dtype, jnp.integer):
            return jnp.where(wide, 1 - x, x)
        return jnp.where(wide, jnp.nan, x)

    return jax.tree.map(spoil, trajectory).replace(mask=trajectory.mask)


def credit_of(trajectory: jc.Trajectory) -> dict[str, jax.Array]:
    """What an estimator may have written."""
    names = ("reward", "advantage", "value_target")
    written = {name: getattr(trajectory, name) for name in names if getattr(trajectory, name) is not None}
    if trajectory.action_advantage is not None:
        written |= {f"action_advantage of {a}": trajectory.action_advantage[..., a] for a in range(ACTIONS)}
    return written
