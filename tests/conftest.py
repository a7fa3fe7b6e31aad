"""Set-up of every test process: CPU, shapes and types checked at every call, the same random examples each time."""

import os
from pathlib import Path

import hypothesis
import jaxtyping
import pytest

import own_process

CACHE = Path(__file__).parents[1] / ".pytest_cache" / "compiled"

# Read by jax when it is imported, here and in the processes that tests start.  One cache for each worker, since two
# that write the same entry would disturb each other.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", own_process.QUICK_TO_COMPILE.format(level=0))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE / os.environ.get("PYTEST_XDIST_WORKER", "single")))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

jaxtyping.install_import_hook(["jaxcredit", "envs"], "type_checks.check_functions")

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture
def no_type_checks():
    """For tests of what the library itself says to an argument of the wrong type."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the files that take longest, so that no worker is left alone with one of them at the end."""
    longest = ("test_readme.py", "test_notebooks.py", "test_cli.py", "test_train.py", "test_learning.py")
    items.sort(key=lambda item: item.path.name not in longest)
