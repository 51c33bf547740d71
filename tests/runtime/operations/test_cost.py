"""A turn costs the same in a long conversation as in a short one."""

from bench.systems.holdfast.conversation import AGENT, QUESTION, CountingStore

from holdfast import App
from holdfast.stores.memory import MemoryStore


async def test_turn_200_writes_and_loads_what_turn_10_does() -> None:
    store = CountingStore(MemoryStore())
    costs: dict[int, tuple[int, int]] = {}
    async with App([AGENT], store) as app:
        chat = app.conversation(AGENT, "k")
        for number in range(1, 201):
            before = store.written, store.loaded
            await chat.send(QUESTION, id=f"message-{number:03}")
            costs[number] = store.written - before[0], store.loaded - before[1]
    written = {number: costs[number][0] for number in costs}
    # Numbers, such as those of entries, grow by a digit.
    assert written[200] - written[10] < 0.02 * written[10]
    assert costs[200][1] == costs[10][1] == costs[2][1]
