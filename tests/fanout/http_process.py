"""A fan-out of models by their names, over HTTP. Where their provider is, the environment says."""

import asyncio
import sys
from pathlib import Path

import msgspec

from holdfast.fanout import Fanout, FanoutSettings

MODELS = ["openai-chat:gpt-4o", "openai-chat:gpt-4o-mini", "openai-chat:gpt-4.1"]

if __name__ == "__main__":
    at = Path(sys.argv[1])
    fanout = Fanout(
        "why?",
        MODELS,
        workspace=at / "work",
        settings=FanoutSettings(max_concurrency=1),
        store=f"sqlite:{at / 'runs.db'}",
        checkpoint=at / "kept.json",
    )
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(fanout.run())))
