"""Operations on runs."""

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any

from starlette.responses import Response

from holdfast.app import App
from holdfast.checkpoint.errors import RunConflict, RunExists
from holdfast.checkpoint.store import get_record
from holdfast.clock import CLOCK
from holdfast.core.errors import DefinitionError
from holdfast.core.run.prompt import Prompt
from holdfast.core.run.run_events import Event
from holdfast.fanout.responses import is_fanout, read_responses
from holdfast.runtime.operations.mailing import Mailer
from holdfast.runtime.operations.verdicts import PICK, read_verdict, record_verdict
from holdfast.runtime.reading.run_summary import summarize_run
from holdfast.runtime.reading.run_views import RunDetails, RunList
from holdfast.runtime.reading.transcript import CallRecord
from holdfast.web.api.operation import (
    DEFAULT_PAGE,
    DEFAULT_WAIT,
    LIST_PARAMETERS,
    MAX_PAGE,
    MAX_WAIT,
    Context,
    Operation,
    RequestParameter,
    describe_number,
    read_number,
    read_query,
    wait_for_end,
)
from holdfast.web.auth import Principal, check_decider, list_visible
from holdfast.web.sse import EventStreamResponse, encode_events
from holdfast.web.wire import (
    AnswerRequest,
    ForkRequest,
    MailReference,
    MessageRequest,
    PendingCalls,
    PickRequest,
    PickResponse,
    RunReference,
    RunRequest,
    RunRequestBody,
    RunResult,
    SignalRequest,
    Unfinished,
    UnparkRequest,
)


async def submit_run(context: Context) -> RunReference:
    body: RunRequest = context.body
    run_id = await submit_visible(
        context.app,
        context.principal,
        body.agent,
        body.input,
        inputs=body.inputs,
        run_id=context.request.headers.get("idempotency-key"),
        not_before=body.not_before,
        **body.options,
    )
    return RunReference(run_id=run_id)


async def submit_visible(app: App, principal: Principal, agent: str, prompt: Prompt, **options: Any) -> str:
    """Queue a run of the principal, and return its id. The id of a run that it may not see is taken, and no more.

    Raises:
        Forbidden: the principal is for one run, and this is another.
        RunExists: the id belongs to another caller. RunConflict: a run of the principal has another agent or input.
        DefinitionError: an option is not valid.
    """
    if options["run_id"] is None or options["run_id"] != principal.run_id:
        principal.check_another_run()
    principal.check_new_id(options["run_id"])
    assert app.store is not None
    conflict: RunConflict | None = None
    try:
        run_id = await app.submit(agent, prompt, caller_id=principal.caller_id, **options)
    except RunConflict as exc:
        conflict, run_id = exc, exc.run_id
    if not principal.can_see(run_id, (await get_record(app.store, run_id)).caller_id):
        raise RunExists(run_id, "choose another id")
    if conflict is not None:
        raise conflict
    return run_id


async def list_runs(context: Context, labels: Mapping[str, str] | None = None) -> RunList:
    """Return the runs that the principal may see, with these labels if they are given."""
    query = read_query(context.request)
    query["labels"] = {**(query.get("labels") or {}), **(labels or {})}
    limit = read_number(context.request, "limit", DEFAULT_PAGE, MAX_PAGE)
    cursor = context.request.query_params.get("cursor")
    page = await list_visible(context.store, context.principal, limit=limit, cursor=cursor, **query)
    return RunList(runs=tuple(map(summarize_run, page.records)), cursor=page.cursor)


async def get_run(context: Context) -> RunDetails:
    await context.find_run()
    return await context.app.get(context.run_id)


async def list_pending(context: Context) -> PendingCalls:
    """Return the calls that the principal may answer, with the digest that an answer names."""
    params, principal = context.request.query_params, context.principal
    caller = None if principal.sees_all or principal.run_id is not None else principal.caller_id
    calls = await context.app.pending(agent=params.get("agent"), tool=params.get("tool"), caller=caller)
    if principal.run_id is not None:
        await context.find_visible(principal.run_id)
        calls = [call for call in calls if call.run_id == principal.run_id]
    return PendingCalls(calls=tuple(map(CallRecord.from_wait, calls)))


