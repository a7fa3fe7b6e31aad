"""Credit assignment for reinforcement learning, from the command line.

    jaxcredit list                     what there is: environments, estimators, agents; `list NAME` shows its settings
    jaxcredit train --env CartPole-v1 --seeds 8 --total-steps 200000 --directory runs/cartpole
    jaxcredit compare --env DelayedKeyToDoor --credits gae gae+gru montecarlo rudder --seeds 32
    jaxcredit sweep --env CartPole-v1 --values learning_rate=1e-4,1e-3,1e-2 --seeds 16
    jaxcredit fidelity --env CreditMaze --env-params depth=16 --credits gae montecarlo rudder
    jaxcredit plot runs/a runs/b

A credit is NAME (see `list`), NAME+gru (the policy has a GRU and sees its previous action), NAME+memory (it also reads
what it saw earlier in the episode, as tvt needs it), or module:object for an estimator of your own: an instance, a
class or a function without arguments, importable from the current directory.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import importlib
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import jaxcredit as jc
from jaxcredit.core.estimator import Chain
from jaxcredit.evaluation.credit_plots import fidelity_picture
from jaxcredit.evaluation.fidelity import MEASURES
from jaxcredit.evaluation.oracle import action_values, optimal_values
from jaxcredit.evaluation.plots import heat_map, learning_curves
from jaxcredit.training.compare import compare as compare_agents
from jaxcredit.training.logging import (
    claim,
    curves_of,
    describe,
    finite_interval,
    print_table,
    read_metrics,
    require_possible,
    show_interval,
    spinner,
)
from jaxcredit.training.mesh import join_processes, under_slurm
from jaxcredit.training.run import run
from jaxcredit.training.sweep import field_at, sweep_metrics

AGENTS: dict[str, type[jc.OnPolicyAgent]] = {"ppo": jc.PPO, "a2c": jc.A2C, "reinforce": jc.REINFORCE}
MEMORY = 64
SUFFIXES = ("gru", "memory")
COMPARED = {"num_envs": 16, "minibatches": 1, "learning_rate": 1e-3, "entropy_coefficient": 0.01, "episodic": True}
TREASURE = 0.9


def rudder() -> jc.CreditEstimator:
    """RUDDER, then one-step advantages: chain(RUDDER(), GAE(gamma=1.0, lam=0.0))."""
    return jc.chain(jc.RUDDER(), jc.GAE(gamma=1.0, lam=0.0))


def ircr() -> jc.CreditEstimator:
    """IRCR, then undiscounted GAE on its rewards: chain(IRCR(), GAE(gamma=1.0))."""
    return jc.chain(jc.IRCR(), jc.GAE(gamma=1.0))


def rd() -> jc.CreditEstimator:
    """Return decomposition, then undiscounted GAE on its rewards: chain(RewardDecomposition(), GAE(gamma=1.0))."""
    return jc.chain(jc.RewardDecomposition(), jc.GAE(gamma=1.0))


def rrd() -> jc.CreditEstimator:
    """Randomised return decomposition, as rd but fitted on 16 random steps per episode, without bias."""
    return jc.chain(jc.RewardDecomposition(subset=16, unbiased=True), jc.GAE(gamma=1.0))


def seqmod() -> jc.CreditEstimator:
    """Sequence modelling by attention, then undiscounted GAE: chain(SequenceModelling(), GAE(gamma=1.0))."""
    return jc.chain(jc.SequenceModelling(), jc.GAE(gamma=1.0))


def arel() -> jc.CreditEstimator:
    """AREL for a single agent, then undiscounted GAE on its rewards: chain(AREL(), GAE(gamma=1.0))."""
    return jc.chain(jc.AREL(), jc.GAE(gamma=1.0))


def diaster() -> jc.CreditEstimator:
    """Diaster, then undiscounted GAE on its rewards: chain(Diaster(), GAE(gamma=1.0))."""
    return jc.chain(jc.Diaster(), jc.GAE(gamma=1.0))


def shaping() -> jc.CreditEstimator:
    """RUDDER's predictions as a shaping potential, then undiscounted GAE: chain(Shaping(RUDDER()), GAE(gamma=1.0))."""
    return jc.chain(jc.Shaping(jc.RUDDER()), jc.GAE(gamma=1.0))


def tvt() -> jc.CreditEstimator:
    """Temporal Value Transport, then GAE, for policies with a memory (tvt+memory): both with gamma=0.96."""
    return jc.chain(jc.TemporalValueTransport(gamma=0.96), jc.GAE(gamma=0.96))


