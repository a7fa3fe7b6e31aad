"""The policy with an external memory: what it reads, what it may not read, and what of it reaches the trajectory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces

import envs
import jaxcredit as jc
from jaxcredit.networks.memory import STRONG, Encoder, read, steps_before

KEY = jax.random.key(0)
STEPS, ENVS, ROWS = 7, 2, 3
NETWORK = jc.MemoryActorCritic(2, hidden=(4,), units=3, width=4, rows=ROWS, heads=2, top_k=2, reconstruction=0.5)
FIRST = jnp.zeros((STEPS, ENVS), bool).at[0, 0].set(True).at[4, 0].set(True).at[2, 1].set(True)
OBSERVATION = jax.random.normal(KEY, (STEPS, ENVS, 3))


class Evaluated:
    """The network, with parameters away from their start, compiled once for a window and once for a step."""

    def __init__(self):
        carry = NETWORK.initial_carry(ENVS)
        params = jax.jit(NETWORK.init)(KEY, carry, OBSERVATION[:1], FIRST[:1])
        leaves, tree = jax.tree.flatten(params)
        keys = jax.random.split(KEY, len(leaves))
        self.params = tree.unflatten(
            [x + 0.5 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
        )
        self.program = jax.jit(self.parts)
        # as if a window had gone before: column 0 starts anew in FIRST, column 1 goes on
        past = jax.random.normal(jax.random.key(1), (STEPS, ENVS, 3))
        self.carry = self(carry, past, jnp.zeros_like(FIRST))[0]

    def parts(self, params, carry, observation, first):
        carry, distribution, value, extras = NETWORK.apply(params, carry, observation, first)
        return carry, distribution.logits, value, extras

    def __call__(self, carry, observation=OBSERVATION, first=FIRST, params=None):
        return self.program(self.params if params is None else params, carry, observation, first)


@pytest.fixture(scope="module")
def evaluated():
    return Evaluated()


def test_read_against_a_loop():
    """Strength times cosine, softmax over the K best of the rows that may be read."""
    rng = np.random.default_rng(0)
    steps, rows, heads, width, top_k = 4, 3, 2, 5, 2
    key, strength = rng.normal(size=(steps, 1, heads, width)), rng.uniform(0, 5, size=(steps, 1, heads))
    written, reach = rng.normal(size=(rows + steps, 1, width)), np.array([2, 3, 0, 1])
    arrays = [jnp.asarray(x, jnp.float32) for x in (key, strength, written)]
    reads = jax.jit(read, static_argnums=4)(*arrays, jnp.asarray(reach)[:, None], top_k)
    for t in range(steps):
        for h in range(heads):
            place = rows + t - 1 - np.arange(reach[t])
            cosine = [key[t, 0, h] @ written[p, 0] for p in place]
            cosine /= np.linalg.norm(key[t, 0, h]) * np.linalg.norm(written[place, 0], axis=-1)
            score = strength[t, 0, h] * cosine
            best = np.argsort(-score)[:top_k]
            weight = np.exp(score[best]) / np.exp(score[best]).sum()
            np.testing.assert_allclose(reads.weight[t, 0, h, : len(best)], weight, atol=1e-4)
            np.testing.assert_array_equal(reads.index[t, 0, h, : len(best)], place[best] - rows)
            np.testing.assert_array_equal(reads.weight[t, 0, h, len(best) :], 0)
            np.testing.assert_allclose(reads.content[t, 0, h], weight @ written[place[best], 0], atol=1e-4)


def test_steps_before_within_the_episode():
    first = jnp.array([[0, 0, 1, 0, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], bool).T
    expected = [[5, 6, 0, 1, 0], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    np.testing.assert_array_equal(steps_before(jnp.array([5, 7, 0]), first).T, expected)


def test_a_window_is_its_steps_one_by_one(evaluated):
    """Values, policy and reads; rows keep their place in time, whichever window they are read from."""
    after, logits, value, extras = evaluated(evaluated.carry)
    carry = evaluated.carry
    for t in range(STEPS):
        carry, logits_t, value_t, extras_t = evaluated(carry, OBSERVATION[t : t + 1], FIRST[t : t + 1])
        np.testing.assert_allclose(logits_t[0], logits[t], atol=1e-5)
        np.testing.assert_allclose(value_t[0], value[t], atol=1e-5)
        now, whole = extras_t["recorded"], extras["recorded"]
        np.testing.assert_allclose(now["read_strengths"][0], whole["read_strengths"][t], atol=1e-5)
        np.testing.assert_allclose(now["read_weights"][0], whole["read_weights"][t], atol=1e-5)
        read_something = whole["read_weights"][t] > 0
        np.testing.assert_array_equal(
            (now["read_index"][0] + t)[read_something], whole["read_index"][t][read_something]
        )
        env = jnp.arange(ENVS)
        cut = NETWORK.carry_after(extras["carries"], jnp.full(ENVS, t), env)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), cut, carry)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), after, carry)


def test_only_the_last_rows_of_the_running_episode_are_read(evaluated):
    recorded = evaluated(evaluated.carry)[3]["recorded"]
    weight, index = recorded["read_weights"], recorded["read_index"]
    before = steps_before(evaluated.carry.age, FIRST)
    back = jnp.arange(STEPS)[:, None, None, None] - index
    reached = (back >= 1) & (back <= jnp.minimum(before, ROWS)[..., None, None])
    np.testing.assert_array_equal((weight > 0) & ~reached, False)
    np.testing.assert_allclose(
        weight.sum(axis=-1), jnp.broadcast_to(before[..., None] > 0, (STEPS, ENVS, 2)), atol=1e-5
    )
    assert (index[:2, 1][weight[:2, 1] > 0] < 0).any()  # the episode began before the window


def test_a_new_episode_forgets(evaluated):
    """What comes after the start of an episode does not depend on what came before it."""
    before = evaluated(evaluated.carry)
    other = evaluated(NETWORK.initial_carry(ENVS), OBSERVATION.at[:2].add(1.0), FIRST)
    for x, y in zip(before[1:3], other[1:3], strict=True):
        np.testing.assert_allclose(x[2:, 1], y[2:, 1], atol=1e-5)
        assert np.abs(x[:2, 1] - y[:2, 1]).max() > 1e-4


def test_what_was_written_gets_no_gradient_through_reads(evaluated):
    """Step 1 reads step 0 alone; the gradient of its value with respect to the observation of step 0 goes through the
    controller, and not through the memory."""
    first = jnp.zeros_like(FIRST).at[0].set(True)

    def value(x):
        params = jax.tree.map(lambda p: p, evaluated.params)
        gates = params["params"]["ResettingGRU_0"]
        params["params"]["ResettingGRU_0"] = jax.tree.map(jnp.zeros_like, gates)  # the controller does not move
        return evaluated(NETWORK.initial_carry(ENVS), x, first, params)[2][1].sum()

    gradient = jax.grad(value)(OBSERVATION)
    np.testing.assert_array_equal(gradient[0], 0)
    assert (gradient[1] != 0).any()
    assert np.abs(value(OBSERVATION.at[0].add(1.0)) - value(OBSERVATION)) > 1e-4


def test_the_critic_does_not_move_the_policy(evaluated):
    gradient = jax.grad(lambda p: evaluated(evaluated.carry, params=p)[2].sum())(evaluated.params)["params"]
    for x in jax.tree.leaves(gradient["actor"]):
        np.testing.assert_array_equal(x, 0)
    assert all((x != 0).any() for x in jax.tree.leaves(gradient["critic"]))


def test_gradients_are_finite_where_nothing_can_be_read():
    """Zero observations, an empty memory, one step."""
    carry, zeros = NETWORK.initial_carry(1), jnp.zeros((1, 1, 3))
    params = jax.jit(NETWORK.init)(KEY, carry, zeros, jnp.ones((1, 1), bool))

    def total(params):
        _, distribution, value, extras = NETWORK.apply(params, carry, zeros, jnp.ones((1, 1), bool))
        return value.sum() + distribution.logits.sum() + extras["auxiliary_loss"].sum()

    gradient = jax.jit(jax.grad(total))(params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_auxiliary_loss_is_reconstruction_and_the_cost_of_strong_reads(evaluated):
    extras = evaluated(evaluated.carry)[3]
    strength = extras["recorded"]["read_strengths"]
    cost = NETWORK.strength_cost * np.maximum(strength, STRONG).sum(axis=-1)
    decoder = evaluated.params["params"]["decoder"]
    latent = extras["carries"].rows[ROWS:]
    hidden = np.tanh(latent @ decoder["Dense_0"]["kernel"] + decoder["Dense_0"]["bias"])
    error = hidden @ decoder["Dense_1"]["kernel"] + decoder["Dense_1"]["bias"] - OBSERVATION
    np.testing.assert_allclose(extras["auxiliary_loss"], cost + 0.25 * np.square(error).sum(axis=-1), rtol=1e-4)


def test_without_reconstruction_there_is_no_decoder():
    network = NETWORK.clone(reconstruction=0.0)
    params = jax.eval_shape(network.init, KEY, network.initial_carry(ENVS), OBSERVATION, FIRST)["params"]
    assert "decoder" not in params and "encoder" in params


def test_pictures_go_through_convolutions():
    encoder = Encoder(width=4)
    seen = {"picture": jnp.ones((2, 1, 5, 4, 3)), "number": jnp.ones((2, 1))}
    latent, params = jax.eval_shape(lambda: encoder.init_with_output(KEY, seen))
    assert latent.shape == (2, 1, 4)
    assert params["params"]["Conv_0"]["kernel"].shape == (3, 3, 3, 16)
    assert params["params"]["Dense_0"]["kernel"].shape == (5 * 4 * 32 + 1, 8)


def test_continuous_actions_have_a_scale():
    network = jc.MemoryActorCritic(2, continuous=True, rows=2, top_k=1)
    carry = network.initial_carry(ENVS)
    scale = jax.jit(lambda: network.init_with_output(KEY, carry, OBSERVATION[:1], FIRST[:1])[0][1].scale_diag)()
    np.testing.assert_array_equal(scale, jnp.ones((1, ENVS, 2)))


@pytest.mark.parametrize("size", ["units", "width", "rows", "heads", "top_k"])
def test_nothing_may_be_empty(size):
    with pytest.raises(ValueError, match=f"{size}=0 is not allowed; give a whole number of at least 1"):
        jc.MemoryActorCritic(2, **{size: 0})


def test_no_more_rows_are_read_than_there_are():
    network = jc.MemoryActorCritic(2, rows=3)
    carry = network.initial_carry(ENVS)
    (_, _, _, extras), _ = jax.eval_shape(lambda: network.init_with_output(KEY, carry, OBSERVATION, FIRST))
    assert extras["recorded"]["read_weights"].shape == (STEPS, ENVS, 3, 3)


# In an agent -----------------------------------------------------------------------------------------------------


@struct.dataclass
class CounterState(environment.EnvState):
    pass


class Counter(environment.Environment):
    """Shows the time, pays it, is cut after three steps; action 1 ends the episode."""

    horizon = 3

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=3)

    def step_env(self, key, state, action, params):
        following = CounterState(time=state.time + 1)
        return following.time[None] * 1.0, following, state.time * 1.0, action == 1, {}

    def reset_env(self, key, params):
        return jnp.zeros(1), CounterState(time=jnp.zeros((), jnp.int32))

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(0, 3, (1,))


COUNTER = Counter()


def agent(**settings):
    network = jc.MemoryActorCritic(2, hidden=(4,), units=3, width=4, rows=4, heads=2, top_k=2)
    credit = jc.chain(jc.TemporalValueTransport(gamma=0.0, threshold=0.0), jc.GAE())
    return jc.PPO(
        env=COUNTER, env_params=COUNTER.default_params, network=network, credit=credit, num_envs=4, num_steps=8,
        minibatches=2, needs_next_observation=True, **settings,
    )  # fmt: skip


@pytest.fixture(scope="module")
def gathered():
    """A second window, so that some episodes began before it."""

    def two(key):
        state = agent().init(key)
        runner = agent().gather(key, state.params, None, state.runner)[0]
        return state.params, *agent().gather(jax.random.fold_in(key, 1), state.params, None, runner)[1::2]

    return jax.jit(two)(KEY)


def test_reads_reach_the_trajectory(gathered):
    _, t, carry = gathered
    weight, index = t.extras["read_weights"], t.extras["read_index"]
    assert weight.shape == index.shape == (8, 4, 2, 2) and t.extras["read_strengths"].shape == (8, 4, 2)
    # every step looks back at most to the start of its episode
    time = t.observation[..., 0][..., None, None]
    back = jnp.arange(8)[:, None, None, None] - index
    np.testing.assert_array_equal((weight > 0) & ((back < 1) | (back > time)), False)
    np.testing.assert_allclose(weight.sum(-1), jnp.broadcast_to(t.observation > 0, (8, 4, 2)), atol=1e-5)
    assert (carry.age > 0).any() and (index[weight > 0] < 0).any()


def test_values_behind_the_cuts_are_those_with_the_memory_before_the_reset(gathered):
    params, t, carry = gathered
    step = jax.jit(lambda carry, x, first: agent().policy.apply(params, carry, x[None], first[None])[::2])
    for i in range(8):
        carry, value = step(carry, t.observation[i], t.first[i])
        np.testing.assert_allclose(t.value[i], value[0], atol=1e-5)
        after = step(carry, t.next_observation[i], jnp.zeros_like(t.first[i]))[1][0]
        np.testing.assert_allclose(t.next_value[i], jnp.where(t.terminated[i], 0, after), atol=1e-5)


def test_a_training_step_moves_every_parameter():
    """Minibatches split environments; the network's own loss counts by the agent's weight."""

    def first_step(key):
        state = agent().init(key)
        return state.params, *agent(auxiliary_coefficient=1e3).step(state)

    start, state, metrics = jax.jit(first_step)(KEY)
    moved = jax.tree.map(lambda x, y: bool((x != y).any()), start, state.params)
    assert all(jax.tree.leaves(moved))
    assert metrics["auxiliary_loss"].value >= 2 * STRONG * 5e-5 * 0.99


def test_the_weight_of_the_networks_own_loss_is_the_agents(gathered):
    params, t, carry = gathered
    t = t.replace(advantage=jnp.zeros_like(t.value), extras={})
    loss = jax.jit(lambda weight: agent(auxiliary_coefficient=weight).loss(params, None, carry, t))
    losses = [loss(x) for x in (0.0, 3.0)]
    np.testing.assert_allclose(losses[1][0] - losses[0][0], 3 * losses[0][1]["auxiliary_loss"], rtol=1e-3)


def test_memories_are_carried_by_policies_too():
    env, params = envs.make("ProbeAction")
    network = jc.MemoryActorCritic(2, hidden=(), units=2, width=2, rows=2, heads=1, top_k=1)
    learner = jc.A2C(env=env, env_params=params, network=network, num_envs=2, num_steps=2)
    metrics = jax.jit(lambda key: jc.evaluate(learner, learner.init(key), key, 4))(KEY)
    assert np.isfinite(jax.tree.leaves(metrics)).all()
