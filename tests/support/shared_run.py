"""A small run over several devices or processes, started by the tests of `mesh.py` as processes of their own.

python -m tests.support.shared_run DIRECTORY [HOST:PORT PROCESS]     seeds over all devices, or over two processes
"""

import sys

import jax

import jaxcredit as jc

SEEDS = 5


def small_agent(**fields):
    import envs  # computes while it is imported, and processes must be joined before

    env, params = envs.make("ProbeObservationAction")
    return jc.A2C(env=env, env_params=params, num_envs=8, num_steps=2, hidden=(), log_info=(), **fields)


def shared_run(directory, *, agent=None, progress=False, **options):
    keys = jax.random.split(jax.random.key(5), SEEDS)
    agent = agent or small_agent()
    return jc.run(agent, keys, 64, directory=directory, num_points=4, progress=progress, eval_episodes=4, **options)


if __name__ == "__main__":
    directory, *place = sys.argv[1:]
    if place:
        jc.join_processes(place[0], 2, int(place[1]))
    else:
        shared_run(directory + "_split", agent=small_agent(split_environments=True))
        shared_run(directory, resume=True)
    shared_run(directory, resume=True)
