"""What a run shows and writes: the right words in the progress line, curves without gaps, settings as JSON."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxcredit as jc
from jaxcredit.training import logging
from jaxcredit.training.logging import Progress, Report, curves_of, describe, finite_interval, finite_iqm, print_table


def test_lines_tell_rate_and_time_left(monkeypatch, capsys):
    clock = iter(np.arange(0.0, 1000.0, 6.0))
    monkeypatch.setattr(logging.time, "monotonic", lambda: next(clock))
    with Progress(runs=2) as progress:
        for done in range(5):
            progress(Report("rudder", done, 4, 0, seconds=30.0 * done, rate=12345.6, episode_return=0.5))
    lines = capsys.readouterr().err.splitlines()
    assert 1 < len(lines) < 5, "one line every ten seconds, not every report"
    assert all("rudder" in line and "12,346 steps/s  return 0.5" in line for line in lines[1:])
    # half of this run, 60 s, is left, and the other run as a whole
    half = next(line for line in lines if " 25% " in line)
    minutes, seconds = map(int, half.split()[-2].split(":"))
    assert 60 * minutes + seconds > 60 + 60


def test_long_times_have_hours():
    assert [logging._duration(s) for s in (0.2, 61, 3600 + 62)] == ["0:01", "1:01", "1:01:02"]


def test_values_that_are_no_numbers_are_left_out():
    assert finite_iqm([1.0, np.nan, 3.0]) == 2.0
    assert math.isnan(finite_iqm([np.nan])) and math.isnan(finite_interval([np.inf]).low)


def curve_frame(*curves):
    rows = [("a", seed, p, 10 * p, v) for seed, curve in enumerate(curves) for p, v in enumerate(curve)]
    return pd.DataFrame(rows, columns=["method", "seed", "point", "episodes", "score"])


def test_curves_are_filled_inside_and_cut_outside():
    nan = np.nan
    curves = curves_of(curve_frame([nan, 1, nan, 3, 4], [0, 0, 0, 0, nan], [nan] * 5), "score", x="episodes")
    steps, values = curves["a"]
    assert steps.tolist() == [10, 20, 30]
    assert values.tolist() == [[1, 2, 3], [0, 0, 0]]


def test_curves_end_where_the_shortest_does():
    steps, values = curves_of(curve_frame([1, 2, 3], [4, 5]), "score", x="episodes")["a"]
    assert steps.tolist() == [0, 10] and values.tolist() == [[1, 2], [4, 5]]


def test_nothing_to_draw_is_no_curve():
    assert curves_of(curve_frame([np.nan, np.nan]), "score", x="episodes") == {}


def test_settings_are_json():
    chain = jc.chain(jc.RUDDER(hidden=3), jc.GAE(gamma=jnp.float32(0.5)))
    told = json.loads(json.dumps(describe({"credit": chain, "limit": float("inf"), "f": np.mean})))
    first, second = told["credit"]["members"]
    assert (first["type"], first["hidden"], second["gamma"]) == ("RUDDER", 3, 0.5)
    assert (told["limit"], told["f"]) == ("inf", "mean")


def test_tables_print_what_looks_like_markup(capsys):
    print_table("Title [bold]", [("[red]", 1)], ["name", "value"])
    out = capsys.readouterr().out
    assert "Title [bold]" in out and "[red]" in out and "value" in out


def test_a_directory_without_metrics_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"neither metrics\.parquet nor metrics\.csv"):
        logging.read_metrics(tmp_path)


def test_batches_that_have_just_begun_are_not_read_yet(tmp_path):
    for part in ("seeds_00000-00001", "seeds_00002-00003"):
        (tmp_path / part).mkdir()
    curve_frame([1, 2]).to_csv(tmp_path / "seeds_00000-00001" / "metrics.csv", index=False)
    assert len(logging.read_metrics(tmp_path)) == 2


def test_processes_of_different_settings_are_refused():
    logging.require_alike(['{"total_steps": 8}'])
    with pytest.raises(ValueError, match=r"Process 1 was given other settings .* total_steps is 8 there and 9 here"):
        logging.require_alike(['{"total_steps": 8}', '{"total_steps": 9}'])
    with pytest.raises(ValueError, match=r"keys is of 1 seeds there and of 2 seeds here"):
        logging.require_alike(['{"keys": [[0, 1]]}', '{"keys": [[0, 1], [2, 3]]}'])
    with pytest.raises(ValueError, match=r"keys is of other random keys there and here"):
        logging.require_alike(['{"keys": [[0, 1]]}', '{"keys": [[0, 2]]}'])


def test_other_devices_and_other_batches_are_told(tmp_path):
    logging.claim(tmp_path, {"seeds_at_a_time": 2})
    with pytest.raises(ValueError, match=r"memory_limit \(--memory-limit\).*seeds_at_a_time is 2 there and 5 here"):
        logging.require_same(tmp_path, {"seeds_at_a_time": 5})
    config = json.loads((tmp_path / "config.json").read_text()) | {"devices": ["cpu", "cpu", "gpu"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match=r"was begun on 2 x cpu, 1 x gpu, and this is \d+ x cpu"):
        assert logging.require_same(tmp_path, {"seeds_at_a_time": 2})


@pytest.mark.parametrize("below", ["file", "file/runs/first"])
def test_a_directory_that_cannot_be_made_is_said(tmp_path, below):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot be made, for .*file is a file"):
        logging.require_free(tmp_path / below)
    with pytest.raises(ValueError, match=r"cannot be made, for .*file is a file"):
        logging.require_same(tmp_path / below, {})


def test_provenance_names_the_command_without_the_folders_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / "study" / "run.py"), "--seeds", "2"])
    assert logging.provenance()["command"] == ["study/run.py", "--seeds", "2"]
    monkeypatch.setattr("sys.argv", ["/somewhere/else/jaxcredit/__main__.py", "train"])
    assert logging.provenance()["command"] == ["jaxcredit", "train"]
    monkeypatch.setattr("sys.argv", ["/somewhere/else/bin/jaxcredit", "train"])
    assert logging.provenance()["command"] == ["jaxcredit", "train"]
