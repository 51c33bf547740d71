"""critic: notices runs that show no sign of life, and asks what to do about them.

`App(agents, critic=Critic())` is all it takes: a run that is silent for its agent's `max_runtime` wakes the escalator.
"""

from holdfast.batteries.critic.critic import Critic
from holdfast.batteries.critic.escalation import CriticError, Decision, Escalator, ExtendOnce, IdleRun

__all__ = ["Critic", "CriticError", "Decision", "Escalator", "ExtendOnce", "IdleRun"]
