"""Agents: what collects experience, asks an estimator for credit, and learns from it."""
