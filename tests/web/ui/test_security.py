"""What the page refuses: requests without credentials, of other origins, for the runs of others; and hostile text."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount, Route
from tests.web.ui.journals import store_hostile_run
from tests.web.ui.server import UIServer

from holdfast.app import App
from holdfast.web.auth import ALL_SCOPES, Principal, Scope
from holdfast.web.ui import make_ui


def authorize(request: Request) -> Principal | None:
    """Trust a header, as behind a proxy that sets it."""
    user = request.headers.get("x-user")
    scopes: dict[str | None, set[Scope]] = {"reader": {"read"}, "mallory": set(ALL_SCOPES)}
    if user == "holder":  # of a token for one run
        return Principal(caller_id=user, run_id="of-bob")
    return None if user is None else Principal(caller_id=user, scopes=scopes.get(user, {"read", "control"}))


def mount_under_prefix(app: App) -> Starlette:
    return Starlette(routes=[Mount("/ops/runs", make_ui(app, authorize=authorize))])


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UIServer]:
    """A server with users, under a prefix."""
    with UIServer(f"sqlite:{tmp_path_factory.mktemp('mounted') / 'runs.db'}", mount_under_prefix) as server:
        server.submit("clerk", "Pay for alice.", "of-alice", caller_id="alice")
        server.submit("clerk", "Pay for bob.", "of-bob", caller_id="bob")
        server.wait_for("of-alice", "waiting")
        server.wait_for("of-bob", "waiting")
        yield server


def test_every_response_has_a_strict_policy(server: UIServer) -> None:
    for path in ("/", "/inbox", "/runs/none", "/static/style.css", "/no/such/page", "/static/none.js"):
        headers = httpx.get(server.url + path).headers
        policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'", path
        assert policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store" or path == "/static/style.css"


def test_the_files_of_the_page_are_small() -> None:
    root = Path(make_ui.__code__.co_filename).parent
    files = [file for file in (root / "static").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 100_000, "what a browser loads"
    templates = [file.stat().st_size for file in (root / "templates").rglob("*.html")]
    assert sum(templates) < 110_000


def test_a_user_sees_only_the_own_runs(mounted: UIServer, page: Page) -> None:
    page.set_extra_http_headers({"x-user": "alice"})
    for path in ("/", "/inbox"):
        page.goto(f"{mounted.url}/ops/runs{path}")
        expect(page.locator("main")).to_contain_text("of-alice")
        expect(page.locator("main")).not_to_contain_text("of-bob")
    for path in ("/runs/of-bob", "/runs/of-bob/export.json", "/runs/of-bob/export.html", "/live/runs/of-bob"):
        assert httpx.get(f"{mounted.url}/ops/runs{path}", headers={"x-user": "alice"}).status_code == 404
    assert "of-bob" not in httpx.get(f"{mounted.url}/ops/runs/?q=caller:bob", headers={"x-user": "alice"}).text
    refused = httpx.post(f"{mounted.url}/ops/runs/runs/of-bob/cancel", headers={"x-user": "alice"})
    assert refused.status_code == 404
    assert mounted.call(mounted.app.get("of-bob")).status == "waiting"


def list_routes(app: App) -> list[tuple[str, str]]:
    """Return the method and the path of every route of the page, with a run of bob in it."""
    values = {"run_id": "of-bob", "seq": "1", "number": "0", "step": "1"}
    return [
        (method, route.path.format(**values))
        for route in make_ui(app, authorize=authorize).routes
        if isinstance(route, Route) and "path:path" not in route.path
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def test_the_run_of_another_caller_exists_in_no_route(mounted: UIServer) -> None:
    tried = [each for each in list_routes(mounted.app) if "of-bob" in each[1]]
    assert len(tried) > 15
    before = mounted.call(mounted.app.get("of-bob"))
    for method, path in tried:
        form = {"call_id": "p1", "decision": "approve", "text": "x", "at_step": "1", "step": "1", "result": "x"}
        data = form if method == "POST" else None
        address = f"{mounted.url}/ops/runs{path}"
        refused = httpx.request(method, address, headers={"x-user": "mallory"}, data=data)
        assert (refused.status_code, "Pay for bob" in refused.text) == (404, False), path
    asked = "name=x&tick-1=" + quote('["of-bob", "p1", ""]')
    for path, content in (("/bulk", "action=cancel&id=of-bob&tick-1=on&runs-1=of-bob"), ("/inbox/approve", asked)):
        headers = {"x-user": "mallory", "content-type": "application/x-www-form-urlencoded"}
        assert "of-bob" not in httpx.get(f"{mounted.url}/ops/runs{path}?action=cancel&id=of-bob", headers=headers).text
        httpx.post(f"{mounted.url}/ops/runs{path}", content=content, headers=headers)
    after = mounted.call(mounted.app.get("of-bob"))
    assert (after.status, after.updated_at, after.steps) == ("waiting", before.updated_at, before.steps)


def test_the_holder_of_a_token_for_one_run_starts_no_other(mounted: UIServer) -> None:
    url, headers = f"{mounted.url}/ops/runs", {"x-user": "holder"}
    before = mounted.call(mounted.app.count())
    forms = {
        "/runs/of-bob/fork": {"step": "1", "edit": "message", "text": "Pay me."},
        "/conversations": {"agent": "clerk", "key": "new", "text": "hello"},
        "/runs": {"agent": "clerk", "input": "Pay me."},
    }
    refused = {path: httpx.post(url + path, data=form, headers=headers).status_code for path, form in forms.items()}
    assert refused == {"/runs/of-bob/fork": 403, "/conversations": 404, "/runs": 403}
    assert "/fork/" not in httpx.get(f"{url}/runs/of-bob", headers=headers).text
    assert mounted.call(mounted.app.count()) == before


def test_no_form_is_accepted_from_another_origin(mounted: UIServer) -> None:
    forms = [path for method, path in list_routes(mounted.app) if method == "POST"]
    assert {"/fleet/limits", "/fleet/budgets", "/filters", "/conversations"} <= set(forms)
    for path in forms:
        for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
            refused = httpx.post(f"{mounted.url}/ops/runs{path}", headers={"x-user": "bob", **headers})
            assert refused.status_code == 403, path


def test_the_traceback_of_a_failed_call_is_for_operators(mounted: UIServer, page: Page) -> None:
    for caller in ("alice", "reader"):
        mounted.submit("caller", "Where is it?", f"lost-{caller}", caller_id=caller)
        mounted.wait_for(f"lost-{caller}", "done")
    page.set_extra_http_headers({"x-user": "alice"})
    page.goto(f"{mounted.url}/ops/runs/runs/lost-alice")
    call = page.locator("details.call.error")
    call.locator("> summary").click()
    expect(call.locator(".err-line")).to_contain_text("<script>window.hacked = 1</script> no answer about A17")
    expect(call.locator(".trace pre")).to_be_hidden()
    call.locator(".trace summary", has_text="Traceback").click()
    expect(call.locator(".trace pre")).to_contain_text("in carrier_status")
    expect(call.locator(".trace pre")).to_contain_text("TimeoutError: <script>")
    assert page.evaluate("window.hacked") is None
    for path in ("", "/export.json", "/export.html", "?q=no+answer"):
        shown = httpx.get(f"{mounted.url}/ops/runs/runs/lost-reader{path}", headers={"x-user": "reader"})
        assert (shown.status_code, "no answer about A17" in shown.text) == (200, True)
        assert "in carrier_status" not in shown.text, path
    with httpx.stream("GET", f"{mounted.url}/ops/runs/live/runs/lost-reader", headers={"x-user": "reader"}) as stream:
        first = next(stream.iter_text())
    assert "in carrier_status" not in first
    assert "lost-reader" in first


def test_the_page_works_under_a_prefix(mounted: UIServer, page: Page) -> None:
    page.set_extra_http_headers({"x-user": "alice"})
    page.goto(f"{mounted.url}/ops/runs/")
    page.get_by_role("link", name="of-alice").click()
    expect(page).to_have_url(f"{mounted.url}/ops/runs/runs/of-alice")
    assert page.evaluate("getComputedStyle(document.querySelector('.status')).borderRadius") == "12px"
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("h1 + .status")).to_have_text("cancelled")
    expect(page).to_have_url(re.compile(r"/ops/runs/runs/of-alice\?said="))


def test_a_request_without_credentials_or_scope_is_refused(mounted: UIServer) -> None:
    address = f"{mounted.url}/ops/runs"
    assert httpx.get(address + "/").status_code == 401
    assert httpx.get(address + "/", headers={"x-user": "reader"}).status_code == 200
    assert httpx.post(f"{address}/runs/of-bob/cancel", headers={"x-user": "reader"}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "https://evil.example"}],
)
def test_a_change_from_another_origin_is_refused(server: UIServer, headers: dict[str, str]) -> None:
    refused = httpx.post(f"{server.url}/runs/any/cancel", headers=headers)
    assert refused.status_code == 403


def test_the_exported_page_executes_nothing(server: UIServer, page: Page, tmp_path: Path) -> None:
    server.call(store_hostile_run(server.app.store, "hostile-file"))
    file = tmp_path / "run.html"
    file.write_text(httpx.get(f"{server.url}/runs/hostile-file/export.html").text)
    page.goto(file.as_uri())
    assert page.evaluate("window.hacked") is None
    assert page.locator("script, img, iframe").count() == 0


def test_holdfast_ui_prints_a_link_whose_token_is_exchanged_for_a_cookie(
    server: UIServer, page: Page, tmp_path: Path
) -> None:
    store = f"sqlite:{tmp_path / 'runs.db'}"
    with UIServer(store) as other:
        other.submit("greeter", "Hello?", "greeting")
        other.wait_for("greeting", "done")
    command = [sys.executable, "-m", "holdfast", "ui", "--store", store, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        link = process.stdout.readline().strip()
        address = link.partition("/login")[0]
        assert httpx.get(address).status_code == 401
        assert httpx.get(f"{address}/login?token=guess").status_code == 401
        page.goto(link)
        expect(page.locator("#row-greeting")).to_be_visible()
        expect(page).to_have_url(f"{address}/")
        [cookie] = page.context.cookies()
        assert (cookie.get("sameSite"), cookie.get("httpOnly")) == ("Strict", True)
        page.goto("about:blank")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stdout.close()


def test_holdfast_ui_refuses_an_address_for_others_without_a_token_and_takes_one_from_a_file(
    page: Page, tmp_path: Path
) -> None:
    store = f"sqlite:{tmp_path / 'runs.db'}"
    with UIServer(store):
        pass
    command = [sys.executable, "-m", "holdfast", "ui", "--store", store, "--port", "0"]
    refused = subprocess.run([*command, "--host", "0.0.0.0"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "--token-file" in refused.stderr
    file = tmp_path / "token"
    file.write_text("short\n")
    file.chmod(0o640)
    short = subprocess.run([*command, "--token-file", str(file)], capture_output=True, text=True, check=False)
    assert (short.returncode, "16 characters" in short.stderr) == (1, True)
    assert f"other users can read the token file {file}" in short.stderr
    file.write_text("a-token-of-my-own\n")
    file.chmod(0o600)
    process = subprocess.Popen(
        [*command, "--token-file", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        link = process.stdout.readline().strip()
        assert "a-token-of-my-own" not in link
        address = link.partition("/login")[0]
        assert httpx.get(address).status_code == 401
        page.goto(f"{address}/login?token=a-token-of-my-own")
        expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
        page.goto("about:blank")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert "other users" not in process.stderr.read()
        process.stdout.close()
        process.stderr.close()
