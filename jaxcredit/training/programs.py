"""The compiled programs of a run: start, train a chunk, evaluate; for a batch of seeds on all devices of a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.custom_batching import custom_vmap
from jax.sharding import NamedSharding, PartitionSpec

from jaxcredit.agents.agent import EVALUATION, Agent, TrainState, outside_training
from jaxcredit.training.mesh import local_mesh, over_seeds, place, seeds_that_fit
from jaxcredit.training.train import advance, evaluate

# most of the time that compiling takes goes into making programs fast; those that are called once need not be
CALLED_ONCE: Any = {"xla_backend_optimization_level": 1}

Metrics = dict[str, jax.Array]


@dataclass(frozen=True)
class Programs:
    """Everything a run calls, compiled for `size` seeds.

    Attributes:
      init: keys -> state.
      chunk: state -> (state, metrics `[size, 1]`); uses its argument up.
      evaluate: (state, keys) -> metrics `[size]`, or None.
      place: lay a state that comes from the host over the devices.
      axes: the seed axis of every leaf of the state, see `seed_axes`.
      like: the shapes of the state.
      size: seeds trained at a time.
      bytes: memory of one device while a chunk runs.
      metrics: names of what a chunk reports.
    """

    init: Callable[[jax.Array], TrainState]
    chunk: Callable[[TrainState], tuple[TrainState, Metrics]]
    evaluate: Callable[[TrainState, jax.Array], Metrics] | None
    place: Callable[[TrainState], TrainState]
    axes: Any
    like: TrainState
    size: int
    bytes: int
    metrics: tuple[str, ...]


def compile_programs(
    agent: Agent, keys: jax.Array, iterations: int, eval_episodes: int, memory_limit: float | None
) -> Programs:
    """Compile for as many of the seeds as fit into memory at a time.

    Args:
      agent: what to train.
      keys: typed random keys `[S]`.
      iterations: length of a chunk.
      eval_episodes: episodes of the final evaluation; 0: none.
      memory_limit: GiB per device, see `seeds_that_fit`.
    """
    mesh = local_mesh()
    agent = place(agent, mesh, None)
    axes = seed_axes(lambda key: _chunk(agent, init(agent, key), iterations=iterations)[0], keys)
    # what is laid over the devices: seeds, or (within each step) environments
    by_seed, state_axes = (None, None) if agent.split_environments else (0, axes)

    def program(function: Callable[..., Any], in_axes: Any, out_axes: Any, **options: Any) -> Any:
        """Compile-able for all seeds; whatever the devices do in between, arguments and results lie as `place` lays."""
        over_all = jax.vmap(function, in_axes, out_axes)
        if not agent.split_environments:
            return jax.jit(over_seeds(over_all, mesh, in_axes, out_axes), **options)
        return jax.jit(over_all, out_shardings=NamedSharding(mesh, PartitionSpec()), **options)

    start = program(init, (None, 0), axes)
    train = program(partial(_chunk, iterations=iterations), (None, axes), (axes, 0), donate_argnums=1)
    final = program(partial(_evaluate, episodes=eval_episodes), (None, axes, 0), 0)

    def shapes(size: int) -> tuple[Any, TrainState]:
        some = jax.ShapeDtypeStruct((size,), keys.dtype)
        return place(some, mesh, by_seed), place(jax.eval_shape(start, agent, some), mesh, state_axes)

    lanes = 1 if agent.split_environments else mesh.size
    size = -(-len(keys) // lanes) * lanes
    chunk = train.lower(agent, shapes(size)[1]).compile()
    fitting = seeds_that_fit(len(keys), bytes_in_use(chunk), lanes, memory_limit)
    if fitting < size:
        size = fitting
        chunk = train.lower(agent, shapes(size)[1]).compile()
    some, like = shapes(size)
    begin = start.lower(agent, some).compile(CALLED_ONCE)
    judge = final.lower(agent, like, some).compile(CALLED_ONCE) if eval_episodes else None
    return Programs(
        init=lambda keys: begin(agent, place(keys, mesh, by_seed)),
        chunk=lambda state: chunk(agent, state),
        evaluate=None if judge is None else lambda state, keys: judge(agent, state, place(keys, mesh, by_seed)),
        place=lambda state: place(state, mesh, state_axes),
        axes=axes,
        like=like,
        size=size,
        bytes=bytes_in_use(chunk),
        metrics=tuple(chunk.out_info[1]),
    )


def bytes_in_use(program: Any) -> int:
    """Memory of one device while a compiled program runs."""
    use = program.memory_analysis()
    aliased = use.alias_size_in_bytes
    return use.argument_size_in_bytes + use.output_size_in_bytes - aliased + use.temp_size_in_bytes


# One seed's part of the programs.  Being jitted they are traced once, however many programs are made of them.


@jax.jit
def init(agent: Agent, key: jax.Array) -> TrainState:
    """The state at the start of one seed's training."""
    return agent.init(key)


@partial(jax.jit, static_argnames="iterations")
def _chunk(agent: Agent, state: TrainState, iterations: int) -> tuple[TrainState, Metrics]:
    return advance(agent, state, iterations, num_points=1)


def _evaluate(agent: Agent, state: TrainState, key: jax.Array, episodes: int) -> Metrics:
    return evaluate(agent, state, outside_training(key, EVALUATION), episodes)


def seed_axes(state_of: Callable[[jax.Array], TrainState], keys: jax.Array) -> Any:
    """For every leaf of the state of many seeds: 0 where seeds differ, None where they share one value.

    Shared are the counters that a `lax.cond` reads (they must not become one per seed, or the branch becomes a select),
    and whatever else training does not make depend on the key.  Found by tracing: vmap itself is asked.

    Args:
      state_of: key -> state, after the training loop: what is constant at first may depend on the seed later.
      keys: `[S]` typed random keys.
    Returns:
      A state of 0 and None, which `vmap` takes as `in_axes` and `out_axes`.
    """
    found = []

    @custom_vmap
    def witness(state: TrainState) -> TrainState:
        return state

    @witness.def_vmap
    def note(axis_size: int, in_batched: list[Any], state: TrainState) -> tuple[TrainState, Any]:
        del axis_size
        found.append(in_batched[0])
        return state, in_batched[0]

    jax.eval_shape(jax.vmap(lambda key: witness(state_of(key))), keys)
    return jax.tree.map(lambda batched: 0 if batched else None, found[0])


def over_axes(function: Callable[..., Any], axes: Any, *states: Any) -> Any:
    """Apply a function to the leaves that have a seed axis; the others are the first state's."""

    def apply(axis: int | None, *leaves: Any) -> Any:
        return leaves[0] if axis is None else function(*leaves)

    return jax.tree.map(apply, axes, *states, is_leaf=lambda x: x is None)
