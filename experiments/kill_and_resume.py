"""Runs that are killed, or whose checkpoints are damaged, end as if nothing had happened.

    python -m experiments.kill_and_resume            20 kills (SIGKILL) at random instants, 10 kinds of damage

Each kill: a process is started, killed after a random share of the time that training takes, started again with
resume=True, and what it ends with is compared, bit by bit, with the run that was never killed: training state, curves,
summary.  Each damage: a finished run's latest checkpoint is damaged and the run resumed; it must end the same, from the
checkpoint before, or, where all are damaged, be refused with nothing changed.

Writes experiments/results/kill_and_resume.csv.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pandas as pd
import tyro

import envs
import jaxcredit as jc
from jaxcredit.training.checkpoint import FOLDER, named_arrays

RESULTS = Path("experiments/results/kill_and_resume.csv")
POINTS = 24


def gae() -> jc.PPO:
    env, params = envs.make("CartPole-v1")
    return jc.PPO(env=env, env_params=params, num_envs=8, num_steps=64, normalise_observation=True)


def rudder() -> jc.PPO:
    env, params = envs.make("DelayedKeyToDoor", length=20)
    credit = jc.chain(jc.RUDDER(capacity=512), jc.GAE(lam=0.0))
    return jc.PPO(env=env, env_params=params, credit=credit, num_envs=16, minibatches=1, hidden=(32,))


def recurrent() -> jc.PPO:
    env, params = envs.make("MemoryChain-bsuite", memory_length=5, max_steps_in_episode=7)
    return jc.PPO(env=env, env_params=params, num_envs=8, num_steps=32, hidden=(16,), memory=16, minibatches=2)


AGENTS: dict[str, Callable[[], jc.PPO]] = {"PPO + GAE": gae, "PPO + RUDDER": rudder, "PPO + GAE, GRU": recurrent}


def train(name: str, directory: Path) -> str:
    """Train (or go on), and return a digest of everything that came out."""
    agent = AGENTS[name]()
    keys = jax.random.split(jax.random.key(0), 4)
    steps = 10 * POINTS * agent.num_envs * agent.window
    result = jc.run(
        agent, keys, steps, directory=directory, resume=True, num_points=POINTS, eval_episodes=16,
        progress=False, checkpoint_seconds=0.0,
    )  # fmt: skip
    digest = hashlib.sha256()
    for leaf, array in sorted(named_arrays(result.state).items()):
        digest.update(leaf.encode() + array.tobytes())
    for table in (result.frame, result.summary):
        digest.update(table.to_csv(index=False).encode())
    digest.update((directory / "metrics.csv").read_bytes())
    return digest.hexdigest()


def start(name: str, directory: Path, cache: Path) -> subprocess.Popen[str]:
    """A process that trains and prints the digest."""
    program = f"from experiments.kill_and_resume import *; print(train({name!r}, Path({str(directory)!r})))"
    # compiled programs are kept, so that the kills fall into training and not all into compiling
    settings = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    return subprocess.Popen([sys.executable, "-c", program], env=settings, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate()
    return out.strip() if process.returncode == 0 else f"failed with {process.returncode}"


def wait_for_training(process: subprocess.Popen[str], directory: Path) -> None:
    """Return once the process has compiled and written its first point."""
    while process.poll() is None and not (directory / "metrics.csv").exists():
        time.sleep(0.01)


def kill_once(name: str, whole: str, seconds: float, share: float, folder: Path) -> dict[str, Any]:
    """Kill a run after a share of the seconds from its first point to its end, resume it, and compare."""
    process = start(name, folder / "run", folder.parent / "cache")
    wait_for_training(process, folder / "run")
    time.sleep(share * seconds)
    process.send_signal(signal.SIGKILL)
    finish(process)
    saved = sorted(int(path.name) for path in (folder / "run" / FOLDER).glob("*") if path.name.isdigit())
    resumed = finish(start(name, folder / "run", folder.parent / "cache"))
    point = saved[-1] if saved else 0
    return {"what": f"killed at {share:.0%}, saved were {point} of {POINTS} points", "equal": resumed == whole}


def damages() -> dict[str, Callable[[Path], None]]:
    """What can happen to the files of a checkpoint."""

    def cut(share: float) -> Callable[[Path], None]:
        def damage(path: Path) -> None:
            path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])

        return damage

    def flip(share: float) -> Callable[[Path], None]:
        def damage(path: Path) -> None:
            content = bytearray(path.read_bytes())
            place = int(share * (len(content) - 1))
            content[place] ^= 0xFF
            path.write_bytes(bytes(content))

        return damage

    arrays, score = "arrays/arrays.npz", "metrics/metrics"
    on: dict[str, tuple[str, Callable[[Path], None]]] = {
        "arrays removed": (arrays, Path.unlink),
        "arrays emptied": (arrays, cut(0.0)),
        "arrays cut at a third": (arrays, cut(0.33)),
        "arrays cut at the last byte": (arrays, cut(0.99999)),
        "a byte flipped at 10 % of the arrays": (arrays, flip(0.1)),
        "a byte flipped in the middle of the arrays": (arrays, flip(0.5)),
        "a byte flipped at the end of the arrays": (arrays, flip(0.9999)),
        "score removed": (score, Path.unlink),
        "score cut": (score, cut(0.5)),
    }
    return {name: lambda folder, file=file, damage=damage: damage(folder / file) for name, (file, damage) in on.items()}


def damage_once(name: str, whole: str, run: Path, damage: Callable[[Path], None], folder: Path) -> bool:
    """Damage the latest checkpoint of a copy of a finished run, resume it, and compare."""
    shutil.copytree(run, folder / "run")
    latest = max(int(path.name) for path in (folder / "run" / FOLDER).glob("*") if path.name.isdigit())
    damage(folder / "run" / FOLDER / str(latest))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        equal = train(name, folder / "run") == whole
    return equal and any("damaged" in str(warning.message) for warning in said)


def damage_all(name: str, run: Path, folder: Path) -> bool:
    """Damage every checkpoint: the run must be refused, and nothing changed."""
    shutil.copytree(run, folder / "run")
    for path in (folder / "run" / FOLDER).glob("*/arrays/arrays.npz"):
        path.write_bytes(b"")
    before = {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train(name, folder / "run")
    except ValueError as error:
        after = {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
        return "Every checkpoint" in str(error) and after == before
    return False


def main(kills: int = 20, seed: int = 0) -> None:
    """Kill and damage; see the module."""
    instants = random.Random(seed)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        seconds, wholes = {}, {}
        for name in AGENTS:
            finish(start(name, root / f"first {name}", root / "cache"))  # fills the cache
            process = start(name, root / f"whole {name}", root / "cache")
            wait_for_training(process, root / f"whole {name}")
            began = time.perf_counter()
            wholes[name] = finish(process)
            seconds[name] = time.perf_counter() - began
            print(f"{name}: training takes {seconds[name]:.1f} s", flush=True)
        for i in range(kills):
            name = list(AGENTS)[i % len(AGENTS)]
            share = instants.uniform(0.0, 1.0)
            rows.append({"agent": name} | kill_once(name, wholes[name], seconds[name], share, root / f"kill {i}"))
            print(f"{i + 1} of {kills} kills: {rows[-1]}", flush=True)
        name = "PPO + RUDDER"
        run = root / f"whole {name}"
        for i, (what, damage) in enumerate(damages().items()):
            equal = damage_once(name, wholes[name], run, damage, root / f"damage {i}")
            rows.append({"agent": name, "what": what, "equal": equal})
            print(rows[-1], flush=True)
        refused = damage_all(name, run, root / "damage all")
        rows.append({"agent": name, "what": "all checkpoints damaged: refused, nothing changed", "equal": refused})
    table = pd.DataFrame(rows)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(RESULTS, index=False)
    print(table.to_string(index=False))
    print(f"{table['equal'].to_numpy().sum()} of {len(table)} as they should be")


if __name__ == "__main__":
    tyro.cli(main)
