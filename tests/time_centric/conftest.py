"""Shared by the tests of the time-centric room."""

import jaxtyping
import pytest


@pytest.fixture
def no_type_hook():
    """Let the library's own checks speak where the type-checking hook of the tests would speak first."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
