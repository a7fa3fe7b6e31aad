"""Pictures: written where asked, every axis named, one mark per thing that is to be seen."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from jaxcredit.evaluation.plots import COLOURS, credit_picture, curves_from_frame, heat_map, learning_curves
from jaxcredit.evaluation.statistics import bootstrap_interval, iqm

RNG = np.random.default_rng(3)
STEPS = np.arange(1, 6) * 16
CURVES = {"RUDDER": (STEPS, RNG.random((8, 5)) + 1), "GAE": (STEPS[:3], RNG.random((4, 3)))}


def test_learning_curves_draw_the_interquartile_mean_and_its_interval(tmp_path):
    path = tmp_path / "new" / "curves.png"
    figure = learning_curves(CURVES, path, ylabel="treasure fraction", title="Long " * 30, threshold=0.9)
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("episodes", "treasure fraction")
    lines = {line.get_label(): line for line in axes.lines}
    for label, (steps, values) in CURVES.items():
        np.testing.assert_array_equal(lines[label].get_xdata(), steps)
        np.testing.assert_allclose(lines[label].get_ydata(), iqm(values.T), rtol=1e-12)
    assert len(axes.lines) == 3 and list(axes.lines[-1].get_ydata()) == [0.9, 0.9]
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    interval = bootstrap_interval(CURVES["RUDDER"][1].T[:, None])
    assert (band.min(), band.max()) == pytest.approx((interval.low.min(), interval.high.max()))
    with Image.open(path) as picture:
        assert picture.width >= 1200


def test_names_stand_at_the_ends_without_touching():
    same_end = {f"method {i}": (STEPS, np.ones((2, 5))) for i in range(4)}
    figure = learning_curves(same_end, ylabel="return", logx=True)
    (axes,) = figure.axes
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert axes.get_xscale() == "log" and len(boxes) == 4
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert [to_hex(line.get_color()).upper() for line in axes.lines] == list(COLOURS[:4])
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)


def test_curves_from_a_long_table():
    rows = [("b", 0, 10, 1.0), ("b", 0, 20, 3.0), ("b", 1, 20, 8.0), ("b", 1, 10, 6.0), ("a", 0, 10, 5.0)]
    frame = pd.DataFrame(rows, columns=["method", "seed", "episodes", "score"])
    curves = curves_from_frame(frame, "score")
    assert list(curves) == ["b", "a"]
    steps, values = curves["b"]
    assert steps.tolist() == [10, 20] and values.tolist() == [[1, 3], [6, 8]]
    shifted = frame.assign(episodes=frame.episodes + 4 * frame.seed)
    steps, values = curves_from_frame(shifted, "score")["b"]
    assert steps.tolist() == [12, 22]
    np.testing.assert_allclose(values, [[1.4, 3], [6, 7.6]])


def test_credit_picture_colours_decisive_steps_and_leaves_padding_out(tmp_path):
    reward, redistributed = np.zeros((5, 2)), np.arange(10.0).reshape(5, 2)
    mask = np.ones((5, 2), bool)
    mask[3:, 1] = False
    reward[3:, 1] = np.nan
    key = np.zeros((5, 2), bool)
    key[[0, 4], 0] = True
    figure = credit_picture(
        tmp_path / "credit.png",
        reward=reward,
        redistributed=redistributed,
        advantage=-redistributed,
        decisive={"takes the key": key},
        mask=mask,
        labels=["first", "second"],
        title="where credit lands",
    )
    assert (tmp_path / "credit.png").exists()
    grid = np.array(figure.axes).reshape(3, 2)
    assert [axes.get_title("left") for axes in grid[0]] == ["first", "second"]
    assert [axes.get_ylabel() for axes in grid[:, 0]] == ["reward", "redistributed\nreward", "advantage"]
    assert [axes.get_xlabel() for axes in grid[-1]] == ["step", "step"]
    everything, decisive = grid[1, 0].containers
    assert [bar.get_height() for bar in everything] == [0, 2, 4, 6, 8]
    assert [(round(bar.get_x() + 0.4), bar.get_height()) for bar in decisive] == [(0, 0), (4, 8)]
    assert [bar.get_height() for bar in grid[2, 1].containers[0]] == [-1, -3, -5]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["takes the key"]


def test_heat_map_writes_every_cell_and_frames_the_best(tmp_path):
    values = np.array([[0.1, np.nan, 1234.0], [0.3, 0.25, 7.0]])
    labels = {"xlabel": "lam", "ylabel": "learning rate", "label": "return"}
    figure = heat_map(values, [0.0, 0.5, 1.0], ["1e-3", "1e-2"], tmp_path / "map.png", **labels)
    axes, bar = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel(), bar.get_ylabel()) == ("lam", "learning rate", "return")
    assert [text.get_text() for text in axes.texts] == ["0.1", "1,234", "0.3", "0.25", "7"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "0.5", "1"]
    (frame,) = axes.patches
    assert frame.get_xy() == (1.5, -0.5)
    assert (tmp_path / "map.png").exists()


ARRAY = np.zeros((4, 2))
CREDIT = {"reward": ARRAY, "redistributed": ARRAY, "advantage": ARRAY, "decisive": {}, "mask": ARRAY == 0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: learning_curves({}, ylabel="y"), "at least one curve"),
        (lambda: learning_curves({"GAE": (STEPS, ARRAY)}, ylabel="y"), r"curve of GAE must be .* \(5,\), \(4, 2\)"),
        (lambda: learning_curves({"GAE": (STEPS[:2], ARRAY * np.nan)}, ylabel="y"), "NaN"),
        (lambda: curves_from_frame(pd.DataFrame({"seed": [0]}), "score"), "lacks score, episodes, method"),
        (lambda: credit_picture(**{**CREDIT, "advantage": ARRAY[:3]}), r"'advantage': \(3, 2\)"),
        (lambda: credit_picture(**CREDIT, labels=["one"]), "1 labels for 2 episodes"),
        (lambda: heat_map(ARRAY, [1], [2], xlabel="", ylabel="", label=""), r"need \(1, 1\)"),
        (lambda: heat_map([[np.nan]], [1], [2], xlabel="", ylabel="", label=""), "every value is NaN"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_seeds_of_different_length_are_refused():
    frame = pd.DataFrame({"method": "GAE", "seed": [0, 0, 1], "episodes": [1, 2, 1], "score": 0.0})
    with pytest.raises(ValueError, match=r"Seeds of GAE have different numbers of points, \[1, 2\]"):
        curves_from_frame(frame, "score")
