"""Redistribution: rewrite a delayed reward as immediate rewards with the same sum."""
