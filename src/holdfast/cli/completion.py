"""What the shell offers when a run's id is to be typed."""

import asyncio
from typing import Any

from holdfast.cli.stores import opened


def complete_run(ctx: Any, incomplete: str) -> list[str]:
    """The ids of stored runs that begin so. Nothing at all if the store cannot be read: a shell shows no errors."""

    async def find() -> list[str]:
        async with opened(ctx.params.get("store") or "") as store:
            return [record.run_id async for record in store.records() if record.run_id.startswith(incomplete)]

    try:
        return asyncio.run(find())
    except Exception:  # see above
        return []