def trt() -> jc.CreditEstimator:
    """Temporal Reward Transport around GAE, from beyond 25 steps as tvt: TemporalRewardTransport(GAE(), horizon=25)."""
    return jc.TemporalRewardTransport(jc.GAE(), horizon=25.0)


def sr() -> jc.CreditEstimator:
    """Synthetic Returns, then GAE on the augmented rewards: chain(SyntheticReturns(), GAE())."""
    return jc.chain(jc.SyntheticReturns(), jc.GAE())


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "gae": jc.GAE,
    "montecarlo": jc.MonteCarlo,
    "nstep": jc.NStep,
    "tdlambda": jc.TDLambda,
    "vtrace": jc.VTrace,
    "rudder": rudder,
    "ircr": ircr,
    "rd": rd,
    "rrd": rrd,
    "seqmod": seqmod,
    "arel": arel,
    "diaster": diaster,
    "shaping": shaping,
    "tvt": tvt,
    "trt": trt,
    "sr": sr,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; what the user can mend ends it with one paragraph and exit code 2, a full disk or such with 1."""
    commands = {"list": list_, "train": train, "compare": compare, "sweep": sweep, "fidelity": fidelity, "plot": plot}
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "jaxcredit"
    jax.config.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR", str(cache)))
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs tracebacks of what is said below in one line
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands, prog="jaxcredit", description=__doc__, args=argv, config=(tyro.conf.OmitArgPrefixes,)
        )
    except ValueError as error:
        print(f"jaxcredit: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"jaxcredit: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt as stop:
        print(f"jaxcredit: {stop or 'stopped'}", file=sys.stderr)
        sys.exit(130)


# The commands ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is trained, and how often.

    Attributes:
      env: name of the environment.
      env_params: settings of the environment, e.g. length=40; `list ENV` shows them.
      agent: what learns.
      set: fields of agent and estimator, e.g. learning_rate=3e-4 hidden=64,64 credit.lam=0.9; `list ppo` shows them.
      seeds: how many runs, side by side in one compiled program.
      seed: of all randomness.
      eval_episodes: fresh episodes for the final evaluation of each run.
      directory: where to write tables, figures and the configuration; nowhere if not given.
    """

    env: str
    env_params: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    agent: Literal["ppo", "a2c", "reinforce"] = "ppo"
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PATH=VALUE ...")] = ()
    seeds: int = 8
    seed: int = 0
    eval_episodes: int = 256
    directory: Path | None = None

    def build(
        self, credit: str, fields: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> jc.OnPolicyAgent:
        """The agent with this credit: built with those `fields` that it has, then changed by `settings` and `set`."""
        import envs
        from envs.wrappers import PreviousAction

        env, params = envs.make(self.env, **_pairs(self.env_params))
        estimator, memory = split_credit(credit)
        if memory:
            env = PreviousAction(env)
        kind = AGENTS[self.agent]
        known = {name: value for name, value in (fields or {}).items() if name in kind.__dataclass_fields__}
        agent = kind(
            env=env,
            env_params=params,
            credit=load_estimator(estimator),
            memory=MEMORY if memory == "gru" else 0,
            log_info=_reported(env, params),
            **known,
        )
        if memory == "memory":
            agent = agent.replace(network=jc.MemoryActorCritic(agent.action_size, not agent.is_discrete))
        for path, value in {**(settings or {}), **_pairs(self.set)}.items():
            agent = configure(agent, path, value)
        return agent

    @property
    def keys(self) -> jax.Array:
        if self.seeds < 1:
            raise ValueError(f"--seeds {self.seeds} is not allowed; give at least 1.")
        return jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(self.seed)))(jnp.arange(self.seeds))


