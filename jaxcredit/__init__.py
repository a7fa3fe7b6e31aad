"""jaxcredit: credit assignment for JAX.

Pure functions on one trajectory, estimators that compose with `chain`, agents and training that compile end to end.
"""

from jaxcredit.agents.a2c import A2C
from jaxcredit.agents.agent import TrainState
from jaxcredit.agents.on_policy import OnPolicyAgent
from jaxcredit.agents.ppo import PPO
from jaxcredit.agents.reinforce import REINFORCE
from jaxcredit.agents.tabular import TabularAgent, action_targets
from jaxcredit.core.estimator import Context, CreditEstimator, chain
from jaxcredit.core.mdp import TabularMDP, enumerate_mdp
from jaxcredit.core.recurrence import backward_recurrence, forward_recurrence
from jaxcredit.core.statistics import ScaleReward
from jaxcredit.core.trajectory import Trajectory
from jaxcredit.evaluation.episodes import demonstrate
from jaxcredit.evaluation.fidelity import Fidelity, fidelity, fidelity_table
from jaxcredit.hindsight.cocoa import COCOA, contribution_credit, decision_credit
from jaxcredit.hindsight.hca import (
    ReturnHCA,
    StateHCA,
    hindsight_coefficient,
    return_hindsight_advantage,
    return_hindsight_credit,
)
from jaxcredit.hindsight.ratios import hindsight_loss, hindsight_ratio, later_sums
from jaxcredit.networks.memory import MemoryActorCritic
from jaxcredit.networks.policy import Policy
from jaxcredit.redistribution.align_rudder import (
    AlignRUDDER,
    Profile,
    cloned_values,
    learn_profile,
    prefix_scores,
    profile_redistribution,
)
from jaxcredit.redistribution.alignment import align_sequences, position_scores, substitution_scores
from jaxcredit.redistribution.arel import AREL
from jaxcredit.redistribution.contribution import (
    complete_return,
    integrated_gradients,
    lrp_lstm,
    redistribute_differences,
)
from jaxcredit.redistribution.decomposition import RewardDecomposition, choose_steps, decomposition_loss
from jaxcredit.redistribution.diaster import Diaster, choose_cut, sub_trajectory_loss
from jaxcredit.redistribution.events import affinity_propagation, successor_representation
from jaxcredit.redistribution.ircr import IRCR, ircr_reward
from jaxcredit.redistribution.rudder import RUDDER, auxiliary_targets, return_loss
from jaxcredit.redistribution.sequence_modelling import SequenceModelling, summed_reward_loss
from jaxcredit.redistribution.shaping import Shaping, look_back_reward, shaping_reward
from jaxcredit.time_centric.action_values import n_step_expected_sarsa, n_step_q_learning, n_step_sarsa
from jaxcredit.time_centric.control_variates import trajectory_control_variate
from jaxcredit.time_centric.off_policy import VTrace, retrace, vtrace
from jaxcredit.time_centric.returns import (
    GAE,
    MonteCarlo,
    NStep,
    TDLambda,
    discounted_returns,
    gae,
    lambda_returns,
    n_step_returns,
    td_lambda,
)
from jaxcredit.time_centric.traces import FeatureStep, TraceState, init_trace, mark_trace, online_td_lambda
from jaxcredit.training.compare import Comparison, CreditTrace, compare, credit_trace
from jaxcredit.training.logging import Report
from jaxcredit.training.mesh import join_processes
from jaxcredit.training.record import load_policy
from jaxcredit.training.run import RunResult, run
from jaxcredit.training.sweep import as_arrays, field_at, leaf_paths, replace_at, sweep
from jaxcredit.training.train import advance, evaluate, train
from jaxcredit.transport.reward_transport import TemporalRewardTransport, attention_importance, transport_reward
from jaxcredit.transport.synthetic_returns import SyntheticReturns, augmented_reward, synthetic_return
from jaxcredit.transport.value_transport import TemporalValueTransport, discount_window, read_events, transport_value

__version__ = "0.1.0"

__all__ = [
    "A2C",
    "AREL",
    "COCOA",
    "GAE",
    "IRCR",
    "PPO",
    "REINFORCE",
    "RUDDER",
    "AlignRUDDER",
    "Comparison",
    "Context",
    "CreditEstimator",
    "CreditTrace",
    "Diaster",
    "FeatureStep",
    "Fidelity",
    "MemoryActorCritic",
    "MonteCarlo",
    "NStep",
    "OnPolicyAgent",
    "Policy",
    "Profile",
    "Report",
    "ReturnHCA",
    "RewardDecomposition",
    "RunResult",
    "ScaleReward",
    "SequenceModelling",
    "Shaping",
    "StateHCA",
    "SyntheticReturns",
    "TDLambda",
    "TabularAgent",
    "TabularMDP",
    "TemporalRewardTransport",
    "TemporalValueTransport",
    "TraceState",
    "TrainState",
    "Trajectory",
    "VTrace",
    "action_targets",
    "advance",
    "affinity_propagation",
    "align_sequences",
    "as_arrays",
    "attention_importance",
    "augmented_reward",
    "auxiliary_targets",
    "backward_recurrence",
    "chain",
    "choose_cut",
    "choose_steps",
    "cloned_values",
    "compare",
    "complete_return",
    "contribution_credit",
    "credit_trace",
    "decision_credit",
    "decomposition_loss",
    "demonstrate",
    "discount_window",
    "discounted_returns",
    "enumerate_mdp",
    "evaluate",
    "fidelity",
    "fidelity_table",
    "field_at",
    "forward_recurrence",
    "gae",
    "hindsight_coefficient",
    "hindsight_loss",
    "hindsight_ratio",
    "init_trace",
    "integrated_gradients",
    "ircr_reward",
    "join_processes",
    "lambda_returns",
    "later_sums",
    "leaf_paths",
    "learn_profile",
    "load_policy",
    "look_back_reward",
    "lrp_lstm",
    "mark_trace",
    "n_step_expected_sarsa",
    "n_step_q_learning",
    "n_step_returns",
    "n_step_sarsa",
    "online_td_lambda",
    "position_scores",
    "prefix_scores",
    "profile_redistribution",
    "read_events",
    "redistribute_differences",
    "replace_at",
    "retrace",
    "return_hindsight_advantage",
    "return_hindsight_credit",
    "return_loss",
    "run",
    "shaping_reward",
    "sub_trajectory_loss",
    "substitution_scores",
    "successor_representation",
    "summed_reward_loss",
    "sweep",
    "synthetic_return",
    "td_lambda",
    "train",
    "trajectory_control_variate",
    "transport_reward",
    "transport_value",
    "vtrace",
]
