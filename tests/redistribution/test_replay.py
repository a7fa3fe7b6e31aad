"""What is kept of past episodes, and which are drawn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxcredit.redistribution.replay import EpisodeReplay, Episodes, LessonsBuffer

KEY = jax.random.key(0)


def numbered(*numbers: float) -> Episodes:
    """Episodes of two steps that show their number and are paid it at the end."""
    number = jnp.array(numbers)
    features = jnp.broadcast_to(number, (2, len(numbers)))[..., None]
    return Episodes.of(features, jnp.ones((2, len(numbers)), bool), jnp.stack([jnp.zeros_like(number), number]))


def test_replay_is_a_ring_that_keeps_episodes_whole() -> None:
    replay = EpisodeReplay.empty(4, (2, 2, 1))
    for i in range(3):  # six episodes into four places
        replay = replay.add(numbered(2.0 * i, 2.0 * i + 1))
    assert sorted(replay.episodes.reward[:, 1].tolist()) == [2.0, 3.0, 4.0, 5.0]
    features, mask, reward = replay.sample(KEY, 16).time_major
    np.testing.assert_array_equal(features[..., 0], jnp.broadcast_to(reward[1], (2, 16)))
    assert mask.all()


def test_only_stored_episodes_are_sampled() -> None:
    replay = EpisodeReplay.empty(8, (2, 2, 1)).add(numbered(7.0, 7.0))
    assert (replay.sample(KEY, 32).reward[:, 1] == 7).all()


def test_lessons_keep_the_largest_losses() -> None:
    """As if one by one the lowest had been replaced where the new one is larger."""
    buffer = LessonsBuffer.empty(3, (2, 2, 1))
    for pair in [(5.0, 1.0), (3.0, 9.0), (4.0, 0.0)]:
        buffer = buffer.add(numbered(*pair), lambda episodes: episodes.reward[:, 1])
    assert sorted(buffer.loss.tolist()) == [4.0, 5.0, 9.0]
    np.testing.assert_array_equal(buffer.episodes.reward[:, 1], buffer.loss)


def test_lessons_look_at_stored_losses_anew() -> None:
    buffer = LessonsBuffer.empty(2, (2, 2, 1)).add(numbered(5.0, 4.0), lambda episodes: episodes.reward[:, 1])
    buffer = buffer.add(numbered(1.0, 2.0), lambda episodes: -episodes.reward[:, 1])
    assert sorted(buffer.loss.tolist()) == [-2.0, -1.0]


def test_lessons_are_drawn_by_their_loss() -> None:
    """Softmax of the losses; empty places never."""
    buffer = LessonsBuffer.empty(4, (2, 2, 1)).add(
        numbered(0.0, 1.0), lambda episodes: jnp.log(3.0) * episodes.reward[:, 1]
    )
    drawn = buffer.sample(KEY, 8192).reward[:, 1]
    np.testing.assert_allclose(drawn.mean(), 0.75, atol=0.02)
