"""Operations on conversations. Their events are those of the run with their id."""

import functools
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from holdfast.checkpoint.delta import JournaledTurn, read_turns
from holdfast.checkpoint.errors import RunConflict, RunNotFound
from holdfast.checkpoint.store import get_record
from holdfast.core.execution.native_loop import get_loop
from holdfast.core.run.prompt import Prompt
from holdfast.core.run.turns import make_conversation_id
from holdfast.root_error import HoldfastError
from holdfast.runtime.operations.conversations import CONVERSATION_LABEL, Conversation, When
from holdfast.runtime.reading.run_views import RunList
from holdfast.web.api.operation import (
    DEFAULT_WAIT,
    LIST_PARAMETERS,
    MAX_WAIT,
    Context,
    Handler,
    Operation,
    RequestParameter,
    describe_number,
    wait_for_end,
)
from holdfast.web.api.run_operations import list_runs
from holdfast.web.auth import Principal
from holdfast.web.wire import (
    ConversationForkRequest,
    ConversationHistory,
    RunReference,
    TurnReference,
    TurnRequest,
    TurnSummary,
    Unfinished,
)


async def open_conversation(context: Context, agent: str, key: str) -> Conversation[Any]:
    """Return a conversation that the principal may see, or a new one.

    Raises:
        RunNotFound: it belongs to another caller.
    """
    key = scope_key(context.principal, agent, key)
    conversation = context.app.conversation(agent, key, caller_id=context.principal.caller_id)
    try:
        await context.find_visible(conversation.run_id)
    except RunNotFound:
        # That of another caller, or none: only a principal that may see the new one may begin it.
        if await _exists(context, conversation.run_id):
            raise
        if not context.principal.can_see(conversation.run_id, context.principal.caller_id):
            raise
    return conversation


def scope_key(principal: Principal, agent: str, key: str) -> str:
    """Return the key under which a conversation of the principal is stored: two callers may choose the same one.

    A principal that sees all runs, or that has a token for this conversation, names the stored key itself.
    """
    if principal.sees_all or principal.run_id == make_conversation_id(agent, key):
        return key
    prefix = quote(principal.caller_id, safe="").replace(".", "%2E") + "."
    return key if key.startswith(prefix) else prefix + key


async def post_message(
    context: Context, conversation: Conversation[Any], content: Prompt, *, id: str | None = None, when: When = "queue"
) -> str:
    """Send a message to a conversation that `open_conversation` has returned, and return the id of the message.

    Raises:
        RunNotFound: another caller began it at the same time.
        DefinitionError, PayloadError: the message is not valid. It begins no conversation.
    """
    if not await _exists(context, conversation.run_id):
        conversation.check_message(content, id=id, when=when)
        await conversation.begin()
    await context.find_visible(conversation.run_id)
    return await conversation.post(content, id=id, when=when)


async def _exists(context: Context, run_id: str) -> bool:
    try:
        await get_record(context.store, run_id)
    except RunNotFound:
        return False
    return True


async def _find(context: Context) -> Conversation[Any]:
    """Return the conversation in the path, which has begun. Raises `RunNotFound`."""
    parameters = context.request.path_params
    agent = parameters["agent"]
    key = scope_key(context.principal, agent, parameters["key"])
    record = await context.find_visible(context.app.conversation(agent, key).run_id)
    return context.app.conversation(agent, key, caller_id=record.caller_id)  # a fork inherits the caller


def _name_by_key(handler: Handler) -> Handler:
    """Let errors name a conversation by its key, as the client does, and not by the id of the run that stores it."""

    @functools.wraps(handler)
    async def call(context: Context) -> Any:
        try:
            return await handler(context)
        except HoldfastError as exc:
            agent, keys = context.request.path_params["agent"], [context.request.path_params["key"]]
            if isinstance(context.body, ConversationForkRequest):
                keys.append(context.body.key)
            for key in keys:
                run_id = make_conversation_id(agent, scope_key(context.principal, agent, key))
                text = str(exc).replace(f"run {run_id}", f"conversation {key}").replace(run_id, key)
                exc.args = (text, *exc.args[1:])
            raise

    return call


async def list_conversations(context: Context) -> RunList:
    return await list_runs(context, CONVERSATION_LABEL)


