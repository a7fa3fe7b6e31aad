"""Set-up of every test process: CPU, shapes and types checked at every call, the same random examples each time."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
from jaxtyping import install_import_hook

install_import_hook(["jaxcredit", "envs"], "type_checks.check_functions")

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("repeatable")