async def get_result(context: Context) -> RunResult | Response:
    await context.find_run()
    unfinished = await wait_for_end(context, partial(context.app.result, context.run_id), context.run_id)
    if unfinished is not None:
        return unfinished
    run = await context.app.get(context.run_id)  # its output is plain data
    return RunResult(run_id=run.run_id, output=run.output, usage=run.usage, steps=run.steps)


async def stream_events(context: Context) -> Response:
    record = await context.find_run()
    after = context.request.headers.get("last-event-id") or context.request.query_params.get("after")
    events = context.app.events(context.run_id, after=after)
    # Before the response begins, so that an unknown cursor is an error. The first event comes at once.
    first = await _read_first(events, durable=record.is_terminal and after is not None)
    if not first:
        return Response(status_code=204)  # a browser that reads this does not connect again
    return EventStreamResponse(encode_events(events, first), expires_at=context.principal.expires_at)


async def _read_first(events: AsyncGenerator[Event], *, durable: bool) -> list[Event]:
    """Return the first event, or all up to the first durable one. None: there is no such event."""
    first: list[Event] = []
    async for event in events:
        first.append(event)
        if event.cursor is not None or not durable:
            return first
    return []


async def send_message(context: Context) -> MailReference:
    await context.find_run()
    body: MessageRequest = context.body
    mail_id = await context.app.send(context.run_id, body.text, id=body.id)
    return MailReference(run_id=context.run_id, id=mail_id)


async def send_signal(context: Context) -> MailReference:
    await context.find_run()
    body: SignalRequest = context.body
    mail_id = await context.app.signal(context.run_id, body.name, body.payload, id=body.id)
    return MailReference(run_id=context.run_id, id=mail_id)


async def answer_call(context: Context) -> RunReference:
    await context.find_run()
    body: AnswerRequest = context.body
    digest = await check_decider(context.store, context.principal, context.run_id, body.call_id, body.digest)
    await context.app.answer(
        context.run_id,
        body.call_id,
        body.to_answer(),
        by=context.principal.caller_id,
        via="http",
        digest=digest,
    )
    return RunReference(run_id=context.run_id)


async def cancel_run(context: Context) -> RunReference:
    await context.find_run()
    await context.app.cancel(context.run_id)
    return RunReference(run_id=context.run_id)


async def resume_run(context: Context) -> RunReference:
    await context.find_run()
    await context.app.requeue(context.run_id)
    return RunReference(run_id=context.run_id)


async def unpark_run(context: Context) -> RunReference:
    await context.find_run()
    body: UnparkRequest = context.body
    resolutions = {each.call_id: each.value for each in body.resolutions}
    await context.app.unpark(context.run_id, resolutions, by=context.principal.caller_id, via="http")
    return RunReference(run_id=context.run_id)


async def fork_run(context: Context) -> RunReference:
    await context.find_run()
    context.principal.check_another_run()
    body: ForkRequest = context.body
    context.principal.check_new_id(body.run_id)
    new_id = await context.app.fork(
        context.run_id, body.at_step, edited=body.edited, results=body.results, new_id=body.run_id
    )
    return RunReference(run_id=new_id)


async def get_pick(context: Context) -> PickResponse:
    await context.find_run()
    return PickResponse(pick=await read_verdict(context.store, context.run_id, PICK))


async def pick_result(context: Context) -> PickResponse:
    record = await context.find_run()
    body: PickRequest = context.body
    if is_fanout(record):
        known = [response.model_id for response in await read_responses(context.store, record.run_id)]
        if body.result and body.result not in known:
            raise DefinitionError(f"{body.result!r:.80} is not a model of this fan-out: it has {', '.join(known)}")
    elif body.result:
        await context.find_visible(body.result)
    await record_verdict(context.store, record.run_id, PICK, body.result, by=context.principal.caller_id)
    return await get_pick(context)


async def check_token(context: Context) -> None:
    await Mailer(context.store, clock=CLOCK.get()).check_token(context.request.path_params["token"])


async def complete_call(context: Context) -> None:
    await context.app.complete_call(context.request.path_params["token"], context.body)


