"""Input that no form of ours sends: it is refused with 4xx, and costs no more than other input."""

import time
import tomllib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode

import apsw
import httpx
import pytest
from tests.web.conftest import ROOT
from tests.web.site import SECRET, make_agents

from holdfast.app import App
from holdfast.checkpoint.codec import Begin, encode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import NewRun
from holdfast.core.errors import DefinitionError
from holdfast.core.run.info import FORK_LABEL, RunInfo
from holdfast.web.auth import LOCAL_PRINCIPAL, Principal
from holdfast.web.server import make_web, serve_locally
from holdfast.web.tokens import BrowserTokens
from holdfast.web.ui.markdown import show_text

EDGES = (
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "9999-12-31T23:59:59.999999Z",
    "1969-12-31T23:59:59Z",
)
RESERVED = ("holdfast.forked_from", "holdfast.type", "holdfast.x")
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with App(make_agents(tmp_path), f"sqlite:{tmp_path / 'runs.db'}", worker=False) as app:
        await app.submit("clerk", "note", run_id="r1", caller_id="ann")
        yield app


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx.AsyncClient]:
    """A client that sees all runs, or those of the header `x-user`."""
    site = make_web(app, authorize=lambda request: _get_principal(request.headers.get("x-user")))
    transport = httpx.ASGITransport(site, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://local") as client:
        yield client


def _get_principal(user: str | None) -> Principal:
    return LOCAL_PRINCIPAL if user is None else Principal(caller_id=user)


@pytest.mark.parametrize("path", [
    *(f"/api/runs?{urlencode({name: edge})}" for name in ("since", "until") for edge in EDGES),
    *(f"/?{urlencode({'q': f'{name}:{edge}'})}" for name in ("since", "until") for edge in EDGES),
    "/api/runs?" + urlencode([("label", f"n{number}=x") for number in range(9)]),
    "/?" + urlencode({"q": " ".join(f"label.n{number}:x" for number in range(10))}),
    f"/api/runs?label=a={'x' * 2_000}",
    f"/api/runs?agent={'x' * 2_000}",
    f"/api/runs?cursor={'x' * 2_000}",
    f"/?cursor={'9' * 5_000}",
    f"/?q={'x' * 5_000}",
    *(f"/runs/r1?{name}={'9' * digits}" for name in ("step", "before") for digits in (20, 5_000)),
    f"/live/runs/r1?after={'9' * 5_000}",
    f"/runs/r1/content/{'9' * 5_000}/0",
    f"/runs/r1/image/0/{'9' * 5_000}",
    f"/runs/r1/fork/{'9' * 5_000}",
])  # fmt: skip
async def test_a_parameter_that_is_not_valid_is_422(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 422


@pytest.mark.parametrize(
    "path", ["/runs/%00", "/runs/" + "x" * 2_000, "/runs/r1%ED%A0%80", "/runs/%C3%A9", "/runs/none"]
)
async def test_an_id_that_no_run_can_have_is_404(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 404
    assert (await client.get(f"/api{path}")).status_code == 404
    for token in ("r1~é", "r1~%00", "r1~[redacted]", "é~é", "r1~" + "x" * 32):
        assert (await client.post(f"/api/calls/{token}", json="forged")).status_code == 404


async def test_a_refused_token_does_not_tell_which_runs_exist(client: httpx.AsyncClient) -> None:
    secret = "x" * 32
    known, unknown = [await client.post(f"/api/calls/{run_id}~{secret}", json=1) for run_id in ("r1", "r2")]
    assert known.status_code == unknown.status_code == 404
    assert known.text.replace("r1~", "r2~") == unknown.text
    assert set(known.headers) == set(unknown.headers)


@pytest.mark.parametrize(("path", "form"), [
    ("/runs/r1/answer", {"decision": "edit", "call_id": "c", "arguments": DEEP}),
    ("/runs/r1/fork", {"step": "9" * 5_000}),
    ("/runs/r1/fork", {"step": "1", "edit": "result", "call_id": "c", "text": DEEP}),
    ("/runs", {"agent": "clerk", "input": "x", "data": DEEP}),
    ("/runs", {"agent": "clerk", "input": "x", "data": '{"a":' * 900 + "1" + "}" * 900}),
    ("/runs", {"agent": "clerk", "input": "x", "labels": "holdfast.forked_from=r1"}),
])  # fmt: skip
async def test_a_form_that_is_not_valid_is_422(client: httpx.AsyncClient, path: str, form: dict[str, str]) -> None:
    assert (await client.post(path, data=form)).status_code == 422


async def test_a_time_at_the_edge_of_the_calendar_is_refused(client: httpx.AsyncClient, app: App) -> None:
    for edge in EDGES:
        body = {"agent": "clerk", "input": "note", "not_before": edge}
        assert (await client.post("/api/runs", json=body)).status_code == 422
    body = {"agent": "clerk", "input": "note", "not_before": "2099-01-01T05:00:00+05:00"}
    run_id = (await client.post("/api/runs", json=body)).json()["run_id"]
    assert str((await app.get(run_id)).not_before) == "2099-01-01 00:00:00+00:00"
    assert (await client.get("/")).status_code == 200


@pytest.mark.parametrize("run_id", [".", ".."])
async def test_an_id_that_browsers_take_for_a_folder_is_refused(
    client: httpx.AsyncClient, app: App, run_id: str
) -> None:
    for user in ({}, {"x-user": "ann"}):
        body = {"agent": "clerk", "input": "note"}
        for response in (
            await client.post("/api/runs", json=body, headers={"idempotency-key": run_id, **user}),
            await client.post("/api/runs/r1/fork", json={"at_step": 1, "run_id": run_id}, headers=user),
            await client.post("/runs", data={**body, "run_id": run_id}, headers=user),
        ):
            assert (response.status_code, "browsers take it for a folder" in response.text) == (422, True)
    assert await app.count() == 1


@pytest.mark.parametrize("label", RESERVED)
async def test_labels_that_relate_runs_are_not_for_callers(client: httpx.AsyncClient, app: App, label: str) -> None:
    body = {"agent": "clerk", "input": "note", "labels": {label: "r1"}}
    assert (await client.post("/api/runs", json=body)).status_code == 422
    for start in (app.submit, app.run):
        with pytest.raises(DefinitionError, match="is set by holdfast"):
            await start("clerk", "note", labels={label: "r1"})
    with pytest.raises(DefinitionError, match="is set by holdfast"):
        app.conversation("talker", "k", labels={label: "r1"})


async def test_forks_of_another_caller_do_not_hide_those_of_the_owner(client: httpx.AsyncClient, app: App) -> None:
    assert app.store is not None
    for number in range(60):
        caller, run_id = ("ann", "own-fork") if number == 0 else ("bob", f"forged-{number}")
        info = RunInfo(run_id=run_id, agent_name="clerk", caller_id=caller, forked_from="r1")
        new = NewRun(
            run_id=run_id,
            agent_name="clerk",
            caller_id=caller,
            labels={FORK_LABEL: "r1"},
            info=encode(info.summarize()),
            progress=encode(Progress()),
            entries=[Entry(seq=0, kind=EntryKind.BEGIN, body=encode(Begin(info=info)))],
        )
        await app.store.create(new)
    for path in ("/runs/r1", "/runs/r1/compare"):
        page = (await client.get(path, headers={"x-user": "ann"})).text
        assert ("own-fork" in page, "forged" in page) == (True, False), path


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE runs SET labels = '{'",
        "UPDATE runs SET agent_name = CAST(X'FF61' AS TEXT)",
        "UPDATE runs SET info = X'00'",
        "UPDATE runs SET progress = X'00'",
        "UPDATE segments SET body = X'00'",
        "DELETE FROM segments",
    ],
)
async def test_a_damaged_run_is_a_problem_that_says_what_to_do(
    client: httpx.AsyncClient, tmp_path: Path, damage: str
) -> None:
    connection = apsw.Connection(str(tmp_path / "runs.db"))
    connection.execute(damage)
    assert connection.changes() == 1
    connection.close()
    for path in ("/", "/api/runs", "/inbox", "/fleet", "/agents", "/api/pending", "/metrics"):
        assert (await client.get(path)).status_code in (200, 404), path
    for path in ("", "/export.json", "/export.html", "/fork/1", "/compare"):
        assert (await client.get(f"/runs/r1{path}")).status_code < 500, path
    page, problem = await client.get("/runs/r1"), await client.get("/api/runs/r1")
    if problem.status_code != 200:  # some fields are not needed to show the run
        assert (page.status_code, problem.status_code) == (409, 409)
        assert "holdfast rm --force" in page.text
        assert "holdfast rm --force" in problem.json()["detail"]
    assert (await client.get("/api/runs/r1", headers={"x-user": "bob"})).status_code == 404


def test_no_release_of_starlette_with_a_known_hole_is_installed() -> None:
    """A range in the headers of a request for a file took quadratic time before 0.49.1."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [bound] = [each for each in extras["web"] if each.startswith("starlette")]
    assert tuple(map(int, bound.removeprefix("starlette>=").split("."))) >= (0, 49, 1)


async def test_labels_are_bounded(app: App) -> None:
    for labels in ({f"n{number}": "" for number in range(65)}, {"n" * 201: ""}, {"n": "v" * 1_001}):
        with pytest.raises(DefinitionError, match=r"labels|too long"):
            await app.submit("clerk", "note", labels=labels)


async def test_the_start_form_does_not_confirm_the_prompt_of_another_caller(client: httpx.AsyncClient) -> None:
    answers = []
    for prompt in ("note", "something else"):
        form = {"agent": "clerk", "input": prompt, "run_id": "r1"}
        response = await client.post("/runs", data=form, headers={"x-user": "bob"})
        answers.append((response.status_code, "taken" in response.text))
    assert answers == [(409, True), (409, True)]
    own = await client.post(
        "/runs", data={"agent": "clerk", "input": "note", "run_id": "r1"}, headers={"x-user": "ann"}
    )
    assert own.status_code == 303


async def test_a_stream_ends_when_its_token_expires(app: App) -> None:
    tokens = BrowserTokens(SECRET)
    site = make_web(app, authorize=tokens.authorize)
    async with serve_locally(site, 0) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
        for path in ("/api/runs/r1/events", "/live/runs/r1", "/live/runs", "/live/inbox"):
            token = tokens.issue("r1", expires_in=timedelta(seconds=1))
            assert "event: end" not in (await client.get(path, params={"token": token})).text
            assert (await client.get(path, params={"token": token})).status_code == 401


@pytest.mark.parametrize("text", ["[", "[a", "**", "**a", "`", "```\n", "http://", "[a](http://", "(", "https://a:::"])
def test_rendering_takes_linear_time(text: str) -> None:
    """One long text takes about as long as 32 short ones of the same length in all; quadratic time is 32 times that."""
    short, long = (text * (size // len(text)) for size in (3_000, 96_000))
    ratios = [_time_rendering(long) / sum(_time_rendering(short) for _ in range(32)) for _ in range(3)]
    assert min(ratios) < 8


def test_text_of_megabytes_is_not_rendered() -> None:
    assert "<strong>" in show_text("**a** " * 10_000)
    assert "<strong>" not in show_text("**a** " * 400_000)


def _time_rendering(text: str) -> float:
    begin = time.process_time()
    show_text(text)
    return time.process_time() - begin
