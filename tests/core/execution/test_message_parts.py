"""Messages of content parts, such as pictures, to runs and conversations in progress, for both loops."""

from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import BinaryContent
from tests.adapters.scripted_model import ScriptedModel as PydanticScript
from tests.adapters.scripted_model import get_texts
from tests.core.test_custom_loop import LineLoop
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App, User
from holdfast.adapters.pydantic_ai import durable
from holdfast.checkpoint.store import END
from holdfast.core.errors import DefinitionError
from holdfast.stores.memory import MemoryStore

PICTURE = {"type": "image", "source": "a.png"}


async def test_a_native_run_reads_a_picture_as_its_prompt_would_be_read() -> None:
    model = ScriptedModel("done")
    async with App([Agent(name="a", model=model)], MemoryStore(), worker=False) as app:
        await app.submit("a", "go", run_id="r")
        for _ in range(2):
            assert await app.send("r", ["look at", PICTURE], id="m1") == "m1"
        assert (await app.resume("r")).output == "done"
    assert model.requests[0][-1] == User("look at [image]", ["look at", PICTURE])
    assert len([message for message in model.requests[0] if isinstance(message, User)]) == 2


async def test_a_run_of_pydantic_ai_reads_a_picture_after_another_process_has_sent_it(durable_store_url: str) -> None:
    script = PydanticScript("done")
    picture = BinaryContent(bytes(range(256)), media_type="image/png")
    agent = durable(PydanticAgent(script.model, name="a"))
    async with App([agent], durable_store_url, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        await app.send("r", ["look at", picture])
    async with App([agent], durable_store_url, worker=False) as app:
        assert (await app.resume("r")).output == "done"
    assert get_texts(script.asked[0])[-1] == ("user-prompt", ["look at", ("image/png", picture.data)])


async def test_a_message_that_steers_a_turn_may_have_parts() -> None:
    model = ScriptedModel("done")
    async with App([Agent(name="a", model=model)], MemoryStore()) as app:
        turn = await app.conversation("a", "k").send(["look at", PICTURE], when="steer")
        assert turn.output == "done"
    assert model.requests[0][-1] == User("look at [image]", ["look at", PICTURE])


@pytest.mark.parametrize(
    ("content", "text"),
    [([], "content parts"), ([7], "cannot be used"), (b"bytes", "content parts"), ([{"data": b"x"}], "the prompt")],
)
async def test_bad_parts_are_refused_and_nothing_is_sent(content: Any, text: str) -> None:
    async with App([Agent(name="a", model=ScriptedModel("done"))], MemoryStore(), worker=False) as app:
        await app.submit("a", "go", run_id="r")
        with pytest.raises(DefinitionError, match=text):
            await app.send("r", content)
        assert app.store is not None
        assert (await app.store.load("r", after=END)).mail == ()


async def test_an_agent_that_accepts_text_only_says_so() -> None:
    async with App([Agent(name="lines", loop=LineLoop())], MemoryStore(), worker=False) as app:
        await app.submit("lines", "say a", run_id="r")
        with pytest.raises(DefinitionError, match="accepts text only"):
            await app.send("r", ["look at", PICTURE])
