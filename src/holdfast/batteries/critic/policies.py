"""Ready escalators."""

from holdfast.batteries.critic.decision import Decision, Silence


class ExtendOnce:
    """Gives a silent run one more soft timeout, once in its whole life."""

    async def __call__(self, silence: Silence) -> Decision | None:
        if silence.extensions:
            return None
        return Decision(extend=silence.soft_timeout, reason="one extension per run")
