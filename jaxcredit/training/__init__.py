"""Training as pure functions (`train`, `sweep`), and the host side around them (`run`, `logging`)."""
