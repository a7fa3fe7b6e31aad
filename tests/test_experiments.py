"""The experiments' numbers, where they are exact or quick: from the sources named in their modules."""

import numpy as np
import pandas as pd
import pytest

from experiments import credit_map, credit_noise

# signal to noise (dB) of the first state's gradient under the uniform policy: facts of arXiv:2306.16803's task
SHORT = {"REINFORCE": -45.42, "HCA+": -40.73, "Advantage": -39.50, "TrajCV": -36.12, "COCOA-reward": -11.76}
# variance (dB) of the tree's gradient
TREE = {
    0: {"REINFORCE": 16.03, "Advantage": 15.99, "HCA+": 16.03, "COCOA, 1 groups": 11.98, "COCOA, 4 groups": 12.82},
    6: {"REINFORCE": 15.14, "Advantage": 15.10, "HCA+": 13.54, "COCOA, 1 groups": 11.02, "COCOA, 4 groups": 11.87},
}


def test_signal_to_noise_of_key_to_door():
    signal, noise = credit_noise.first_state_noise(23, 32_768, seed=0)
    np.testing.assert_allclose(np.sqrt(signal), 0.01083, atol=6e-6)
    for name, expected in SHORT.items():
        mean, error = noise[name]
        tolerance = 0.05 + 4 * 10 / np.log(10) * error / mean
        assert abs(10 * np.log10(signal / mean) - expected) < tolerance, name


@pytest.mark.parametrize("overlap", TREE)
def test_variance_of_the_tree(overlap):
    result = credit_noise.tree_variance(overlap, (1, 4))
    for name, expected in TREE[overlap].items():
        assert abs(result[name] - expected) < 0.05, name
        assert result[f"{name}.bias"] < 1e-10, name


def test_cells_of_the_map_are_distinct_and_possible():
    for plan in (credit_map.FULL, credit_map.QUICK):
        cells = plan.cells()
        assert len({tuple(cell.values()) for cell in cells}) == len(cells)
        assert all(cell["breadth"] <= cell["depth"] for cell in cells)


def test_scores_of_the_map_count_what_was_learned_beyond_chance():
    plan = credit_map.QUICK
    rows = [
        {"method": "half", **cell, "treasure": 0.625, "gradient.bias": 0.25, "decisive_share": 0.4,
         "rank_correlation": -0.1} for cell in plan.cells()
    ]  # fmt: skip
    (score,) = credit_map.scores(pd.DataFrame(rows), plan).to_dict("records")
    expected = {"depth": 0.5, "breadth": 0.5, "density": 0.5, "unbiased": 0.75, "placed": 0.4, "ordered": 0.0}
    assert {name: round(score[name], 6) for name in expected} == expected
