"""Composition of estimators."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import jaxcredit as jc
from contract_table import batch

KEY = jax.random.key(0)


@struct.dataclass
class Count(jc.CreditEstimator):
    """Counts its updates and adds the count to the reward."""

    step: float = 1.0

    def init(self, key: jax.Array, trajectory: jc.Trajectory) -> Any:
        return jnp.zeros(())

    def update(self, key: jax.Array, state: Any, trajectory: jc.Trajectory, *, context: Any = None) -> Any:
        return state + self.step, {"count": state + self.step}

    def assign(self, key: jax.Array, state: Any, trajectory: jc.Trajectory, *, context: Any = None) -> jc.Trajectory:
        return trajectory.replace(reward=trajectory.reward + state)


def test_a_chain_passes_the_trajectory_on_and_assigns_with_new_states() -> None:
    both = jc.chain(Count(), Count(10), jc.GAE(gamma=0.9, lam=0.8))
    state, trajectory, metrics = both.update_and_assign(KEY, both.init(KEY, batch()), batch())
    assert state[:2] == (1.0, 10.0)
    assert metrics == {"0.count": 1.0, "1.count": 10.0}
    np.testing.assert_allclose(trajectory.reward, batch().reward + 11, rtol=1e-6)
    alone = jc.GAE(gamma=0.9, lam=0.8).assign(KEY, (), batch().replace(reward=batch().reward + 11))
    np.testing.assert_allclose(trajectory.advantage, alone.advantage, rtol=1e-5)


def test_a_chain_needs_what_a_member_needs() -> None:
    assert jc.chain(jc.RUDDER(), jc.GAE()).needs_episodes
    assert not jc.chain(jc.GAE()).needs_episodes
    assert not jc.chain(jc.RUDDER(), jc.GAE()).needs_next_observation


def test_ints_in_float_fields_become_floats() -> None:
    assert isinstance(jc.GAE(gamma=1).gamma, float)
    assert isinstance(jc.GAE().replace(lam=0).lam, float)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("members", "message"), [((), "at least one"), ((jc.GAE,), "an instance"), ((3,), "argument 0")]
)
def test_chain_of_what_is_no_estimator(members: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jc.chain(*members)


def test_an_estimator_without_assign_says_so() -> None:
    with pytest.raises(TypeError, match="write its `assign`"):
        jc.CreditEstimator().assign(KEY, (), batch())
