"""What an installation contains, pins and loads."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

LOADED_WHERE_USED = {
    "brax",
    "distrax",
    "gymnax",
    "matplotlib",
    "orbax",
    "pandas",
    "pyarrow",
    "rich",
    "tensorboardX",
    "tyro",
}

IMPORTS = """
import sys
import jax, flax.linen, flax.struct, optax
before = set(sys.modules)
import jaxcredit
print(*set(sys.modules) - before)
"""


def test_import_loads_nothing_heavy_beyond_jax_flax_and_optax():
    """flax itself loads rich; whatever else is in the list must wait until it is used."""
    run = subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert "jaxcredit" in loaded
    assert loaded.isdisjoint(LOADED_WHERE_USED)


def test_every_requirement_is_pinned_within_its_bounds():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = [Requirement(line) for line in lines]
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in pins)
    pinned = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}
    for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), line


@pytest.mark.filterwarnings("default")
def test_wheel_holds_the_two_packages_and_nothing_else(tmp_path):
    source = tmp_path / "source"
    for name in ("jaxcredit", "envs", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, source]
    subprocess.run(build, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = [*ROOT.glob("jaxcredit/**/*.py"), *ROOT.glob("envs/**/*.py"), ROOT / "jaxcredit/py.typed"]
    assert files == {str(path.relative_to(ROOT)) for path in modules}
