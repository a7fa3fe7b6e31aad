"""Weights & Biases: what is sent, seen by a stand-in for the package."""

import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from jaxcredit.training.tracking import Tracker

CONFIG = {"label": "PPO on Nothing", "seeds": [0, 1], "agent": {"learning_rate": 0.1}}
ROWS = pd.DataFrame({"seed": [0, 1], "point": 0, "valid_steps": [10, 20], "entropy": [1.0, 3.0], "loss": [np.nan] * 2})


@pytest.fixture
def sent(monkeypatch):
    """Everything that reaches the package."""
    calls = []
    run = SimpleNamespace(
        log=lambda values, step: calls.append((step, values)),
        finish=lambda: calls.append("finished"),
        summary=SimpleNamespace(update=calls.append),
    )

    def init(**settings):
        calls.append(settings)
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    return calls


def test_points_and_the_summary_are_sent(sent, tmp_path):
    with Tracker("credit", CONFIG, tmp_path) as tracker:
        tracker.add(ROWS)
        tracker.finish(pd.DataFrame({"seed": [0, 1], "eval.episode_return": [2.0, 4.0], "loss": 1.0}))
    settings, point, summary, end = sent
    assert (settings["project"], settings["group"], settings["dir"]) == ("credit", "PPO on Nothing", tmp_path)
    assert settings["config"] == CONFIG and settings["resume"] == "allow"
    assert point == (15, {"entropy/iqm": 2.0, "entropy/mean": 2.0})
    assert summary == {"eval.episode_return": 3.0} and end == "finished"


def test_a_resumed_run_has_the_same_name_and_another_one_not(sent):
    for config in (CONFIG, CONFIG, CONFIG | {"seeds": [2, 3]}):
        Tracker("credit", config, None)
    names = [settings["id"] for settings in sent]
    assert names[0] == names[1] != names[2]


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"pip install 'jaxcredit\[wandb\]'"):
        Tracker("credit", CONFIG, None)