def list_(name: str | None = None, /) -> None:
    """List environments, estimators, agents and networks, or show the settings of one of them.

    Args:
      name: an environment, estimator or agent.
    """
    import envs

    if name is None:
        print_table("Estimators", [(n, _first_line(factory)) for n, factory in ESTIMATORS.items()])
        print_table("Agents", [(n, _first_line(agent)) for n, agent in AGENTS.items()])
        networks = {
            "MLP": "the default; --set hidden=64,64",
            "GRU": "in front of it; --set memory=64, or CREDIT+gru",
            "memory": "reads its own past; CREDIT+memory, --set network.rows=64",
        }
        print_table("Networks", list(networks.items()))
        print_table("Environments", [(n,) for n in envs.names()])
    elif name in AGENTS:
        print(inspect.getdoc(AGENTS[name]), inspect.getdoc(jc.OnPolicyAgent), sep="\n\n")
        print_table("Defaults (--set PATH=VALUE)", _fields(AGENTS[name](env=envs.make("ProbeAction")[0])))
    elif name in envs.names():
        env, params = envs.make(name)
        print(inspect.getdoc(type(env)), inspect.getdoc(type(params)), sep="\n\n")
        print_table("Settings (--env-params NAME=VALUE)", [*_fields(env), *_fields(params)])
    else:
        _check_name("environment, agent or credit", name, [*ESTIMATORS, *AGENTS, *envs.names()])
        for path, part in _parts("credit", load_estimator(name)):
            print(inspect.getdoc(type(part)))
            print_table("Defaults (--set PATH=VALUE)", [(f"{path}.{field}", value) for field, value in _fields(part)])


def train(
    setup: Setup,
    credit: str = "gae",
    total_steps: int = 100_000,
    resume: bool = False,
    num_points: int = 128,
    checkpoint_seconds: float = 60.0,
    memory_limit: float | None = None,
    wandb: str | None = None,
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
) -> None:
    """Train an agent with many seeds at once, on all devices, and evaluate it.

    Args:
      setup: what is trained, and how often.
      credit: NAME, NAME+gru, NAME+memory or module:object.
      total_steps: environment steps per seed.
      resume: go on with the run in --directory, if there is one; give the same settings again.
      num_points: points of the curves, at the end of which a run can be saved or stopped.
      checkpoint_seconds: time between checkpoints (written only with --directory); inf writes none.
      memory_limit: GiB per device; seeds that need more are trained in batches.
      wandb: a project of Weights & Biases to report to (needs the extra wandb).
      coordinator: HOST:PORT of process 0, where several processes share the seeds; under SLURM nothing need be given.
      processes: how many there are.
      process: which of them this is, from 0.
    """
    if resume and setup.directory is None:
        raise ValueError("--resume needs the directory of the run to go on with: give --directory.")
    if under_slurm() or (coordinator, processes, process) != (None, None, None):
        join_processes(coordinator, processes, process)
    result = run(
        setup.build(credit),
        setup.keys,
        total_steps,
        directory=setup.directory,
        resume=resume,
        num_points=num_points,
        eval_episodes=setup.eval_episodes,
        checkpoint_seconds=checkpoint_seconds,
        memory_limit=memory_limit,
        wandb=wandb,
    )
    names = [name for name in result.summary.columns if name.startswith("eval.")]
    rows = [(name.removeprefix("eval."), show_interval(finite_interval(result.summary[name]))) for name in names]
    if rows:
        print_table(f"Final evaluation of {len(result.summary)} seeds: interquartile mean [95 % interval]", rows)
    print(f"compiled in {result.compile_seconds:.1f} s, ran in {result.run_seconds:.1f} s")


def compare(
    setup: Setup,
    credits: Annotated[tuple[str, ...], tyro.conf.arg(metavar="CREDIT ...")] = ("gae", "montecarlo", "rudder"),
    episodes: int = 3200,
    settings: Path | None = None,
    measure: str | None = None,
    threshold: float | None = None,
) -> None:
    """Train one agent with different credit, many seeds each, and see which learns from the fewest episodes.

    Args:
      setup: what is trained, and how often.
      credits: the methods: NAME, NAME+gru, NAME+memory or module:object each.
      episodes: training episodes per seed.
      settings: JSON file {credit: {path: value}}, what a tuning found for each method.
      measure: metric of the curves; by default "treasure" where the environment reports it, else "episode_return".
      threshold: level of the measure whose reaching is timed; by default 0.9 of the treasure.
    """
    if not credits or len(set(credits)) < len(credits):
        raise ValueError(f"--credits {' '.join(credits)}: name at least one credit, and each once.")
    tuned = read_settings(settings)
    agents = {credit: setup.build(credit, COMPARED, tuned.get(credit)) for credit in credits}
    has_treasure = all("treasure" in agent.log_info for agent in agents.values())
    measure = measure or ("treasure" if has_treasure else "episode_return")
    threshold = TREASURE if threshold is None and measure == "treasure" else threshold
    result = compare_agents(
        agents,
        setup.keys,
        episodes=episodes,
        eval_episodes=setup.eval_episodes,
        measure=measure,
        threshold=threshold,
        directory=setup.directory,
    )
    task = " ".join((setup.env, *setup.env_params))
    title, rows, columns = result.printable()
    print_table(f"{task}, {title}", rows, columns)


