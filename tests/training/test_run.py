"""`run`: the same training as one `train` call, in chunks of one compiled program, with everything written down."""

import json
import logging
import os
import re
import signal
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from flax import struct

import envs
import jaxcredit as jc
from jaxcredit.evaluation.statistics import iqm
from jaxcredit.training.run import run

SEEDS, POINTS, ITERATIONS, PER_CHUNK = 3, 4, 7, 2
MODULE = sys.modules[run.__module__]  # `jaxcredit.training.run` may also name the function
KEYS = jax.random.split(jax.random.key(5), SEEDS)


@struct.dataclass
class Tally(jc.CreditEstimator):
    """Credit is the reward; keeps a counter that all seeds share and a sum that each has for itself."""

    def init(self, key, trajectory):
        return {"batches": jnp.zeros((), jnp.int32), "reward": jnp.zeros(())}

    def update(self, key, state, trajectory, *, context=None):
        state = {"batches": state["batches"] + 1, "reward": state["reward"] + trajectory.reward.sum()}
        return state, {"reward": state["reward"]}

    def assign(self, key, state, trajectory, *, context=None):
        return trajectory.replace(advantage=trajectory.reward)


def small_agent():
    env, params = envs.make("ProbeObservationAction")
    return jc.A2C(env=env, env_params=params, credit=Tally(), num_envs=4, num_steps=1, hidden=())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run, what it reported, what it compiled, and its programs for the other tests."""
    agent, directory = small_agent(), tmp_path_factory.mktemp("runs") / "probe"
    reports, messages, programs = [], [], []
    compile_programs = MODULE.compile_programs

    class Listener(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    def remember(*arguments):
        programs.append(compile_programs(*arguments))
        return programs[0]

    listener = Listener()
    logging.getLogger("jax").addHandler(listener)
    patch = pytest.MonkeyPatch()
    patch.setattr(MODULE, "compile_programs", remember)
    with jax.log_compiles():
        result = run(
            agent,
            KEYS,
            ITERATIONS * 4,
            directory=directory,
            num_points=POINTS,
            eval_episodes=6,
            label="probe",
            progress=reports.append,
        )
    patch.undo()
    logging.getLogger("jax").removeHandler(listener)
    return agent, result, reports, [m for m in messages if m.startswith("Compiling")], programs[0]


@pytest.fixture
def compiled(finished, monkeypatch):
    """Lets `run` find its programs compiled."""
    monkeypatch.setattr(MODULE, "compile_programs", lambda *arguments: finished[4])


def test_chunks_are_the_same_training_as_one_program(finished):
    agent, result, *_ = finished
    whole = jax.vmap(partial(jc.train, num_iterations=POINTS * PER_CHUNK, num_points=POINTS), (None, 0))
    state, metrics = jax.jit(whole)(jc.as_arrays(agent), KEYS)
    for chunked, once in zip(jax.tree.leaves(result.state.params), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_allclose(chunked, once, rtol=1e-5, atol=1e-6)  # two programs round differently
    for name, curve in metrics.items():
        by_seed = result.frame.pivot(index="seed", columns="point", values=name)
        np.testing.assert_allclose(by_seed, curve, rtol=1e-5, atol=1e-6, err_msg=name)
    one = result.state_of(1)
    assert int(one.iteration) == int(one.credit["batches"]) == POINTS * PER_CHUNK
    assert one.credit["reward"] == state.credit["reward"][1]


def test_totals_are_rounded_up_to_whole_chunks(finished):
    _, result, *_ = finished
    first = result.frame[result.frame["seed"] == 0]
    assert first["iteration"].tolist() == [2, 4, 6, 8]
    assert first["total_steps"].tolist() == [8, 16, 24, 32]


def test_every_program_is_compiled_once(finished):
    _, _, _, messages, _ = finished
    programs = [message for message in messages if re.search(r"jit\((init|_chunk|_evaluate)\)", message)]
    assert len(programs) == 3


def test_reports_count_up_and_tell_the_rate(finished):
    _, result, reports, *_ = finished
    assert [(r.done, r.total) for r in reports] == [(done, POINTS) for done in range(POINTS + 1)]
    last = reports[-1]
    assert last.rate == pytest.approx(SEEDS * 32 / last.seconds)
    final = result.frame.loc[result.frame["point"] == POINTS - 1, "episode_return"]
    assert last.episode_return == pytest.approx(iqm(final))
    assert result.compile_seconds > 0 and result.run_seconds > 0


def test_files_hold_what_was_returned(finished):
    _, result, *_ = finished
    pd.testing.assert_frame_equal(pd.read_parquet(result.directory / "metrics.parquet"), result.frame)
    text = pd.read_csv(result.directory / "metrics.csv")
    pd.testing.assert_frame_equal(text, result.frame, check_dtype=False, rtol=1e-5)
    summary = pd.read_csv(result.directory / "summary.csv")
    pd.testing.assert_frame_equal(summary, result.summary, check_dtype=False, rtol=1e-5)
    assert summary["seed"].tolist() == [0, 1, 2] and summary["eval.episode_return"].between(-1, 1).all()
    config = json.loads((result.directory / "config.json").read_text())
    assert (config["agent"]["type"], config["agent"]["num_envs"]) == ("A2C", 4)
    assert config["versions"]["jax"] == jax.__version__ and len(config["keys"]) == SEEDS
    assert (result.directory / "curves.png").stat().st_size > 0
    (events,) = result.directory.glob("events.*")
    assert b"episode_return/iqm" in events.read_bytes()


def test_summary_takes_counters_from_the_end_and_averages_the_rest(finished):
    _, result, *_ = finished
    last = result.frame[result.frame["point"] == POINTS - 1].set_index("seed")
    summary = result.summary.set_index("seed")
    assert summary["total_steps"].tolist() == [32] * SEEDS
    np.testing.assert_allclose(summary["entropy"], last["entropy"], rtol=1e-6)


def test_a_directory_with_a_run_is_refused(finished, compiled):
    agent, result, *_ = finished
    before = (result.directory / "metrics.csv").read_bytes()
    with pytest.raises(ValueError, match=r"already holds a run .*choose another directory"):
        run(agent, KEYS, ITERATIONS * 4, directory=result.directory, progress=False)
    assert (result.directory / "metrics.csv").read_bytes() == before


def test_the_callers_keys_and_the_disk_are_left_alone(finished, compiled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = jax.random.split(jax.random.key(5), SEEDS)
    again = run(finished[0], keys, ITERATIONS * 4, num_points=POINTS, progress=False)
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(KEYS))
    pd.testing.assert_frame_equal(again.frame, finished[1].frame)
    assert not list(tmp_path.iterdir()) and again.directory is None


def test_a_relative_directory_stays_where_it_was_at_the_start(finished, compiled, tmp_path, monkeypatch):
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    there.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(there)
    settings = {"directory": "run", "num_points": POINTS, "checkpoint_seconds": 0.0}
    result = run(finished[0], KEYS, ITERATIONS * 4, progress=lambda report: os.chdir(elsewhere), **settings)
    assert result.directory == there / "run" and not list(elsewhere.iterdir())
    assert {path.name for path in result.directory.iterdir()} >= {"metrics.csv", "summary.csv", "checkpoints"}


def test_interrupt_ends_after_the_chunk_with_files_intact(finished, compiled, tmp_path):
    def stop(report):
        if report.done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    usual = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=r"stopped after 2 of 4 points; go on with resume=True"):
        run(finished[0], KEYS, ITERATIONS * 4, directory=tmp_path, num_points=POINTS, eval_episodes=6, progress=stop)
    assert signal.getsignal(signal.SIGINT) is usual
    expected = finished[1].frame.query("point < 2")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "metrics.parquet"), expected)
    assert len(pd.read_csv(tmp_path / "metrics.csv")) == len(expected)
    assert "eval.episode_return" not in pd.read_csv(tmp_path / "summary.csv")


def test_seeds_share_exactly_what_does_not_depend_on_them(finished):
    _, result, *_ = finished
    axes = result.axes
    assert (axes.iteration, axes.total_steps) == (None, None)
    assert axes.credit == {"batches": None, "reward": 0}
    assert axes.key == 0 and set(jax.tree.leaves(axes.params)) == {0}
    assert result.state.credit["batches"].shape == () and result.state.credit["reward"].shape == (SEEDS,)


@pytest.mark.parametrize(
    ("keys", "sizes", "message"),
    [
        (jax.random.key(0), {}, r"one per seed.*got key<fry>\[\]"),
        (jax.random.PRNGKey(0), {}, r"typed random keys"),
        (KEYS, {"num_points": 0}, "num_points=0 is not allowed"),
        (KEYS, {"memory_limit": float("nan")}, "memory_limit=nan is not allowed"),
        (KEYS, {"total_steps": 0}, "total_steps=0 is not allowed"),
    ],
)
def test_bad_input_is_refused(keys, sizes, message):
    with pytest.raises(ValueError, match=message):
        run(small_agent(), keys, **{"total_steps": 8, "progress": False, **sizes})
