"""Decides, per decode step, whether to speculate. Pure Python: no torch, no sglang, no clock."""

from specswitch.control.controller import (
    Controller,
    Counters,
    Listener,
    build_controller,
    reconfigure,
)
from specswitch.control.decision import Decision, Mode, Reason, Switch
from specswitch.control.guard import CAP_WINDOW_STEPS, Dwell, SwitchCap, Votes
from specswitch.control.load import LoadSample
from specswitch.control.overrule import (
    BatchLimit,
    ExactnessRule,
    OperatorOverride,
    RequestOptOut,
)
from specswitch.control.policy import (
    FixedPolicy,
    Marks,
    PeriodicPolicy,
    Policy,
    PolicyDecorator,
    Proposal,
    QueueDepthPolicy,
)

__all__ = [
    "CAP_WINDOW_STEPS",
    "BatchLimit",
    "Controller",
    "Counters",
    "Decision",
    "Dwell",
    "ExactnessRule",
    "FixedPolicy",
    "Listener",
    "LoadSample",
    "Marks",
    "Mode",
    "OperatorOverride",
    "PeriodicPolicy",
    "Policy",
    "PolicyDecorator",
    "Proposal",
    "QueueDepthPolicy",
    "Reason",
    "RequestOptOut",
    "Switch",
    "SwitchCap",
    "Votes",
    "build_controller",
    "reconfigure",
]