def sweep(
    setup: Setup,
    values: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PATH=V1,V2,... ...")],
    credit: str = "gae",
    total_steps: int = 100_000,
    metric: str | None = None,
    mode: Literal["grid", "zip"] = "grid",
    batch_points: int | None = None,
) -> None:
    """Train every combination of settings with many seeds, all in one compiled program.

    Args:
      setup: what is trained, and how often.
      values: settings to vary, e.g. learning_rate=1e-4,1e-3 credit.lam=0.9,0.95; PATH,PATH=V1,V2 share their values.
      credit: NAME, NAME+gru, NAME+memory or module:object.
      total_steps: environment steps per run.
      metric: what the table shows: eval.NAME, or a metric of training, over its last tenth.  By default the return, of
        the evaluation if there is one.
      mode: grid takes all combinations, zip the i-th value of every setting together.
      batch_points: combinations at a time, to bound memory; all at once if not given.
    """
    agent = setup.build(credit)
    words = map(_split, values)
    chosen: dict[str | tuple[str, ...], list[float]] = {tuple(p.split(",")): _numbers(numbers) for p, numbers in words}
    known = sweep_metrics(agent, chosen, setup.keys, mode=mode, eval_episodes=setup.eval_episodes)
    metric = metric or ("eval.episode_return" if setup.eval_episodes else "episode_return")
    _check_name("metric", metric, known)
    if setup.directory is not None:
        claim(setup.directory, {"label": "sweep", **describe(setup), "values": values, "agent": describe(agent)})
    with spinner(f"training {setup.seeds} seeds of every point"):
        frame = jc.sweep(
            agent,
            chosen,
            setup.keys,
            num_iterations=-(-total_steps // (agent.num_envs * agent.window)),
            mode=mode,
            batch_points=batch_points,
            eval_episodes=setup.eval_episodes,
        )
    paths = [path for shared in chosen for path in shared]
    if setup.directory is not None:
        frame.to_csv(setup.directory / "sweep.csv", index=False)
    points: dict[Any, Any] = {point: finite_interval(x) for point, x in frame.groupby(paths, sort=False)[metric]}
    rows = [(*point, show_interval(interval)) for point, interval in points.items()]
    print_table(f"Interquartile mean [95 % interval] of {setup.seeds} seeds", rows, [*paths, metric])
    if setup.directory is not None and len(chosen) == len(paths) == 2 and mode == "grid":
        y, x = chosen.values()
        grid = np.reshape([interval.estimate for interval in points.values()], (len(y), len(x)))
        heat_map(grid, x, y, setup.directory / "heat_map.png", xlabel=paths[1], ylabel=paths[0], label=metric)


def fidelity(
    env: str,
    env_params: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = (),
    credits: Annotated[tuple[str, ...], tyro.conf.arg(metavar="CREDIT ...")] = ("gae", "montecarlo", "rudder"),
    policy: Literal["uniform", "optimal"] = "uniform",
    epsilon: float = 0.1,
    gamma: float = 1.0,
    critic: Literal["learned", "exact"] = "learned",
    fit_episodes: int = 1024,
    episodes: int = 256,
    repeats: int = 16,
    seed: int = 0,
    directory: Path | None = None,
) -> None:
    """Hold the credit of several estimators against the exact one: bias, variance, signal to noise, and where it lands.

    Args:
      env: name of an environment that has a table of its states: CreditMaze, KeyToDoor, Taxi, ...
      env_params: settings of the environment, e.g. length=20; `list ENV` shows them.
      credits: the methods: NAME or module:object each.
      policy: whose credit; optimal takes a uniformly random action with probability epsilon.
      epsilon: of the optimal policy.
      gamma: discount of the exact credit, and of every estimator that has one.
      critic: a table of mean value targets, learned with the estimator, or the exact values.
      fit_episodes: on which estimator and critic are fitted, per repeat.
      episodes: fresh ones on which they are judged, per repeat.
      repeats: fits, each with its own episodes; intervals are over them, and want about 16.
      seed: of all randomness.
      directory: where to write fidelity.csv and fidelity.png; nowhere if not given.
    """
    import envs

    if not credits or len(set(credits)) < len(credits):
        raise ValueError(f"--credits {' '.join(credits)}: name at least one credit, and each once.")
    if repeats < 1:
        raise ValueError(f"--repeats {repeats} is not allowed; give at least 1.")
    if any(split_credit(credit)[1] for credit in credits):
        raise ValueError(
            "fidelity judges credit under a table of probabilities, not under a network: leave out +gru and +memory."
        )
    if directory is not None:
        require_possible(directory)
        directory.mkdir(parents=True, exist_ok=True)
    task, params = envs.make(env, **_pairs(env_params))
    estimators = {credit: with_discount(load_estimator(credit), gamma) for credit in credits}
    results = {}
    with spinner(f"judging {' '.join(credits)}"):
        table = None if policy == "uniform" else near_optimal(task, params, epsilon)
        for credit, estimator in estimators.items():
            results[credit] = jc.fidelity(
                estimator,
                task,
                params,
                policy=table,
                gamma=gamma,
                critic=critic,
                fit_episodes=fit_episodes,
                episodes=episodes,
                keys=jax.random.split(jax.random.key(seed), repeats),
            )
    rows = [
        (credit, *(show_interval(result.measures[name]) for name in MEASURES)) for credit, result in results.items()
    ]
    words = " ".join((env, *env_params))
    columns = list(zip(*rows, strict=True))
    print_table(
        f"{words}, {policy} policy: {repeats} repeats, estimate [95 % interval]",
        list(zip(MEASURES, *zip(*columns[1:], strict=True), strict=True)),
        ["measure", *columns[0]],
    )
    if directory is not None:
        frame = jc.fidelity_table(results)
        frame.to_csv(directory / "fidelity.csv", index=False)
        fidelity_picture(frame, directory / "fidelity.png", title=f"{words}, {policy} policy")


def with_discount(estimator: jc.CreditEstimator, gamma: float) -> jc.CreditEstimator:
    """The estimator with every field called gamma set."""
    for path in jc.leaf_paths(estimator):
        if path.split(".")[-1] == "gamma":
            estimator = jc.replace_at(estimator, path, gamma)
    return estimator


def near_optimal(env: Any, params: Any, epsilon: float) -> jax.Array:
    """The optimal (undiscounted) policy of an enumerated environment, with a uniformly random action now and then."""
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon={epsilon} is not allowed: it is a probability.")
    mdp = env.mdp(params)
    greedy = jax.nn.one_hot(action_values(mdp, optimal_values(mdp)).argmax(axis=1), mdp.num_actions)
    return (1 - epsilon) * greedy + epsilon / mdp.num_actions


def plot(
    directories: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="DIRECTORY ...")],
    /,
    metric: str = "episode_return",
    x: Literal["episodes", "valid_steps", "total_steps"] = "episodes",
    output: Path = Path("curves.png"),
    threshold: float | None = None,
) -> None:
    """Draw the learning curves of several runs or comparisons into one figure; a run may still be going on.

    Args:
      directories: what `train` or `compare` wrote.
      metric: what to draw.
      x: what to draw it over.
      output: the picture to write.
      threshold: level to mark.
    """
    import pandas as pd

    frames = []
    names = told_apart(directories)
    for name, directory in names.items():
        frame = read_metrics(directory)
        _check_name(f"metric in {directory}", metric, frame.columns)
        if "method" not in frame:
            frame = frame.assign(method=name)
        elif len(names) > 1:
            frame = frame.assign(method=name + "/" + frame["method"])
        frames.append(frame)
    ylabel, xlabel = metric.replace("_", " "), x.replace("_", " ")
    curves = curves_of(pd.concat(frames), metric, x=x)
    learning_curves(curves, output, ylabel=ylabel, xlabel=xlabel, threshold=threshold)
    print(output)


