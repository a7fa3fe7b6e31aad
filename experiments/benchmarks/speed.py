"""How fast jaxcredit is, beside a plain loop and what else can be installed.

    python -m experiments.benchmarks.speed                     every task
    python -m experiments.benchmarks.speed --tasks ppo         one of them
    python -m experiments.benchmarks.speed --small             tiny sizes: does everything run?

    ppo          PPO on CartPole-v1: the plain loop, jaxcredit, jaxnasium, stable-baselines3; by environments and seeds
    rollout      collecting and evaluating a window: the plain loop, jaxcredit; and jaxcredit's collecting alone
    parts        microseconds per environment step of each part of jaxcredit's PPO, and of its matrix products alone
    many         PPO with 1, 64, 1,024 and 4,096 seeds: meant for a GPU, under 8 minutes there; no peers, no network
    recurrences  GAE, lambda-returns and V-trace: rlax, both forms of jaxcredit; batch 256
    rudder       fitting and assigning, by the length of the episodes
    scaling      seeds on KeyToDoor: steps per second, compile seconds, bytes per seed
    sweep        64 hyperparameter points in one program

Programs take turns within one process; a ratio is the first variant's seconds per step by this one's: above 1 is
faster.  A peer that is not installed, or fails, is reported with its error.  Writes experiments/results/speed/TASK.csv,
and appends every row with the machine's data to experiments/results/speed/log.jsonl.

jaxnasium's QR decompositions can wait for ever on a machine with few cores.  It is timed, beside all others, in a run
with XLA_FLAGS=--xla_cpu_enable_concurrency_optimized_scheduler=false, which writes TASK-other-scheduler.csv.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pandas as pd
import tyro

import envs
import jaxcredit as jc
from experiments.benchmarks import peers
from experiments.benchmarks.parts import PARTS, arithmetic, repeated
from experiments.benchmarks.plain import Settings, make_collect, make_train
from experiments.benchmarks.timing import OTHER_SCHEDULER, Compiled, compile_jax, in_turns
from jaxcredit.training.logging import provenance

RESULTS = Path("experiments/results/speed")
Rows = Iterator[dict[str, Any]]


def seeds(number: int) -> jax.Array:
    return jax.random.split(jax.random.key(0), number)


def over_seeds(agent: jc.OnPolicyAgent, number: int, iterations: int) -> Compiled:
    """Training of many seeds."""
    work = float(iterations * agent.num_envs * agent.window * number)
    train = jax.vmap(partial(jc.train, num_iterations=iterations), (None, 0))
    return compile_jax(train, jc.as_arrays(agent), seeds(number), work=work)


def attempt(programs: dict[str, Compiled], name: str, make: Callable[[], Compiled]) -> Rows:
    """Add a peer's program; a row with its error if that does not work."""
    try:
        programs[name] = make()
    except Exception as error:  # whatever is wrong with a peer is part of the report
        yield {"variant": name, "error": f"{type(error).__name__}: {error}".splitlines()[0]}


def cartpole(num_envs: int) -> jc.PPO:
    """The agent that the plain loop imitates."""
    env, params = envs.make("CartPole-v1")
    return jc.PPO(env=env, env_params=params, num_envs=num_envs, num_steps=128, epochs=4, minibatches=4)


def against_plain(num_envs: int, number: int, updates: int) -> dict[str, Compiled]:
    """The same training by the plain loop and by jaxcredit."""
    env, params = envs.make("CartPole-v1")
    plain = make_train(env, params, Settings(num_envs=num_envs), updates)
    work = float(updates * num_envs * 128 * number)
    return {
        "plain": compile_jax(jax.vmap(plain), seeds(number), work=work),
        "jaxcredit": over_seeds(cartpole(num_envs), number, updates),
    }


def many(small: bool, repeats: int) -> Rows:
    for number in (1, 2) if small else (1, 64, 1_024, 4_096):
        updates = 2 if small else 20
        case = {"num_envs": 4, "seeds": number, "updates": updates}
        yield from ({**case, **row} for row in in_turns(against_plain(4, number, updates), min(repeats, 5)))


