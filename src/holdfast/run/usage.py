"""What a run has used up so far."""

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Tokens, requests and cost. Adds up; counts on over resumes."""

    input_tokens: int = 0
    output_tokens: int = 0
    #: Part of the output tokens, where the provider tells.
    reasoning_tokens: int = 0
    requests: int = 0
    tool_calls: int = 0
    cost_usd: float = 0.0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        if other is NO_USAGE:
            return self
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            requests=self.requests + other.requests,
            tool_calls=self.tool_calls + other.tool_calls,
            # Zero as it is by default, so that it is left out when it is stored.
            cost_usd=(self.cost_usd + other.cost_usd) or NO_USAGE.cost_usd,
        )


NO_USAGE = Usage()
ONE_REQUEST = Usage(requests=1)
ONE_TOOL_CALL = Usage(tool_calls=1)
