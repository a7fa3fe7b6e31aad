"""A small run that has everything to be saved, for the tests of checkpoints: memory, replay, moments, open episodes."""

import os
import signal

import jax

import envs
import jaxcredit as jc

SETTINGS = {"points": 4, "steps_per_point": 2 * 8 * 5}


def agent_with_everything():
    env, params = envs.make("DelayedKeyToDoor", length=5)
    credit = jc.chain(jc.RUDDER(hidden=2, fits=2, fit_batch=4, capacity=16), jc.GAE(lam=0.0))
    return jc.PPO(
        env=env,
        env_params=params,
        credit=credit,
        num_envs=8,
        minibatches=2,
        epochs=1,
        hidden=(4,),
        memory=3,
        normalise_observation=True,
        learning_rate=0.003,
    )


KEYS = jax.random.split(jax.random.key(5), 2)


def run_it(directory, *, agent=None, progress=False, checkpoint_seconds=0.0, keys=KEYS, num_points=4, **options):
    return jc.run(
        agent or agent_with_everything(),
        keys,
        SETTINGS["points"] * SETTINGS["steps_per_point"],
        directory=directory,
        num_points=num_points,
        eval_episodes=4,
        progress=progress,
        checkpoint_seconds=checkpoint_seconds,
        **options,
    )


def killed_run(directory):
    """Begin the run and kill this process after the second point."""

    def kill(report):
        if report.done == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    run_it(directory, progress=kill)
