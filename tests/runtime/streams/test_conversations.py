"""The stream of a conversation: it continues between turns, and ends when the conversation is closed."""

from contextlib import aclosing

from tests.runtime.streams.watching import collect, get_types, wait_for
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App
from holdfast.events import StatusChanged, TurnFinished, TurnStarted

ONE_TURN = ["turn_started", "message", "reply", "step_finished", "turn_finished"]


async def test_a_conversation_is_seen_turn_by_turn(store_url: str) -> None:
    async with App([Agent(name="a", model=ScriptedModel("one", "two"))], store_url) as app:
        chat = app.conversation("a", "k")
        await chat.send("hello", id="m1")
        async with aclosing(app.events(chat.run_id)) as events:
            first = await wait_for(events, lambda event: isinstance(event, TurnStarted))
            assert (first.turn_id, first.number, first.prompt) == ("m1", 1, "hello")  # type: ignore[union-attr]
            await wait_for(events, lambda event: isinstance(event, StatusChanged) and event.status == "waiting")
            await chat.send("again", id="m2")
            second = await wait_for(events, lambda event: isinstance(event, TurnFinished))
            assert (second.turn_id, second.number, second.output) == ("m2", 2, "two")  # type: ignore[union-attr]
            await chat.close()
            assert (await collect(events))[-1] == StatusChanged(run_id=chat.run_id, status="done")
        everything = await collect(app.events(chat.run_id))
        assert get_types(everything) == [*ONE_TURN, *ONE_TURN, "output"]
        assert get_types(await collect(app.events(chat.run_id, second.cursor))) == ["output"]
