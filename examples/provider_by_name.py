"""A durable agent with a real model, chosen by provider and name.

    export OPENAI_API_KEY=...       # for openai:..., openai-chat:...
    export ANTHROPIC_API_KEY=...    # for anthropic:...
    python examples/provider_by_name.py openai:gpt-5 "How many days are left in this year?"

Stop it with Ctrl-C, or kill it, and start it again with the same arguments: it resumes where it stopped. When it is
done, the same arguments return the recorded answer.
"""

import hashlib
import os
import sys
from datetime import date
from typing import Any

from pydantic_ai import Agent

from holdfast import App, RunInfo
from holdfast.adapters.pydantic_ai import durable

#: The environment variable with the key of each provider. pydantic-ai has many more providers.
KEYS = {"openai": "OPENAI_API_KEY", "openai-chat": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}


def make_agent(model: str) -> Agent[None, str]:
    agent = Agent(model, name="assistant", instructions="Use your tools. Answer in one sentence.")

    @agent.tool_plain(metadata={"effect": "pure"})
    def today() -> str:
        """Return today's date."""
        return date.today().isoformat()

    return agent


class PrintingListener:
    """Prints the answer as the model writes it."""

    #: Whether this process has executed the run. An earlier one may have.
    has_printed = False

    async def on_event(self, info: RunInfo, event: Any) -> None:
        if event.type == "text_delta":
            print(event.text, end="", flush=True)

    async def on_output(self, info: RunInfo, output: Any) -> None:
        self.has_printed = True
        print()

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...


def main(model: str, question: str) -> None:
    agent = durable(make_agent(model), stream=True)
    run_id = hashlib.sha256(f"{model}\n{question}".encode()).hexdigest()[:12]
    listener = PrintingListener()
    result = App([agent], "sqlite:answers.db", listener=listener).run_sync(agent, question, run_id=run_id)
    if not listener.has_printed:
        print(result.output)
    print(f"{result.usage.total_tokens} tokens, ${result.usage.cost_usd:.4f}", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} PROVIDER:MODEL QUESTION")
    provider = sys.argv[1].partition(":")[0]
    if provider not in KEYS:
        sys.exit(f"unknown provider {provider!r}: use one of {', '.join(KEYS)}")
    if not os.environ.get(KEYS[provider]):
        sys.exit(f"{sys.argv[1]} needs a key: set the environment variable {KEYS[provider]}")
    main(*sys.argv[1:])
