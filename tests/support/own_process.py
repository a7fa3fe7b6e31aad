"""The environment of processes that tests start to run examples as a reader would."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Compiling is what tests wait for.  The newer emitters of fused loops take twice as long at it.
QUICK_TO_COMPILE = "--xla_backend_optimization_level={level} --xla_cpu_use_fusion_emitters=false"


def environment(level: int = 1) -> dict[str, str]:
    """This process's environment, the repository importable, and programs optimised a bit, for they run longer.

    Programs that must compute the same bits as those of the tests need the tests' level, 0.
    """
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "XLA_FLAGS": QUICK_TO_COMPILE.format(level=level),
    }
