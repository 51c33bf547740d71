"""critic: a watchdog that finds idle runs and asks an escalator to nudge, extend or kill them.

`App(agents, critic=Critic())` asks the escalator about a run that is idle for its agent's `max_runtime`.
"""

from holdfast.batteries.critic.critic import Critic
from holdfast.batteries.critic.watchdog import CriticAction, CriticError, Escalator, ExtendOnce, IdleRun

__all__ = ["Critic", "CriticAction", "CriticError", "Escalator", "ExtendOnce", "IdleRun"]