def told_apart(directories: Iterable[Path]) -> dict[str, Path]:
    """Each directory once, by the shortest end of its path that no other one has."""
    paths = {directory.resolve().parts: directory for directory in directories}

    def name(path: tuple[str, ...]) -> str:
        others = [other for other in paths if other != path]
        length = next(n for n in range(1, len(path) + 1) if all(other[-n:] != path[-n:] for other in others))
        return str(Path(*path[-length:]))

    return {name(path): directory for path, directory in paths.items()}


# Building an agent from words --------------------------------------------------------------------------------------


def configure(agent: jc.OnPolicyAgent, path: str, value: Any) -> jc.OnPolicyAgent:
    """`replace_at` for words: refuses a value of another kind than the present one, and reads 64 as (64,) where due."""
    present = field_at(agent, path)
    kinds = {bool: bool, int: int, float: int | float, jax.Array: int | float, str: str}
    kind = next((kind for present_kind, kind in kinds.items() if isinstance(present, present_kind)), object)
    if isinstance(present, tuple) and not isinstance(value, tuple):
        value = (value,)
    elif present is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise ValueError(f"{path}={value!r} is not allowed; give something of the kind of {present!r}.")
    return jc.replace_at(agent, path, value)


def split_credit(credit: str) -> tuple[str, str]:
    """Split NAME, NAME+gru or NAME+memory into the name and what the policy remembers by, if anything."""
    name, plus, suffix = credit.partition("+")
    if plus and suffix not in SUFFIXES:
        known = " and ".join(f"{name}+{suffix}" for suffix in SUFFIXES)
        raise ValueError(f"{credit!r} ends in +{suffix}, which is not known; {known} are.")
    return name, suffix