RUN_OPERATIONS = (
    Operation(
        method="POST",
        path="/runs",
        handler=submit_run,
        scope="start",
        summary="Queue a run. It is durable when this responds.",
        request=RunRequestBody,
        response=RunReference,
        status=202,
        parameters=(
            RequestParameter(
                name="Idempotency-Key",
                description="The run id. The same id again with the same agent and input is the same run.",
                place="header",
            ),
        ),
    ),
    Operation(
        method="GET",
        path="/runs",
        handler=list_runs,
        scope="read",
        summary="A page of runs, newest first.",
        response=RunList,
        parameters=LIST_PARAMETERS,
    ),
    Operation(
        method="GET",
        path="/pending",
        handler=list_pending,
        scope="read",
        summary="The calls of all runs that wait for a person, with the digest that an answer names.",
        response=PendingCalls,
        parameters=(
            RequestParameter(name="agent", description="Only calls of this agent's runs."),
            RequestParameter(name="tool", description="Only calls of this tool."),
        ),
    ),
    Operation(
        method="GET",
        path="/runs/{run_id}",
        handler=get_run,
        scope="read",
        summary="The current state of a run.",
        response=RunDetails,
    ),
    Operation(
        method="GET",
        path="/runs/{run_id}/result",
        handler=get_result,
        scope="read",
        summary="Wait for the result of a run. 202 says that it has not ended; its `calls` wait for an answer.",
        response=RunResult,
        other_responses={202: Unfinished},
        parameters=(
            RequestParameter(
                name="wait",
                description="How many seconds to wait.",
                schema=describe_number(DEFAULT_WAIT, MAX_WAIT),
            ),
        ),
    ),
    Operation(
        method="GET",
        path="/runs/{run_id}/events",
        handler=stream_events,
        scope="read",
        summary="The events of a run as server-sent events, until it ends. Durable events have an id.",
        response=Event,
        other_responses={204: None},
        media_type="text/event-stream",
        parameters=(
            RequestParameter(name="Last-Event-ID", description="Continue after this event.", place="header"),
            RequestParameter(
                name="after", description="The same as Last-Event-ID, for the first connection of a browser."
            ),
        ),
    ),
    Operation(
        method="POST",
        path="/runs/{run_id}/messages",
        handler=send_message,
        scope="send",
        summary="Send a message, which the run reads before its next step.",
        request=MessageRequest,
        response=MailReference,
        status=202,
    ),
    Operation(
        method="POST",
        path="/runs/{run_id}/signals",
        handler=send_signal,
        scope="send",
        summary="Send a signal, for which the tool `wait_for` waits.",
        request=SignalRequest,
        response=MailReference,
        status=202,
    ),
    Operation(
        method="POST",
        path="/runs/{run_id}/answers",
        handler=answer_call,
        scope="answer",
        summary="Approve, deny or answer a call that waits for a person.",
        request=AnswerRequest,
        response=RunReference,
        status=202,
    ),
    Operation(
        method="POST",
        path="/runs/{run_id}/cancel",
        handler=cancel_run,
        scope="control",
        summary="Cancel a run and its child runs.",
        response=RunReference,
        status=202,
    ),
    Operation(
        method="POST",
        path="/runs/{run_id}/resume",
        handler=resume_run,
        scope="control",
        summary="Leave a parked, failed or cancelled run to the workers, which resume it.",
        response=RunReference,
        status=202,
    ),
    Operation(
        method="POST",
        path="/runs/{run_id}/unpark",
        handler=unpark_run,
        scope="control",
        summary="Leave a parked run to the workers, with what a person has found out about its calls in doubt.",
        request=UnparkRequest,
        response=RunReference,
        status=202,
    ),
    Operation(
        method="POST",
        path="/runs/{run_id}/fork",
        handler=fork_run,
        scope="start",
        summary="Queue a new run that starts with the state of this one after a step, or with another past.",
        request=ForkRequest,
        response=RunReference,
        status=202,
    ),
    Operation(
        method="GET",
        path="/runs/{run_id}/pick",
        handler=get_pick,
        scope="read",
        summary="Which result of a fan-out, of a run and its forks, or of its child runs a person has picked.",
        response=PickResponse,
    ),
    Operation(
        method="POST",
        path="/runs/{run_id}/pick",
        handler=pick_result,
        scope="answer",
        summary="Pick one of several results.",
        request=PickRequest,
        response=PickResponse,
    ),
    Operation(
        method="POST",
        path="/calls/{token}",
        handler=complete_call,
        scope=None,
        check=check_token,
        summary="Give the result of a call whose tool returned `Deferred`: the body is the result.",
        request=Any,
        status=204,
    ),
)
