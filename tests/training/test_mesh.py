"""Seeds over devices, processes and batches: the same curves as on one device, whatever the arrangement."""

import json
import subprocess
import sys
from unittest.mock import create_autospec

import jax
import numpy as np
import pandas as pd
import pytest

import jaxcredit as jc
from jaxcredit.training.logging import read_metrics
from jaxcredit.training.mesh import GIB, seeds_that_fit
from jaxcredit.training.programs import compile_programs
from tests.support.own_process import environment
from tests.support.shared_run import SEEDS, shared_run, small_agent

EIGHT_DEVICES = "--xla_force_host_platform_device_count=8"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run on one device, in one batch."""
    return shared_run(tmp_path_factory.mktemp("alone") / "run")


def start(*arguments, flags=""):
    settings = environment(level=0)
    settings["XLA_FLAGS"] += " " + flags
    command = [sys.executable, "-m", "tests.support.shared_run", *map(str, arguments)]
    return subprocess.Popen(command, env=settings, stderr=subprocess.PIPE, text=True)


def finish(process):
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]


def assert_same_curves(frame, expected):
    frame = frame.sort_values(["point", "seed"], ignore_index=True)
    pd.testing.assert_frame_equal(frame, expected, rtol=1e-4, atol=1e-5)


def test_eight_devices_give_the_curves_of_one(alone, tmp_path):
    """Seeds split over devices (with a resume between), then the environments of each seed."""
    finish(start(tmp_path / "run", flags=EIGHT_DEVICES))
    assert_same_curves(read_metrics(tmp_path / "run"), alone.frame)
    assert json.loads((tmp_path / "run/config.json").read_text())["seeds_at_a_time"] == 8
    assert_same_curves(read_metrics(tmp_path / "run_split"), alone.frame)


def test_two_processes_give_the_curves_of_one(alone, tmp_path):
    first, second = (start(tmp_path / "run", "127.0.0.1:45673", process) for process in (0, 1))
    finish(first)
    finish(second)
    assert sorted(path.name for path in (tmp_path / "run").glob("seeds_*")) == [
        "seeds_00000-00002",
        "seeds_00003-00004",
    ]
    assert_same_curves(read_metrics(tmp_path / "run"), alone.frame)
    assert jc.load_policy(tmp_path / "run", seed=4).params


def test_seeds_that_do_not_fit_follow_in_batches_of_one_program(alone, tmp_path):
    programs = compile_programs(jc.as_arrays(small_agent()), jax.random.split(jax.random.key(5), SEEDS), 1, 0, None)
    limit = 0.5 * programs.bytes / GIB

    def stop(report):
        if report.done == 6:  # in the second batch of seeds
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shared_run(tmp_path, memory_limit=limit, progress=stop, checkpoint_seconds=0.0)
    assert len(list(tmp_path.glob("seeds_*"))) == 2
    reports = []
    result = shared_run(tmp_path, memory_limit=limit, progress=reports.append, resume=True)
    assert [(report.done, report.total) for report in reports[1:]] == [(done, 12) for done in range(7, 13)]
    folders = sorted(path.name for path in tmp_path.glob("seeds_*"))
    assert folders == ["seeds_00000-00001", "seeds_00002-00003", "seeds_00004-00004"]
    assert_same_curves(result.frame, alone.frame)
    pd.testing.assert_frame_equal(result.summary, alone.summary, rtol=1e-4, atol=1e-5)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "metrics.parquet"), result.frame)
    for one, other in zip(jax.tree.leaves(result.state.params), jax.tree.leaves(alone.state.params), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="seeds_at_a_time is 2 there and 5 here"):
        shared_run(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("number", "devices", "limit", "expected"),
    [
        (32, 1, None, 32),  # a CPU does not say what memory it has
        (32, 1, 4.0, 32),
        (30, 1, 1.0, 6),  # 7 fit: 5 batches of 6, not 4 of 7 and one of 2
        (33, 1, 1.0, 7),  # 5 batches of 7, not 4 of 8 and one of 1
        (5, 8, None, 8),
        (100, 8, 1.0, 24),  # 4 GiB for 13 seeds on each device: 3 at a time
    ],
)
def test_batches_fill_the_memory_evenly(number, devices, limit, expected):
    assert seeds_that_fit(number, 4 * GIB, devices, limit) == expected


def test_a_seed_that_does_not_fit_is_said():
    with pytest.raises(ValueError, match=r"One seed needs 2 GiB, more than the limit of 1 GiB"):
        seeds_that_fit(2, 4 * GIB, 1, 1.0)


def test_processes_are_named_completely():
    with pytest.raises(ValueError, match="give all three"):
        jc.join_processes("127.0.0.1:1234")


def test_environments_that_cannot_be_split_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "local_device_count", lambda: 3)
    with pytest.raises(ValueError, match="num_envs=8 cannot be split evenly over 3 devices"):
        small_agent(split_environments=True)


def test_a_process_waits_for_slower_ones(monkeypatch):
    """JAX's own patience of five minutes ends them all."""
    initialize = create_autospec(jax.distributed.initialize)
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    jc.join_processes("127.0.0.1:1234", 2, 0)
    assert initialize.call_args.args == ("127.0.0.1:1234", 2, 0)
    assert initialize.call_args.kwargs["shutdown_timeout_seconds"] > 24 * 3600
