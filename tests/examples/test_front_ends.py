"""The chat page in a real browser, and the front ends in Node, each against its example as a process."""

import shutil
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright
from tests.examples.test_web_service import serve
from tests.web.conftest import Site
from tests.web.protocols.test_front_ends import get_texts, use


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_role("button", name="Send").click()


def test_the_chat_page_survives_a_kill_of_its_server(tmp_path: Path) -> None:
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert browser_path is not None, "the chat page needs a browser: apt-get install chromium"
    expect.set_options(timeout=30_000)
    with serve(tmp_path, "examples.chat_page") as first, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(first.url)
        say(page, "<b>hello</b>")
        expect(page.locator(".assistant")).to_have_text(["You said: <b>hello</b>"])
        say(page, "order tea")
        expect(page.get_by_role("button", name="approve")).to_be_visible()
        first.process.kill()
        first.process.wait()
        with serve(tmp_path, "examples.chat_page", port=first.port):
            page.get_by_role("button", name="approve").click()
            expect(page.locator(".assistant").last).to_have_text("Done: ordered tea.")
            shown = page.locator(".assistant").all_text_contents()
            page.reload()
            expect(page.locator(".assistant")).to_have_text(shown)
        assert shown == ["You said: <b>hello</b>", "I ask first.", "Done: ordered tea."]
        assert errors == []
        browser.close()


def test_the_front_ends_of_the_example(tmp_path: Path) -> None:
    with serve(tmp_path, "examples.front_ends") as server:
        site = Site(tmp_path, url=f"{server.url}/chat")
        for protocol in ("ag-ui", "vercel-ai"):
            shown = use(site, protocol, "helper", protocol, ["send", "m1", "hello"], ["send", "m2", "again"])
            assert get_texts(shown) == ["This is reply 1.", "This is reply 2."]
        site.stop()
