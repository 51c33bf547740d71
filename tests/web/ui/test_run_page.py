"""The page of one run: its transcript, its parts that are loaded on demand, its actions and its exports."""

import base64
import json
import re
import struct
import zlib
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect
from tests.web.ui.agents import LONG_TEXT
from tests.web.ui.journals import store_long_run
from tests.web.ui.server import UIServer


@pytest.fixture(scope="module")
def finished(server: UIServer) -> str:
    server.submit("reader", "Read both pages.", "read-1", caller_id="bob", labels={"tenant": "acme"})
    server.wait_for("read-1", "done")
    return f"{server.url}/runs/read-1"


def test_the_transcript_is_a_chat_with_folded_calls(page: Page, finished: str) -> None:
    page.goto(finished)
    step = page.locator("#step-1")
    expect(step).to_contain_text("Read both pages.")
    expect(step).to_contain_text("First the page.")
    expect(step).to_contain_text("900 in, 100 out · $0.0100")
    call = step.locator("details.call")
    expect(call.get_by_role("heading", name="Arguments")).to_be_hidden()
    call.locator("> summary").click()
    expect(call.locator(".json").first).to_have_text(re.compile(r'1 key\s*url\s*"https://example.com/a"'))
    expect(page.locator("#step-3 a[rel~=noopener]")).to_have_attribute("href", "https://example.com/summary")


def test_long_content_is_loaded_on_demand(page: Page, finished: str) -> None:
    page.goto(finished)
    call = page.locator("#step-2 details.call")
    call.locator("> summary").click()
    result = call.locator(".content pre").last
    assert len(result.inner_text()) < 4000
    call.get_by_role("link", name=f"Show all {len(LONG_TEXT):,} characters").click()
    expect(call.get_by_role("link", name="Show all")).to_have_count(0)
    assert call.locator("pre").last.inner_text().rstrip() == LONG_TEXT.rstrip()


def test_a_long_run_is_shown_in_windows(server: UIServer, page: Page) -> None:
    server.call(store_long_run(server.app.store, "long-1", steps=400))
    page.goto(f"{server.url}/runs/long-1")
    expect(page.get_by_role("region", name="Prompt")).to_contain_text("A long journey.")
    expect(page.locator("#step-400")).to_contain_text("thought 400")
    assert page.locator(".step").count() < 50, "it opens at its end"
    outline = page.get_by_role("navigation", name="Steps")
    outline.get_by_role("link", name="101–150").click()
    expect(page.locator("#step-101:target")).to_contain_text("thought 101")
    page.goto(f"{server.url}/runs/long-1")
    page.get_by_role("link", name="Earlier steps").click()
    expect(page.locator("#step-400")).to_have_count(0)
    last_shown = page.locator(".step").last.get_attribute("id")
    first_shown = page.locator(".step").first.get_attribute("id")
    page.get_by_role("link", name="Later steps").click()
    expect(page.locator(f"#{first_shown}")).to_have_count(0)
    expect(page.locator(f"#{last_shown}")).to_have_count(1)  # windows overlap
    page.goto(f"{server.url}/runs/long-1?step=123#step-123")
    expect(page.locator("#step-123:target")).to_contain_text("thought 123")
    page.get_by_role("link", name="First").click()
    expect(page.locator("#step-1")).to_contain_text("thought 1")


def test_a_run_is_exported_as_json_and_as_one_page(page: Page, finished: str, tmp_path: Path) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(finished)
    page.get_by_role("button", name="Copy JSON").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    document = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert document["run"]["run_id"] == "read-1"
    assert next(item["text"] for item in document["transcript"] if item["kind"] == "reply") == "First the page."
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    saved = tmp_path / "run.html"
    download.value.save_as(saved)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(saved.as_uri())
    expect(page.locator("#step-2")).to_contain_text("Then the needle.")
    assert requests == [saved.as_uri()], "the file needs nothing else"
    assert page.evaluate("getComputedStyle(document.querySelector('.status')).borderRadius") == "12px"


def test_pictures_are_shown_and_documents_that_claim_to_be_one_are_not(server: UIServer, page: Page) -> None:
    picture = encode(make_png())
    hostile = encode(
        b"<svg xmlns='http://www.w3.org/2000/svg' onload='top.hacked=1'><script>top.hacked=1</script></svg>"
    )
    prompt = [
        "Look at these.",
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}},
        {"kind": "binary", "media_type": "image/svg+xml", "data": hostile},
        {"kind": "binary", "media_type": "image/png", "data": hostile},
        {"type": "image_url", "image_url": {"url": f"data:image/svg+xml;base64,{hostile}"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/tracker.png"}},
    ]
    server.call(server.app.submit("greeter", prompt, run_id="pictures"))
    server.wait_for("pictures", "done")
    page.goto(f"{server.url}/runs/pictures")
    images = page.locator("#step-1 img")
    expect(images).to_have_count(2)
    page.evaluate("Promise.allSettled([...document.images].map(image => image.decode()))")
    assert page.evaluate("[...document.images].map(image => image.naturalWidth)") == [3, 3]
    response = httpx.get(f"{server.url}{images.first.get_attribute('src')}")
    assert response.headers["content-type"] == "image/png"
    assert response.headers["x-content-type-options"] == "nosniff"
    for number in (2, -1, -3):
        assert httpx.get(f"{server.url}/runs/pictures/image/0/{number}").status_code == 404


def encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def make_png() -> bytes:
    """Return a picture of 3 by 2 grey points."""

    def make_chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 3, 2, 8, 0, 0, 0, 0)
    points = zlib.compress(b"\x00\x80\x80\x80" * 2)
    return b"\x89PNG\r\n\x1a\n" + make_chunk(b"IHDR", head) + make_chunk(b"IDAT", points) + make_chunk(b"IEND", b"")


def test_children_and_forks_are_linked(server: UIServer, page: Page, finished: str) -> None:
    page.goto(finished)
    page.locator("#step-1").hover()
    page.get_by_role("link", name="Fork at step 1").click()
    page.get_by_role("button", name="Fork after step 1").click()
    expect(page.get_by_role("status")).to_contain_text("This is the fork.")
    fork = page.locator("h1").inner_text()
    server.wait_for(fork, "done")
    page.locator(".tree").get_by_role("link", name="read-1").click()
    expect(page.locator(".tree")).to_contain_text(f"{fork} fork at step 1")


def test_a_run_is_compared_with_its_forks(server: UIServer, page: Page) -> None:
    server.submit("greeter", "Say hello.", "hello")
    server.wait_for("hello", "done")
    fork = server.call(server.app.fork("hello", 2, edited="Once more."))
    server.wait_for(fork, "done")
    for run_id in ("hello", fork):
        page.goto(f"{server.url}/runs/{run_id}")
        page.get_by_role("link", name="Compare").click()
        expect(page.locator(".card.result .answer-text")).to_have_text(["Hello.", "Hello again."])
        expect(page.locator(".card.result h2")).to_have_text(["hello", fork])
    page.get_by_role("region", name=fork).get_by_role("button", name="Pick").click()
    expect(page.get_by_role("region", name=fork)).to_contain_text("Picked by local")
    page.goto(f"{server.url}/runs/hello/compare")
    expect(page.get_by_role("region", name=fork)).to_contain_text("Picked by local")


def test_a_run_that_is_not_there_is_a_page_of_its_own(server: UIServer, page: Page) -> None:
    response = page.goto(f"{server.url}/runs/nowhere")
    assert response is not None
    assert response.status == 404
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
