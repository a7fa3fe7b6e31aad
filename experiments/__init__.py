"""One module per claim or table: `python -m experiments.NAME`; results are committed in `experiments/results/`."""
