"""`App.map`: one run for each input of a batch, each with an id that comes from the batch and the input."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic

from holdfast.core.errors import RunInterrupted
from holdfast.core.run.prompt import Prompt
from holdfast.core.run.result import OutputT, Result
from holdfast.core.validation import check_count

#: The label of the runs of a batch: its id.
BATCH_LABEL = "batch"


@dataclass(frozen=True, kw_only=True)
class BatchItem(Generic[OutputT]):
    """The outcome of one input of a batch: a result or an error."""

    #: The position of the input, from 0.
    index: int
    prompt: Prompt
    run_id: str
    result: Result[OutputT] | None = None
    #: Why there is no result: the run failed, is parked, or waits for a person (`RunWaiting`).
    error: Exception | None = None

    @property
    def output(self) -> OutputT:
        """The output of the run. Raises its error if it has none."""
        if self.result is None:
            assert self.error is not None  # one of both is there
            raise self.error
        return self.result.output


async def run_batch(
    run: Callable[[Prompt, str], Awaitable[Result[OutputT]]],
    digest: Callable[[Prompt], str],
    inputs: Iterable[Prompt],
    batch_id: str,
    concurrency: int,
    *,
    ordered: bool,
) -> AsyncGenerator[BatchItem[OutputT], None]:
    """Yield an item for each input, in order or as they end. At most `concurrency` runs are begun and not yielded.

    Args:
        run: runs one prompt under an id.
        digest: returns the same text for the same input.

    Raises:
        RunInterrupted: the App shuts down, or its store does not answer.
    """
    check_count("concurrency", concurrency)
    waiting, seen, source = deque["asyncio.Task[BatchItem[OutputT]]"](), Counter[str](), enumerate(inputs)
    try:
        while True:
            while len(waiting) < concurrency and (following := next(source, None)) is not None:
                index, prompt = following
                run_id = _make_id(batch_id, digest(prompt), seen)
                waiting.append(asyncio.create_task(_run_one(run, index, prompt, run_id)))
            if not waiting:
                return
            if ordered:
                await asyncio.wait([waiting[0]])
            else:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                first = next(task for task in waiting if task in done)
                waiting.remove(first)
                waiting.appendleft(first)
            yield waiting.popleft().result()
    finally:
        for task in waiting:  # only the callers: their runs continue
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _run_one(
    run: Callable[[Prompt, str], Awaitable[Result[OutputT]]], index: int, prompt: Prompt, run_id: str
) -> BatchItem[OutputT]:
    try:
        result = await run(prompt, run_id)
    except RunInterrupted:
        raise
    except Exception as exc:  # of the run: its model or a tool may raise anything
        return BatchItem(index=index, prompt=prompt, run_id=run_id, error=exc)
    return BatchItem(index=index, prompt=prompt, run_id=run_id, result=result)


def _make_id(batch_id: str, digest: str, seen: Counter[str]) -> str:
    """Return the id of a run: the same for the same input, also if inputs were added before it."""
    name = digest[:16]
    seen[name] += 1
    return f"{batch_id}.{name}" if seen[name] == 1 else f"{batch_id}.{name}.{seen[name]}"
