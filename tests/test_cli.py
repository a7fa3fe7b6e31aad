"""The command line, called in this process as the shell would call it."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from PIL import Image

import envs
from envs.wrappers import PreviousAction
from jaxcredit.cli import load_estimator, main, told_apart
from jaxcredit.training.compare import Comparison

TINY = ["--agent", "a2c", "--seeds", "2", "--eval-episodes", "4", "--set", "num_steps=4"]
MINE = """
from flax import struct
import jaxcredit as jc

@struct.dataclass
class Mine(jc.CreditEstimator):
    scale: float = 1.0

    def assign(self, key, state, trajectory, *, context=None):
        return trajectory.replace(advantage=self.scale * trajectory.reward)

@struct.dataclass
class Halves(Mine):
    def assign(self, key, state, trajectory, *, context=None):
        return trajectory.replace(reward=trajectory.reward / 2)

class Bare(Mine):
    pass

def halved():
    return jc.chain(Halves(), Mine())

instance = Mine(scale=2.0)
number = 3
"""


def fails(capsys, *arguments, code=2):
    """The message of a command that must end with this exit code, on standard error alone."""
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert stop.value.code == code and out == "" and err.startswith("jaxcredit: ") and err.count("\n") == 1
    return err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory to work in, which holds an estimator of the user's own."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "mine.py").write_text(MINE)
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    patch.setattr(sys, "path", [*sys.path])
    yield folder
    patch.undo()
    sys.modules.pop("mine", None)


@pytest.fixture(scope="module")
def compared(folder):
    """The main job in small: a credit that rewrites rewards against one with memory, tuned by a settings file."""
    settings = {
        "mine:halved": {"credit.0.scale": 3, "learning_rate": 0.5, "hidden": []},
        "gae+gru": {"memory": 2, "hidden": [2]},
        "rudder": {"credit.0.hidden": 8},
    }
    (folder / "tuned.json").write_text(json.dumps(settings))
    main([
        "compare", "--env", "DelayedKeyToDoor", "--env-params", "length=3", "--credits", "mine:halved", "gae+gru",
        "--episodes", "48", "--settings", "tuned.json", "--directory", "compared", *TINY,
    ])  # fmt: skip
    return folder / "compared"


def test_compare_writes_tables_and_pictures(compared):
    frame = pd.read_parquet(compared / "metrics.parquet")
    assert list(frame["method"].unique()) == ["mine:halved", "gae+gru"]
    assert frame.groupby("method")["episodes"].max().tolist() == [48, 48]
    summary = pd.read_csv(compared / "summary.csv").set_index("method")
    assert (summary["seeds"] == 2).all() and summary["treasure"].between(0, 1).all()
    assert (summary["return.low"] <= summary["return"]).all() and "ratio.high" in summary
    for picture in ("curves.png", "credit.png"):
        with Image.open(compared / picture) as image:
            assert image.width > 500
    assert (compared / "mine_halved" / "metrics.csv").exists()


def test_compare_follows_its_flags_and_its_settings_file(compared):
    agents = json.loads((compared / "config.json").read_text())["agents"]
    mine, rival = agents["mine:halved"], agents["gae+gru"]
    assert [mine["type"], mine["num_envs"], mine["hidden"], mine["log_info"]] == ["A2C", 16, [], ["treasure"]]
    assert mine["credit"]["members"][0] == {"type": "Halves", "scale": 3.0} and mine["learning_rate"] == 0.5
    assert rival["learning_rate"] == 1e-3 and rival["credit"]["type"] == "GAE"
    assert rival["env"]["type"] == "PreviousAction" and (rival["memory"], mine["memory"]) == (2, 0)
    assert rival["env_params"]["length"] == 3


def test_comparisons_print_one_row_per_method():
    columns = {
        "method": ["ours", "theirs"], "seeds": 8, "failed": 0, "return": [1.0, np.nan], "return.low": 0.5,
        "return.high": 1.5, "episodes": [1600.0, 3200.0], "episodes.low": 1500.0, "episodes.high": 3200.0,
        "censored": [1, 5], "ratio": [1.0, 2.0], "ratio.low": 1.0, "ratio.high": 2.0, "compile_seconds": 2.5,
        "run_seconds": 10.0,
    }  # fmt: skip
    title, (ours, theirs), headings = Comparison(pd.DataFrame(columns), pd.DataFrame(), {}, None).printable()
    assert "8 seeds" in title and headings == ["method", "return", "episodes", "ratio", "compile s", "run s"]
    assert ours == ["ours", "1 [0.5, 1.5]", "1,600 [1,500, 3,200] (1 never)", "1 [1, 2]", "2.5", "10.0"]
    assert theirs == ["theirs", "-", "> 3,200 (5 never)", "> 2", "2.5", "10.0"]


@pytest.fixture(scope="module")
def trained(folder):
    main(["train", "--env", "ProbeAction", "--total-steps", "256", "--directory", "trained", *TINY, "hidden=()"])
    return folder / "trained"


def test_train_writes_a_run(trained, capsys):
    assert len(pd.read_csv(trained / "summary.csv")) == 2
    assert json.loads((trained / "config.json").read_text())["agent"]["num_steps"] == 4


def test_train_without_evaluation_goes_on_where_it_ended(folder, capsys):
    train = ["train", "--env", "ProbeAction", "--total-steps", "256", "--directory", "unjudged"]
    settings = ["--agent", "a2c", "--seeds", "2", "--eval-episodes", "0", "--set", "num_steps=4", "episodic=False"]
    for resume in ([], ["--resume"]):
        main([*train, *resume, *settings, "hidden=2"])
        assert capsys.readouterr().out.startswith("compiled in")
    assert "eval_episodes is 0 there and 256 here" in fails(capsys, *train, "--resume")


def test_plot_puts_runs_and_comparisons_into_one_figure(trained, compared, capsys):
    main(["plot", str(trained), str(compared), "--x", "valid_steps", "--output", "both.png"])
    assert capsys.readouterr().out.strip() == "both.png"
    with Image.open("both.png") as image:
        assert image.width > 500
    assert "'episode_retrun'" in fails(capsys, "plot", str(trained), "--metric", "episode_retrun")


def test_plot_tells_runs_of_equal_name_apart(trained, monkeypatch):
    drawn = []
    shutil.copytree(trained, "later/trained")
    monkeypatch.setattr("jaxcredit.cli.learning_curves", lambda curves, *rest, **options: drawn.extend(curves))
    main(["plot", str(trained), "later/trained"])
    assert drawn == [f"{trained.parent.name}/trained", "later/trained"]


def test_names_are_the_shortest_that_differ(folder):
    paths = [Path(path) for path in ("a/x", "b/x", "b/y", "c/../a/x")]
    assert list(told_apart(paths)) == ["a/x", "b/x", "y"]
    assert list(told_apart([Path("/x"), Path("/a/x")])) == ["/x", "a/x"]


def test_sweep_prints_and_draws_every_point(folder, capsys):
    main([
        "sweep", "--env", "ProbeAction", "--values", "learning_rate=0.01,0.1", "credit.lam=0.5,1",
        "--directory", "swept", "--total-steps", "256", "--metric", "episode_return", *TINY, "hidden=()",
        "--eval-episodes", "0",
    ])  # fmt: skip
    out = capsys.readouterr().out
    assert "episode_return" in out and len([line for line in out.splitlines() if "[" in line]) == 5
    frame = pd.read_csv("swept/sweep.csv")
    assert len(frame) == 8 and sorted(frame["learning_rate"].unique().round(4)) == [0.01, 0.1]
    with Image.open("swept/heat_map.png") as image:
        assert image.width > 300


def test_a_credit_brings_the_memory_that_it_reads(folder, capsys):
    """tvt+memory trains; the network is set by its fields, and sees the previous action."""
    sizes = ["network.rows=4", "network.top_k=2", "network.units=2", "network.width=2", "network.hidden=()"]
    main([
        "train", "--env", "ProbeAction", "--credit", "tvt+memory", "--total-steps", "128", "--directory", "remembers",
        *TINY, *sizes,
    ])  # fmt: skip
    assert "episode_return" in capsys.readouterr().out
    agent = json.loads(Path("remembers/config.json").read_text())["agent"]
    assert agent["network"]["type"] == "MemoryActorCritic" and agent["network"]["rows"] == 4
    assert agent["env"]["type"] == "PreviousAction" and agent["memory"] == 0


def test_list_shows_what_there_is_and_how_it_is_set(capsys):
    main(["list"])
    out = capsys.readouterr().out
    assert all(name in out for name in ("rudder", "montecarlo", "ppo", "GRU", "+memory", "CartPole-v1", "brax:hopper"))
    settings = {"ppo": "epochs", "rudder": "credit.0.hidden", "gae": "credit.lam", "KeyToDoor": "length"}
    settings |= {"tvt": "credit.0.threshold", "trt": "credit.credit.lam", "sr": "credit.0.capacity"}
    settings["shaping"] = "credit.0.predictor.hidden"
    for name, setting in settings.items():
        main(["list", name])
        assert setting in capsys.readouterr().out


def test_own_estimators_come_as_instance_or_class(folder):
    assert load_estimator("mine:instance").scale == 2.0
    assert load_estimator("mine:Mine").scale == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "ruder"], "no environment, agent or credit 'ruder'. Near it: rudder"),
        (["train", "--env", "CartPol-v1"], "CartPole-v1"),
        (["train", "--env", "ProbeAction", "--credit", "gea"], "no credit 'gea'. Near it: gae"),
        (["train", "--env", "ProbeAction", "--credit", "gae+lstm"], "gae+gru and gae+memory are"),
        (["train", "--env", "ProbeAction", "--credit", "tvt"], "needs a network that reads a memory"),
        (["fidelity", "--env", "CreditMaze", "--credits", "tvt+memory"], "leave out +gru and +memory"),
        (["train", "--env", "ProbeAction", "--credit", "gae+memory", "--set", "network.row=2"], "did you mean rows"),
        (["train", "--env", "ProbeAction", "--credit", "mine:Nothing"], "mine:Nothing cannot be loaded"),
        (["train", "--env", "ProbeAction", "--credit", "mine:number"], "must be a CreditEstimator"),
        (["train", "--env", "ProbeAction", "--credit", "mine:Bare"], "Bare is no pytree"),
        (["train", "--env", "ProbeAction", "--set", "learning_rat=1"], "did you mean learning_rate"),
        (["train", "--env", "ProbeAction", "--set", "learning_rate=fast"], "learning_rate='fast' is not allowed"),
        (["train", "--env", "ProbeAction", "--set", "num_envs=2.5"], "num_envs=2.5 is not allowed"),
        (["train", "--env", "ProbeAction", "--set", "num_envs"], "'num_envs' is not of the form NAME=VALUE"),
        (["train", "--env", "ProbeAction", "--env-params", "rewrad=1"], "Did you mean reward"),
        (["train", "--env", "ProbeAction", "--seeds", "0"], "--seeds 0 is not allowed"),
        (["compare", "--env", "ProbeAction", "--settings", "absent.json"], "absent.json does not exist"),
        (["compare", "--env", "ProbeAction", "--settings", "broken.json"], "is no JSON"),
        (["compare", "--env", "ProbeAction", "--credits", "gae", "gae"], "each once"),
        (["train", "--env", "DelayedKeyToDoor", "--env-params", "length=abc"], "must be a finite number"),
        (["sweep", "--env", "ProbeAction", "--values", "nonsense=1", "--directory", "free"], "no field 'nonsense'"),
        (
            ["sweep", "--env", "ProbeAction", "--values", "clip=1", "--metric", "retrun", "--directory", "free"],
            "'retrun'",
        ),
        (["compare", "--env", "ProbeAction", "--settings", "typo.json"], "no credit in typo.json 'rudderr'. Near it"),
        (["compare", "--env", "ProbeAction", "--settings", "path.json"], "did you mean learning_rate"),
        (["compare", "--env", "ProbeAction", "--measure", "treasure"], "choose episode_return"),
        (["compare", "--env", "Pendulum-v1", "--credits", "gae+gru"], "discrete actions"),
        (["sweep", "--env", "ProbeAction", "--values", "horizon=1,2"], "cannot be swept"),
        (["sweep", "--env", "ProbeAction", "--values", "learning_rate=a"], "must be numbers"),
        (["plot", "nowhere"], "nowhere holds neither"),
        (["train", "--env", "ProbeAction", "--resume"], "give --directory"),
    ],
)
def test_errors_are_one_paragraph(folder, capsys, arguments, message):
    (folder / "typo.json").write_text('{"rudderr": {}}')
    (folder / "path.json").write_text('{"gae": {"learning_rat": 1}}')
    (folder / "broken.json").write_text("{")
    assert message in fails(capsys, *arguments)
    assert not (folder / "free").exists()


def test_what_cannot_be_written_is_one_paragraph(folder, capsys):
    sweep = ["sweep", "--env", "ProbeAction", "--values", "clip=1", "--directory", "/proc/nowhere"]
    assert "/proc/nowhere" in fails(capsys, *sweep, code=1)


def test_the_package_is_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["jaxcredit", "list", "gae"])
    runpy.run_module("jaxcredit", run_name="__main__")
    assert "credit.lam" in capsys.readouterr().out


def test_a_directory_is_not_used_twice(trained, capsys):
    assert "already holds a run" in fails(capsys, "train", "--env", "ProbeAction", "--directory", "trained")


def test_previous_action_is_appended_and_gone_after_a_reset():
    env, params = envs.make("ProbeDelay", num_actions=2)
    seen = PreviousAction(env)
    key = jax.random.key(0)
    first, state = seen.reset(key, params)
    assert first.tolist() == [0, 0, 0] and seen.observation_space(params).shape == (3,)
    second, state, *_ = seen.step(key, state, 1, params)
    assert second.tolist() == [1, 0, 1]
    third, _, _, terminated, _, info = seen.step(key, state, 0, params)
    assert terminated and third.tolist() == [0, 0, 0] and info["final_observation"][1:].tolist() == [1, 0]
    with pytest.raises(ValueError, match="PreviousAction encodes discrete actions"):
        PreviousAction(envs.make("Pendulum-v1")[0])


def test_fidelity_prints_a_table_and_draws_the_picture(folder, capsys):
    main([
        "fidelity", "--env", "CreditMaze", "--env-params", "depth=3", "breadth=1", "--credits", "gae", "mine:instance",
        "--policy", "optimal", "--fit-episodes", "64", "--episodes", "32", "--repeats", "2", "--directory", "judged",
    ])  # fmt: skip
    printed = capsys.readouterr().out
    assert "gradient.snr_db" in printed and "mine:instance" in printed
    frame = pd.read_csv(folder / "judged" / "fidelity.csv")
    assert list(frame["credit"]) == ["gae", "mine:instance"] and frame["decisive_share"].between(0, 1).all()
    with Image.open(folder / "judged" / "fidelity.png") as image:
        assert image.width > 500


def test_fidelity_says_what_is_wrong(folder, capsys):
    assert "no table" in fails(capsys, "fidelity", "--env", "CartPole-v1")
    assert "--repeats 0" in fails(capsys, "fidelity", "--env", "CreditMaze", "--repeats", "0")
