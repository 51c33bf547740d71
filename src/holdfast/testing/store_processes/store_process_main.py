"""A child process with a store: `python -m holdfast.testing.store_processes.store_process_main FACTORY LOCATION`.

It reads calls from standard input, makes them concurrently, and writes the answers to the original standard output.
When the input ends it closes the store and exits.
"""

import asyncio
import functools
import importlib
import os
import sys
from collections.abc import Callable

import msgspec

from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import this_process
from holdfast.testing.store_processes.store_process import (
    LENGTH_BYTES,
    OPEN_REQUEST,
    Answer,
    Call,
    CallAccepted,
    CallRaised,
    CallReturned,
    StoreOpened,
    encode_frame,
    format_connection_name,
    get_arguments_type,
)


def load_store_factory(factory: str) -> Callable[[str], RunStore]:
    """Import the function `module:function`. It takes a location and returns a store that is not open."""
    module, _, name = factory.partition(":")
    builder: Callable[[str], RunStore] = getattr(importlib.import_module(module), name)
    return builder


class _StoreServer:
    def __init__(self, store: RunStore, answers: int) -> None:
        self._store = store
        self._answers = answers

    def send(self, answer: Answer) -> None:
        # Unbuffered, so that the answer is in the pipe even if the process is killed next.
        rest = memoryview(encode_frame(answer))
        while rest:
            rest = rest[os.write(self._answers, rest) :]

    async def handle_call(self, call: Call) -> None:
        arguments = msgspec.structs.asdict(msgspec.msgpack.decode(call.arguments, type=get_arguments_type(call.method)))
        self.send(CallAccepted(number=call.number))
        try:
            value = await getattr(self._store, call.method)(**arguments)
        except Exception as exc:  # of any kind: the test in the parent process raises it
            attributes = {name: value for name, value in vars(exc).items() if isinstance(value, str | int | None)}
            answer = CallRaised(number=call.number, error=type(exc).__name__, message=str(exc), attributes=attributes)
            self.send(answer)
        else:
            self.send(CallReturned(number=call.number, value=msgspec.Raw(msgspec.msgpack.encode(value))))


async def serve(factory: str, location: str, answers: int) -> None:
    calls = asyncio.StreamReader()
    protocol = functools.partial(asyncio.StreamReaderProtocol, calls)
    await asyncio.get_running_loop().connect_read_pipe(protocol, sys.stdin)
    build = load_store_factory(factory)
    if await calls.read(len(OPEN_REQUEST)) != OPEN_REQUEST:
        return  # a spare process that the parent did not need
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
    # Standard output becomes standard error, so that output of the store does not mix with the answers.
    channel = os.dup(1)
    os.dup2(2, 1)
    os.environ["PGAPPNAME"] = format_connection_name(os.getpid())
    asyncio.run(serve(sys.argv[1], sys.argv[2], channel))
