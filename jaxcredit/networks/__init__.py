"""Flax linen modules: pure `init` / `apply` pairs used by agents and learned estimators."""