def load_estimator(name: str) -> jc.CreditEstimator:
    """The estimator called `name`, or the object that module:object names."""
    module, colon, attribute = name.partition(":")
    if not colon:
        _check_name("credit", name, ESTIMATORS, "; a credit of your own is given as module:object")
        return ESTIMATORS[name]()
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name} cannot be loaded: {error}. It must be importable from {Path.cwd()}.") from error
    estimator = found if isinstance(found, jc.CreditEstimator) or not callable(found) else found()
    if not isinstance(estimator, jc.CreditEstimator):
        raise ValueError(f"{name} is {estimator!r}; it must be a CreditEstimator, or make one when called.")
    for leaf in jax.tree.leaves(estimator):
        if isinstance(leaf, jc.CreditEstimator):
            raise ValueError(f"{type(leaf).__name__} is no pytree: put @flax.struct.dataclass over the class.")
    return estimator


def read_settings(path: Path | None) -> dict[str, dict[str, Any]]:
    """Read {credit: {path: value}}; lists become tuples."""
    if path is None:
        return {}
    if not path.is_file():
        raise ValueError(f"--settings {path} does not exist.")
    try:
        content = json.loads(path.read_text())
        content = {credit: {field: _hashable(x) for field, x in fields.items()} for credit, fields in content.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"--settings {path} is no JSON of the form {{credit: {{path: value}}}}: {error}") from error
    for credit in content:
        name, _ = split_credit(credit)
        if ":" not in name:
            _check_name(f"credit in {path}", name, ESTIMATORS)
    return content


def _reported(env: Any, params: Any) -> tuple[str, ...]:
    """What the environment tells about an episode beyond its return: the treasure, where there is one."""

    def info(key: jax.Array) -> dict[str, Any]:
        state = env.reset(key, params)[1]
        return env.step(key, state, env.action_space(params).sample(key), params)[-1]

    return tuple(name for name in ("treasure",) if name in jax.eval_shape(info, jax.random.key(0)))


def _pairs(words: Iterable[str]) -> dict[str, Any]:
    return {name: _value(text) for name, text in map(_split, words)}


def _split(word: str) -> tuple[str, str]:
    name, equals, text = word.partition("=")
    if not (name and equals and text):
        raise ValueError(f"{word!r} is not of the form NAME=VALUE.")
    return name, text


def _value(text: str) -> Any:
    """Read a number, a boolean, a list or None, in JSON's or Python's spelling; anything else is a string."""
    for read in (json.loads, ast.literal_eval, float):
        try:
            return _hashable(read(text))
        except (ValueError, SyntaxError):
            continue
    return text


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError as error:
        raise ValueError(f"{text!r} must be numbers, separated by commas without spaces.") from error


def _check_name(what: str, name: str, known: Iterable[str], hint: str = "") -> None:
    known = list(known)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        others = f"{'Near it' if near else 'Known'}: {', '.join(near or known)}"
        raise ValueError(f"There is no {what} {name!r}. {others}{hint}.")


def _first_line(factory: Any) -> str:
    return (inspect.getdoc(factory) or "").partition("\n")[0]


def _parts(path: str, estimator: jc.CreditEstimator) -> Iterable[tuple[str, jc.CreditEstimator]]:
    """An estimator and those it wraps, with their paths; of a chain, its members."""
    if isinstance(estimator, Chain):
        for i, member in enumerate(estimator.members):
            yield from _parts(f"{path}.{i}", member)
        return
    yield path, estimator
    for field in dataclasses.fields(estimator):
        inner = getattr(estimator, field.name)
        if isinstance(inner, jc.CreditEstimator):
            yield from _parts(f"{path}.{field.name}", inner)


def _fields(settings: Any) -> list[tuple[str, str]]:
    """Names and values of a dataclass, without what is itself made of fields."""
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return [(name, str(value)) for name, value in values.items() if not dataclasses.is_dataclass(value)]