@_name_by_key
async def send_turn(context: Context) -> TurnReference:
    body: TurnRequest = context.body
    parameters = context.request.path_params
    conversation = await open_conversation(context, parameters["agent"], parameters["key"])
    turn_id = await post_message(context, conversation, body.content, id=body.id, when=body.when)
    return TurnReference(run_id=conversation.run_id, turn_id=turn_id)


@_name_by_key
async def get_conversation(context: Context) -> ConversationHistory:
    conversation = await _find(context)
    return ConversationHistory(run_id=conversation.run_id, turns=tuple(await _read_turns(context, conversation)))


async def _read_turns(context: Context, conversation: Conversation[Any]) -> list[TurnSummary]:
    stored = await context.store.load(conversation.run_id)
    loop = get_loop(context.app.agent(context.request.path_params["agent"]))
    return [_summarize(turn) for turn in read_turns(conversation.run_id, stored.entries, loop.codec)]


def _summarize(turn: JournaledTurn) -> TurnSummary:
    """Summarize a turn. Its output stays plain data."""
    began, ended = turn.input, turn.record
    return TurnSummary(
        turn_id=began.turn_id,
        number=began.number,
        status="running" if ended is None else ended.status,
        prompt=began.prompt,
        output=None if ended is None else ended.output,
        error="" if ended is None else ended.error,
        usage=began.totals.usage if ended is None else ended.usage,
        steps=0 if ended is None else ended.steps,
        began_at=began.at,
        ended_at=None if ended is None else ended.at,
    )


@_name_by_key
async def get_turn(context: Context) -> TurnSummary | Response:
    conversation, turn_id = await _find(context), context.request.path_params["turn_id"]
    unfinished = await wait_for_end(
        context, functools.partial(conversation.result, turn_id), conversation.run_id, turn_id
    )
    if unfinished is not None:
        return unfinished
    return next(turn for turn in await _read_turns(context, conversation) if turn.turn_id == turn_id)


@_name_by_key
async def fork_conversation(context: Context) -> RunReference:
    context.principal.check_another_run()
    body: ConversationForkRequest = context.body
    conversation = await _find(context)
    agent = context.request.path_params["agent"]
    key = scope_key(context.principal, agent, body.key)
    target = context.app.conversation(agent, key)
    if await _exists(context, target.run_id):
        raise RunConflict(target.run_id, agent)
    fork = await conversation.fork(body.at_turn, edited=body.edited, key=key)
    return RunReference(run_id=fork.run_id)


@_name_by_key
async def erase_conversation(context: Context) -> None:
    await (await _find(context)).erase()


_PATH = "/conversations/{agent}/{key}"

CONVERSATION_OPERATIONS = (
    Operation(
        method="GET",
        path="/conversations",
        handler=list_conversations,
        scope="read",
        summary="A page of conversations, newest first.",
        response=RunList,
        parameters=LIST_PARAMETERS,
    ),
    Operation(
        method="GET",
        path=_PATH,
        handler=get_conversation,
        scope="read",
        summary="A conversation and its turns, oldest first.",
        response=ConversationHistory,
    ),
    Operation(
        method="POST",
        path=f"{_PATH}/messages",
        handler=send_turn,
        scope="send",
        summary="Send a message, which begins a turn. The first one begins the conversation.",
        request=TurnRequest,
        response=TurnReference,
        status=202,
    ),
    Operation(
        method="GET",
        path=f"{_PATH}/turns/{{turn_id}}",
        handler=get_turn,
        scope="read",
        summary="Wait for the end of a turn. 202 says that it has not ended; its `calls` wait for an answer.",
        response=TurnSummary,
        other_responses={202: Unfinished},
        parameters=(
            RequestParameter(
                name="wait", description="How many seconds to wait.", schema=describe_number(DEFAULT_WAIT, MAX_WAIT)
            ),
        ),
    ),
    Operation(
        method="POST",
        path=f"{_PATH}/fork",
        handler=fork_conversation,
        scope="start",
        summary="Begin a new conversation with the turns of this one.",
        request=ConversationForkRequest,
        response=RunReference,
        status=202,
    ),
    Operation(
        method="DELETE",
        path=_PATH,
        handler=erase_conversation,
        scope="control",
        summary="Remove a conversation from the store. A turn in progress is cancelled.",
        status=204,
    ),
)
