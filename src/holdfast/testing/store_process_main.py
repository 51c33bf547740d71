"""A child process with a store of its own: `python -m holdfast.testing.store_process_main FACTORY LOCATION`.

It makes the calls that come in on standard input, as many at once as come, and answers on what was standard output.
It ends, and closes its store, when the input ends.
"""

import asyncio
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.checkpoint.claim import this_process
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_process import (
    LENGTH_BYTES,
    OPEN_REQUEST,
    Answer,
    Call,
    CallRaised,
    CallReturned,
    CallStarted,
    StoreOpened,
    encode_frame,
    format_connection_name,
    get_arguments_type,
)


def load_store_factory(factory: str) -> Callable[[str], CheckpointStore]:
    """The function that `module:function` names: from a location to a store that is not open yet."""
    module, _, name = factory.partition(":")
    builder: Callable[[str], CheckpointStore] = getattr(importlib.import_module(module), name)
    return builder


class _StoreServer:
    def __init__(self, store: CheckpointStore, answers: int) -> None:
        self._store = store
        self._answers = answers

    def send(self, answer: Answer) -> None:
        # Straight to the pipe: what was said is out, whatever happens to this process next.
        rest = memoryview(encode_frame(answer))
        while rest:
            rest = rest[os.write(self._answers, rest) :]

    async def handle_call(self, call: Call) -> None:
        arguments = msgspec.structs.asdict(msgspec.msgpack.decode(call.arguments, type=get_arguments_type(call.method)))
        self.send(CallStarted(number=call.number))
        try:
            value = await self._call_store(call.method, arguments)
        except Exception as exc:  # whatever it is, the test in the other process is to see it
            attributes = {name: value for name, value in vars(exc).items() if isinstance(value, str | int | None)}
            answer = CallRaised(number=call.number, error=type(exc).__name__, message=str(exc), attributes=attributes)
            self.send(answer)
        else:
            self.send(CallReturned(number=call.number, value=msgspec.Raw(msgspec.msgpack.encode(value))))

    async def _call_store(self, method: str, arguments: dict[str, Any]) -> Any:
        if method == "list_runs":
            return [record async for record in self._store.list_runs(**arguments)]
        return await getattr(self._store, method)(**arguments)


async def serve(factory: str, location: str, answers: int) -> None:
    calls = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(calls), sys.stdin)
    build = load_store_factory(factory)
    if await calls.read(len(OPEN_REQUEST)) != OPEN_REQUEST:
        return  # whoever started this process had no use for it
    store = build(location)
    await store.open()
    server = _StoreServer(store, answers)
    server.send(StoreOpened(process=this_process(), durable=store.durable))
    async with asyncio.TaskGroup() as tasks:
        while length := await calls.read(LENGTH_BYTES):
            length += await calls.readexactly(LENGTH_BYTES - len(length))
            packed = await calls.readexactly(int.from_bytes(length, "big"))
            tasks.create_task(server.handle_call(msgspec.msgpack.decode(packed, type=Call)))
    await store.close()


if __name__ == "__main__":
    # Whatever a store prints must not get between the answers.
    channel = os.dup(1)
    os.dup2(2, 1)
    os.environ["PGAPPNAME"] = format_connection_name(os.getpid())
    asyncio.run(serve(sys.argv[1], sys.argv[2], channel))
