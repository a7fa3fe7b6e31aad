"""The vocabulary that every method shares: trajectories, estimators, small exact decision processes."""
