"""The tests check shapes and types at every call of a function, and leave the fields of pytrees alone."""

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from jaxcredit.core.estimator import Context
from jaxcredit.core.recurrence import backward_recurrence
from jaxcredit.core.trajectory import masked_mean

X = jnp.ones(3)


@pytest.mark.parametrize("bad", [jnp.ones(2, bool), jnp.ones(3), [True] * 3])
def test_functions_are_checked(bad):
    with pytest.raises(TypeCheckError):
        masked_mean(X, bad)


@pytest.mark.usefixtures("no_type_checks")
def test_the_checks_can_be_put_aside():
    assert masked_mean(X, jnp.array([1.0, 0.0, 0.0])) == 1


def test_pytrees_hold_anything():
    jax.eval_shape(lambda x: Context(env=0, env_params=x, policy="p", policy_params=x), X)


def test_unknown_choices_reach_the_library_and_ints_pass_for_floats():
    with pytest.raises(ValueError, match="form='sideways' is not known"):
        backward_recurrence(X, X, X[0], form="sideways")