def parts(small: bool, repeats: int) -> Rows:
    """The floor is that of the matrix products at the rate of one large product, measured here and now."""
    agent = cartpole(4)
    floor = arithmetic(agent, 4, 2) / flops_per_second(256 if small else 2_048) * 1e6
    yield {"variant": "matrix products", "microseconds": floor}
    for number in (1,) if small else (1, 8, 32):
        windows = 2 if small else max(40, 400 // number)
        work = float(windows * agent.num_envs * agent.num_steps * number)
        programs = {
            part: compile_jax(
                jax.vmap(repeated(part, windows), (None, 0)), jc.as_arrays(agent), seeds(number), work=work
            )
            for part in PARTS
        }
        for row in in_turns(programs, repeats):
            yield {"seeds": number, **row, "microseconds": 1e6 / row["rate"]}


def flops_per_second(size: int) -> float:
    """Of a square float32 matrix product on this machine, the best of ten."""
    x = jax.random.normal(jax.random.key(0), (size, size))
    program = compile_jax(jnp.matmul, x, x, work=2.0 * size**3)
    return in_turns({"product": program}, 10)[0]["rate.high"]


def ppo(small: bool, repeats: int) -> Rows:
    shapes = [(4, 1), (4, 2)] if small else [(4, 1), (4, 8), (4, 32), (4, 256), (64, 1), (64, 8)]
    for num_envs, number in shapes:
        updates = 2 if small else max(8, (204_800 if number == 1 else 819_200) // (num_envs * 128 * number))
        programs = against_plain(num_envs, number, updates)
        case = {"num_envs": num_envs, "seeds": number, "updates": updates}
        for name, peer in peers.PPO.items():
            if number == 1 or name not in peers.ONE_SEED:
                make = partial(peer, num_envs, number, updates)
                yield from ({**case, **row} for row in attempt(programs, name, make))
        yield from ({**case, **row} for row in in_turns(programs, repeats))


def rollout(small: bool, repeats: int) -> Rows:
    for number in (1, 2) if small else (1, 8, 32):
        windows = 2 if small else max(100, 800 // number)
        env, params = envs.make("CartPole-v1")
        work = float(windows * 4 * 128 * number)
        plain, ours = make_collect(env, params, Settings(), windows), repeated("rollout and evaluation", windows)
        programs = {
            "plain": compile_jax(jax.vmap(plain), seeds(number), work=work),
            "jaxcredit": compile_jax(jax.vmap(ours, (None, 0)), jc.as_arrays(cartpole(4)), seeds(number), work=work),
            "jaxcredit, without values": compile_jax(
                jax.vmap(repeated("rollout", windows), (None, 0)), jc.as_arrays(cartpole(4)), seeds(number), work=work
            ),
        }
        yield from ({"num_envs": 4, "seeds": number, **row} for row in in_turns(programs, repeats))


def recurrences(small: bool, repeats: int) -> Rows:
    batch = 4 if small else 256
    for steps in (16,) if small else (128, 1_024, 16_384):
        keys = jax.random.split(jax.random.key(1), 2)
        reward, value, next_value, log_rho = jax.random.normal(keys[0], (4, steps, batch))
        terminated = jax.random.uniform(keys[1], (steps, batch)) < 0.01
        never = jnp.zeros_like(terminated)
        arrays = reward, value, next_value, terminated, never
        for name, peer in peers.RLAX.items():
            programs: dict[str, Compiled] = {}
            case = {"function": name, "steps": steps, "batch": batch}
            work = float(steps * batch)
            given = reward, value, next_value, terminated, log_rho
            for row in attempt(programs, "rlax", partial(compile_jax, peer, *given, work=work)):
                yield case | row
            for form in ("sequential", "associative"):
                function, picked = ours(name, form)
                given = [(*arrays, log_rho)[i] for i in picked]
                programs[f"jaxcredit {form}"] = compile_jax(jax.vmap(function, 1, 1), *given, work=work)
            yield from (case | row for row in in_turns(programs, 5 * repeats))


def ours(name: str, form: Any) -> tuple[Callable[..., Any], tuple[int, ...]]:
    """Our function, and which of reward, value, next_value, terminated, truncated, log_rho it takes."""
    if name == "gae":
        return partial(jc.gae, gamma=0.99, lam=0.95, form=form), (0, 1, 2, 3, 4)
    if name == "lambda_returns":
        return partial(jc.lambda_returns, gamma=0.99, lam=0.95, form=form), (0, 2, 3, 4)
    return partial(jc.vtrace, gamma=0.99, lam=1.0, clip_rho=1.0, clip_c=1.0, form=form), (0, 1, 2, 3, 4, 5)


def rudder(small: bool, repeats: int) -> Rows:
    """Ten gradient steps on 32 episodes, and the credit of 16, by the kind of predictor."""
    for steps in (8,) if small else (50, 500, 5_000):
        env, params = envs.make("DelayedKeyToDoor", length=steps)
        for part in ("update", "assign"):
            programs = {}
            for gate in ("input", "recurrent", "full"):
                estimator = jc.RUDDER(gate=gate, fits=10, fit_batch=32, capacity=64)
                agent = jc.PPO(env=env, env_params=params, credit=jc.chain(estimator, jc.GAE()), num_envs=16)
                program, arguments = rudder_part(agent, estimator, part)
                programs[gate] = compile_jax(program, *arguments, work=16.0 * steps)
            yield from ({"part": part, "steps": steps, **row} for row in in_turns(programs, repeats))


def rudder_part(agent: jc.PPO, estimator: jc.RUDDER, part: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    state = jax.jit(agent.init)(jax.random.key(0))
    gather = jax.jit(lambda s: agent.gather(jax.random.key(1), s.params, s.moments, s.runner)[1])
    arguments = jax.random.key(2), state.credit[0], gather(state)
    return (estimator.update if part == "update" else estimator.assign), arguments


def scaling(small: bool, repeats: int) -> Rows:
    """Total steps per second; every row is a program of its own, so there are no ratios to read."""
    env, params = envs.make("KeyToDoor", length=40)
    agent = jc.PPO(env=env, env_params=params, num_envs=16, episodic=True, minibatches=1, hidden=(32, 32))
    numbers = (1, 2) if small else (1, 4, 16, 64, 256, 1_024, 4_096)
    for number in numbers:
        iterations = 1 if small else max(1, 256 // number)
        program = over_seeds(agent, number, iterations)
        row = in_turns({"jaxcredit": program}, repeats)[0]
        yield {"seeds": number, "kilobytes_per_seed": 1024 * program.megabytes / number, **row}


def sweep(small: bool, repeats: int) -> Rows:
    """64 points with 4 seeds each, against the same runs one point at a time."""
    env, params = envs.make("CartPole-v1")
    agent = jc.as_arrays(jc.PPO(env=env, env_params=params, num_envs=4))
    points, iterations = (4, 1) if small else (64, 50)
    rates = jnp.logspace(-4, -2, points)
    train = jax.vmap(partial(jc.train, num_iterations=iterations), (None, 0))

    def at(rate: jax.Array, keys: jax.Array) -> Any:
        return train(agent.replace(learning_rate=rate), keys)[1]["episode_return"]

    work = float(points * 4 * iterations * agent.num_envs * agent.num_steps)
    one = compile_jax(at, rates[0], seeds(4), work=work)
    program = jax.jit(at)
    loop = one._replace(call=lambda: [program(rate, seeds(4)) for rate in rates])
    programs = {
        "a loop over points": loop,
        "one program": compile_jax(jax.vmap(at, (0, None)), rates, seeds(4), work=work),
    }
    yield from ({"points": points, "seeds": 4, **row} for row in in_turns(programs, repeats))


TASKS = {task.__name__: task for task in (ppo, rollout, parts, many, recurrences, rudder, scaling, sweep)}


def main(tasks: tuple[str, ...] = tuple(TASKS), small: bool = False, repeats: int = 9) -> None:
    """Time jaxcredit and its peers.

    Args:
      tasks: which; see the module.
      small: tiny sizes, two repeats, and nothing written.
      repeats: runs of each program.
    """
    unknown = sorted(set(tasks) - set(TASKS))
    if unknown:
        raise ValueError(f"There is no task {', '.join(unknown)}; choose among {', '.join(TASKS)}.")
    machine = provenance() | {"cores": os.cpu_count(), "xla_flags": os.environ.get("XLA_FLAGS", "")}
    for name in tasks:
        rows = []
        for row in TASKS[name](small, 2 if small else repeats):
            rows.append(row)
            print(name, json.dumps(row), flush=True)
        if not small:
            write(name, rows, machine)


def write(name: str, rows: list[dict[str, Any]], machine: dict[str, Any]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / "log.jsonl").open("a") as log:
        for row in rows:
            log.write(json.dumps({"task": name, **row, **machine}) + "\n")
    other = "-other-scheduler" if OTHER_SCHEDULER in machine["xla_flags"] else ""
    pd.DataFrame(rows).to_csv(RESULTS / f"{name}{other}.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    tyro.cli(main)
