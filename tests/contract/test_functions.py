"""What every pure function promises: one trajectory, any length, dtype kept, finite gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contract_table import FUNCTIONS, batch


def column(steps: int = 6, dtype: str = "float32") -> dict[str, Any]:
    trajectory = jax.tree.map(lambda x: x[:, 0], batch(5, steps, dtype))
    return {
        "reward": trajectory.reward,
        "value": trajectory.value,
        "next_value": trajectory.next_value,
        "ends": (trajectory.terminated, trajectory.truncated),
        "log_rho": trajectory.log_prob,
        "mask": trajectory.mask,
        "action": trajectory.action,
        "action_value": trajectory.logits,
        "probability": jax.nn.softmax(trajectory.logits),
        **trajectory.extras,
    }


@pytest.fixture(params=list(FUNCTIONS))
def function(request: pytest.FixtureRequest) -> Any:
    return FUNCTIONS[request.param]


def test_jit_equals_eager(function: Any) -> None:
    np.testing.assert_allclose(jax.jit(function)(column()), function(column()), rtol=1e-5, atol=1e-6)


def test_single_step(function: Any) -> None:
    assert np.isfinite(function(column(steps=1))).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtype_is_kept(function: Any, dtype: str) -> None:
    assert str(jax.eval_shape(function, column(dtype=dtype)).dtype) == dtype


def test_gradients_are_finite(function: Any) -> None:
    data = column()
    gradient = jax.grad(lambda reward: function(data | {"reward": reward}).sum())(jnp.zeros_like(data["reward"]))
    assert np.isfinite(gradient).all()
