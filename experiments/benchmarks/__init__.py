"""Speed, as ratios between programs that alternate in one process."""
