"""Saved runs: killed at any instant and called again they end as if nothing had happened, and damage is noticed."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxcredit as jc
from jaxcredit.networks.policy import named_shapes
from jaxcredit.training import checkpoint
from jaxcredit.training.checkpoint import FOLDER, Checkpoints, from_named_arrays, named_arrays
from jaxcredit.training.logging import RunFiles, describe, locked, read_metrics, remove_results
from jaxcredit.training.npz import NpzHandler
from jaxcredit.training.run import RunResult
from tests.support.own_process import environment
from tests.support.resumed_run import KEYS, SETTINGS, agent_with_everything, run_it


def same(one, other):
    """Whether two pytrees hold the same bits."""
    one, other = named_arrays(one), named_arrays(other)
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """All runs of the same settings share their programs."""
    module, programs = sys.modules[RunResult.__module__], {}
    compile_programs = module.compile_programs

    def remember(agent, keys, *rest):
        settings = json.dumps([describe(agent), jax.random.key_data(keys).tolist(), *rest])
        if settings not in programs:
            programs[settings] = compile_programs(agent, keys, *rest)
        return programs[settings]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "compile_programs", remember)
        yield


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, compiled_once):
    return run_it(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def copy(uninterrupted, tmp_path):
    """A finished run to be damaged, without what is made at the end."""
    shutil.copytree(uninterrupted.directory, tmp_path / "run")
    return tmp_path / "run"


# Names --------------------------------------------------------------------------------------------------------------


def test_a_pytree_comes_back_from_a_file(tmp_path):
    tree = {"key": jax.random.split(jax.random.key(3)), "x": (jnp.arange(3), None), "none": jnp.zeros((0, 2)), "n": 1.5}
    tree["n"] = jnp.bfloat16(1.5)
    like = jax.eval_shape(lambda: tree)
    arrays = named_arrays(tree)
    assert arrays.keys() == {"key", "x.0", "none", "n"} and arrays["key"].dtype == np.uint32
    np.savez(tmp_path / "arrays.npz", **arrays)
    back = from_named_arrays(like, dict(np.load(tmp_path / "arrays.npz")))
    assert same(back, tree) and back["key"].dtype == tree["key"].dtype


@pytest.mark.parametrize("other", [{"a": np.zeros(3, np.float32)}, {"b": np.zeros(2, np.float32)}, {"a": np.zeros(2)}])
def test_another_form_is_refused(other):
    with pytest.raises(ValueError, match=r"another form than this run's: (a|a, b)\."):
        from_named_arrays({"a": jax.ShapeDtypeStruct((2,), jnp.float32)}, other)


# Which are kept -----------------------------------------------------------------------------------------------------


def test_the_latest_and_the_best_are_kept_also_over_a_restart(tmp_path):
    def save(points_and_scores):
        saved = Checkpoints(tmp_path, keep=2)
        for point, score in points_and_scores:
            saved.save(point, {"x": np.full(2, point)}, ["x"], score)
        saved.close()

    save([(1, 0.1), (2, 0.9), (3, float("nan")), (4, 0.2)])
    save([(5, 0.3)])
    assert checkpoint.points(tmp_path) == [2, 4, 5]
    assert checkpoint.best(tmp_path).point == 2
    found = checkpoint.newest(tmp_path)
    assert (found.point, found.arrays["x"].tolist(), found.by_seed) == (5, [5, 5], ["x"])


def test_nothing_saved_is_none(tmp_path):
    assert checkpoint.newest(tmp_path / "missing") is None
    with pytest.raises(ValueError, match="holds no checkpoint"):
        checkpoint.best(tmp_path)


# Interrupted --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_ends_as_an_uninterrupted_one(uninterrupted, tmp_path, number):
    def stop(report):
        if report.done == 2:
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt, match=r"stopped after 2 of 4 points; go on with resume=True \(--resume\)"):
        run_it(tmp_path, progress=stop, checkpoint_seconds=60)
    assert checkpoint.points(tmp_path / FOLDER) == [2]
    reports = []
    resumed = run_it(tmp_path, resume=True, progress=reports.append)
    assert [(report.done, report.restored) for report in reports[1:]] == [(3, 2), (4, 2)]
    assert reports[-1].rate == pytest.approx(len(KEYS) * 2 * SETTINGS["steps_per_point"] / reports[-1].seconds)
    assert_equal_runs(resumed, uninterrupted)


def assert_equal_runs(run, other):
    assert same(run.state, other.state)
    pd.testing.assert_frame_equal(run.frame, other.frame, check_exact=True)
    pd.testing.assert_frame_equal(run.summary, other.summary, check_exact=True)
    for name in ("metrics.csv", "summary.csv"):
        assert (run.directory / name).read_text() == (other.directory / name).read_text()


def test_a_killed_run_ends_as_an_uninterrupted_one(uninterrupted, tmp_path):
    """SIGKILL after the second point, while its checkpoint may be half written."""
    program = f"from tests.support.resumed_run import killed_run; killed_run({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", program], env=environment(level=0), capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("0,2,6,4")  # killed while writing a line
    assert_equal_runs(run_it(tmp_path, resume=True), uninterrupted)


def test_resuming_nothing_begins_and_resuming_the_end_changes_nothing(uninterrupted, tmp_path):
    assert_equal_runs(run_it(tmp_path, resume=True), uninterrupted)
    assert_equal_runs(run_it(tmp_path, resume=True), uninterrupted)


def test_stopping_the_resume_of_a_finished_run_changes_nothing(copy, uninterrupted):
    with pytest.raises(KeyboardInterrupt, match="stopped after 4 of 4 points"):
        run_it(copy, resume=True, progress=lambda report: os.kill(os.getpid(), signal.SIGINT))
    assert (copy / "summary.csv").read_text() == (uninterrupted.directory / "summary.csv").read_text()


# Refused or mended --------------------------------------------------------------------------------------------------


def contents(directory):
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"agent": agent_with_everything().replace(learning_rate=0.5)},
            r"agent.learning_rate is 0.00\d+ there and 0.5 here",
        ),
        ({"agent": agent_with_everything().replace(num_envs=4)}, "agent.num_envs is 8 there and 4 here"),
        ({"keys": jax.random.split(jax.random.key(8), 2)}, "keys is of other random keys"),
        ({"num_points": 2}, "num_points is 4 there and 2 here"),
    ],
)
def test_a_run_of_other_settings_is_refused_and_left_alone(copy, change, message):
    before = contents(copy)
    with pytest.raises(ValueError, match=message):
        run_it(copy, resume=True, **change)
    assert contents(copy) == before


@pytest.mark.parametrize("resume", [True, False])
def test_checkpoints_without_their_settings_are_refused_and_left_alone(copy, resume):
    (copy / "config.json").unlink()
    before = contents(copy)
    with pytest.raises(ValueError, match=r"holds what a run saved \(checkpoints\), but no config\.json"):
        run_it(copy, resume=resume, keys=jax.random.split(jax.random.key(8), 2))
    assert contents(copy) == before


@pytest.mark.parametrize("ended", [True, False])
def test_a_run_whose_checkpoints_are_gone_is_refused_and_left_alone(copy, ended):
    shutil.rmtree(copy / FOLDER)
    if not ended:
        remove_results(copy)
    before = contents(copy)
    with pytest.raises(
        ValueError, match=r"wrote \(metrics\.csv.*\), but no checkpoint to go on from in .*checkpoints\. Noth"
    ):
        run_it(copy, resume=True)
    assert contents(copy) == before


def test_a_run_killed_before_its_first_checkpoint_begins_anew_and_says_so(copy, uninterrupted):
    remove_results(copy)
    for point in checkpoint.points(copy / FOLDER):
        shutil.rmtree(copy / FOLDER / str(point))
    with pytest.warns(UserWarning, match=r"no checkpoint to go on from in .*checkpoints: the run in .* begins anew"):
        resumed = run_it(copy, resume=True)
    assert_equal_runs(resumed, uninterrupted)


def test_results_come_after_their_checkpoint(tmp_path, monkeypatch):
    """Killed between the two, a run must be able to go on."""
    save, finish, seen = NpzHandler.save, RunFiles.finish, []

    def slowly(handler, directory, args):
        time.sleep(0.2)
        save(handler, directory, args)

    def note(files, *tables):
        seen.extend(checkpoint.points(files.directory / FOLDER))
        finish(files, *tables)

    monkeypatch.setattr(NpzHandler, "save", slowly)
    monkeypatch.setattr(RunFiles, "finish", note)
    run_it(tmp_path, checkpoint_seconds=60)
    assert seen == [4]


@pytest.mark.parametrize("what", ["metrics", "checkpoints"])
def test_a_full_disk_is_said_and_the_run_goes_on_once_there_is_room(uninterrupted, tmp_path, monkeypatch, what):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch, pytest.raises(OSError, match=rf"{tmp_path}: {what} .* No space left") as error:

        def fill(report):
            if report.done == 2:
                owner, method = {"metrics": (RunFiles, "append"), "checkpoints": (NpzHandler, "save")}[what]
                patch.setattr(owner, method, Mock(side_effect=full))

        run_it(tmp_path, progress=fill)
    assert error.value.__cause__ is full and "go on from the last checkpoint there by resume=True" in str(error.value)
    assert_equal_runs(run_it(tmp_path, resume=True), uninterrupted)


def test_a_run_that_is_alive_is_refused_and_left_alone(copy):
    before = contents(copy)
    with locked(copy), pytest.raises(ValueError, match=r"another run that is still alive"):
        run_it(copy, resume=True)
    assert contents(copy) == before


def test_a_resumed_run_is_read_as_far_as_it_is_now(copy):
    shutil.rmtree(copy / FOLDER / "4")
    seen = []

    def look(report):
        if report.done > report.restored:
            seen.append((len(read_metrics(copy)), (copy / "summary.csv").exists()))

    (copy / "metrics.parquet").write_bytes(b"as it was when the run was stopped")
    run_it(copy, resume=True, progress=look)
    assert seen == [(4 * len(KEYS), False)]


def damage(path, how):
    if how == "removed":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        content = bytearray(path.read_bytes())
        content[{"flipped": len(content) // 2, "flipped in the index": -100}[how]] ^= 0xFF
        path.write_bytes(bytes(content))


@pytest.mark.parametrize("how", ["removed", "truncated", "flipped", "flipped in the index"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_used(copy, uninterrupted, how):
    damage(copy / FOLDER / "4" / "arrays" / "arrays.npz", how)
    with pytest.warns(UserWarning, match=r"4 is damaged"):
        resumed = run_it(copy, resume=True)
    assert (copy / FOLDER / "damaged_4").exists()
    assert_equal_runs(resumed, uninterrupted)


def test_an_earlier_score_that_is_damaged_does_not_stop_a_run(copy, uninterrupted):
    earlier = min(checkpoint.points(copy / FOLDER))
    (copy / FOLDER / str(earlier) / "metrics/metrics").write_text("{")
    assert checkpoint.best(copy / FOLDER).point == 4
    assert_equal_runs(run_it(copy, resume=True), uninterrupted)
    assert (copy / FOLDER / f"damaged_{earlier}").exists()


def test_if_all_are_damaged_nothing_is_overwritten(copy):
    for point in checkpoint.points(copy / FOLDER):
        damage(copy / FOLDER / str(point) / "arrays" / "arrays.npz", "truncated")
    before = contents(copy)
    with (
        warnings.catch_warnings(),
        pytest.raises(ValueError, match=r"is damaged \(points .*\)\. Nothing was changed"),
    ):
        warnings.simplefilter("ignore")
        run_it(copy, resume=True)
    assert contents(copy) == before


def test_the_metric_of_the_best_is_known_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"best='retrun' is no metric of this run; choose one of .*episode_return"):
        run_it(tmp_path / "run", best="retrun")
    assert not (tmp_path / "run").exists()


def test_a_damaged_configuration_is_said(copy):
    damage(copy / "config.json", "truncated")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        run_it(copy, resume=True)


def test_checkpoints_hold_no_code(uninterrupted):
    """No pickle: everything is JSON or arrays."""
    for content in contents(uninterrupted.directory / FOLDER).values():
        assert b"\x80\x04\x95" not in content and b"\x80\x03" not in content[:2]


# The policy ---------------------------------------------------------------------------------------------------------


def test_a_loaded_policy_acts_as_the_agent_did(uninterrupted):
    agent = agent_with_everything()
    state = uninterrupted.state_of(1)
    policy = jc.load_policy(uninterrupted.directory, seed=1, which="latest")
    observation = jax.tree.map(lambda x: x[0], state.runner.observation)
    key = jax.random.key(0)
    carry = policy.initial_carry()
    carries = agent.policy.initial_carry(1)
    for first in (True, False):
        carry, action = policy.step(key, carry, observation, jnp.array(first))
        batch = jax.tree.map(lambda x: x[None, None], observation)
        carries, distribution, _, _ = agent.apply(state.params, state.moments, carries, batch, jnp.array([[first]]))
        np.testing.assert_allclose(action, agent.to_env(distribution.sample(seed=key)[0])[0], rtol=1e-6)
    with pytest.raises(ValueError, match="has memory: call step"):
        policy(key, observation)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"seed": 7}, "no seed 7; it has 0 to 1"), ({"which": "worst"}, "choose best or latest")],
)
def test_what_cannot_be_loaded_is_said(uninterrupted, arguments, message):
    with pytest.raises(ValueError, match=message):
        jc.load_policy(uninterrupted.directory, **arguments)


@pytest.mark.parametrize("which", ["best", "latest"])
def test_a_policy_comes_from_the_next_checkpoint_if_one_is_damaged(copy, which):
    order = {"best": checkpoint.best, "latest": checkpoint.latest}[which]
    first = order(copy / FOLDER).point
    (copy / FOLDER / str(first) / "arrays" / "arrays.npz").write_bytes(b"nothing")
    with pytest.warns(UserWarning, match=rf"{first} is damaged \(ValueError: arrays\.npz is not what was written\)"):
        assert jc.load_policy(copy, which=which).params
    for point in checkpoint.points(copy / FOLDER):
        damage(copy / FOLDER / str(point) / "arrays" / "arrays.npz", "truncated")
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="holds only damaged checkpoints"):
        jc.load_policy(copy, which=which)


@pytest.mark.parametrize("content", ['{"seeds": 8}', "[1]", '{"seeds": [0'])
def test_a_policy_of_something_else_is_said(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json is (not of a run|damaged)"):
        jc.load_policy(tmp_path)


def test_an_observation_of_another_shape_is_said(uninterrupted):
    policy = jc.load_policy(uninterrupted.directory)
    with pytest.raises(ValueError, match=r"trained on observations \(5,\), and was given \(2, 5\)"):
        policy.step(jax.random.key(0), policy.initial_carry(), jnp.zeros((2, 5)), jnp.array(True))
    assert named_shapes({"b": jnp.zeros(2), "a": (1.0,)}) == (("a.0", ()), ("b", (2,)))


def test_a_loaded_policy_can_be_compiled(uninterrupted):
    policy = jc.load_policy(uninterrupted.directory)
    assert hash(policy) == hash(policy) and policy == policy and policy != policy.replace(bounds=None)
    with pytest.raises(ValueError, match="has memory: call step"):
        jax.jit(policy)(jax.random.key(0), jnp.zeros(3))


def test_a_network_of_ones_own_needs_its_agent(copy):
    config = json.loads((copy / "config.json").read_text())
    config["policy"]["network"]["type"] = "Transformer"
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"a Transformer, .* give load_policy\(agent=...\)"):
        jc.load_policy(copy)
    assert jc.load_policy(copy, agent=agent_with_everything()).network.memory
