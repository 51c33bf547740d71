"""Hostile text in every place that shows what others have written: it stays text, light and dark."""

from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Page, expect
from tests.web.ui.journals import HOSTILE, store_hostile_run, store_parked_run
from tests.web.ui.visitor import Visitor

from holdfast.core.run.messages import ToolCall

with_script = pytest.mark.parametrize("budgeted", ["sqlite"], indirect=True)

_FOREIGN_ATTRIBUTES = """() => [...document.querySelectorAll("*")].flatMap(element => [...element.attributes]
    .filter(({name, value}) => name.startsWith("on") ||
        (name !== "value" && /^\\s*(javascript|data):/i.test(value)))
    .map(({name, value}) => name + "=" + value))"""


def check_harmless(page: Page) -> None:
    """Check that the page has our own scripts, elements and attributes only."""
    assert page.evaluate("window.hacked") is None
    assert page.evaluate(_FOREIGN_ATTRIBUTES) == []
    assert page.locator("script").count() == 3, "our own"
    foreign = page.locator("main :is(img, iframe, object, embed, base, style, hx-partial, meta, link, [hx-get*='/\"'])")
    assert foreign.count() == 0


def open_details(page: Page) -> None:
    page.locator("details").evaluate_all("all => all.forEach(details => details.open = true)")


@pytest.fixture
def hostile(visitor: Visitor) -> Visitor:
    """A store in which everything that others can write is hostile."""
    server, store = visitor.server, visitor.server.app.open_store
    server.call(store_hostile_run(store, visitor.name("ask")))
    server.call(store_hostile_run(store, visitor.name("pay"), kind="approval"))
    call = ToolCall(id=HOSTILE[3], name=HOSTILE[2], arguments={HOSTILE[1]: [*HOSTILE]})
    server.call(
        store_parked_run(
            store, visitor.name("doubt"), in_doubt=(call.id,), reason=HOSTILE[0], prompt=HOSTILE[1], call=call
        )
    )
    server.call(store_parked_run(store, visitor.name("parked"), in_doubt=(), reason=HOSTILE[4], is_begun=False))
    server.call(store.set_limit("agent", HOSTILE[0], 3))
    visitor.submit("clerk", "spends", "waiting", caller_id=HOSTILE[1])
    visitor.submit("caller", "fails", "done")
    return visitor


@with_script
def test_no_page_executes_or_embeds_what_it_shows(hostile: Visitor) -> None:
    page, run, script = hostile.page, f"/runs/{hostile.name('pay')}", quote(HOSTILE[0])
    for path in (
        "/",
        f"/?q={script}",
        f"/?q=agnet:{script}",
        f"/?q=since:{script}&status={script}&sort={script}&open={script}",
        "/inbox",
        "/inbox/approve",
        f"/inbox?said={script}",
        "/bulk?action=cancel",
        f"/bulk?action={script}",
        "/conversations?q=%3Cscript%3E",
        f"/agents?{urlencode({'agent': HOSTILE[0], 'period': HOSTILE[1]})}",
        "/agents?agent=caller",
        "/fleet",
        f"/new?agent={script}",
        f"/runs/{hostile.name('ask')}",
        f"/runs/{hostile.name('doubt')}",
        f"{run}?scale=true&zoom=4&at=0",
        f"{run}?q=script",
        f"{run}/fork/1",
        f"{run}/compare",
        f"{run}/content/1/0",
        f"{run}/{script}",
    ):
        hostile.open(path)
        open_details(page)
        check_harmless(page)


@with_script
def test_tables_lists_trees_tracebacks_and_fields_show_it_as_text(hostile: Visitor) -> None:
    page, run_id = hostile.page, hostile.name("pay")
    shown = [line for line in HOSTILE if "```" not in line and "\r" not in line]
    hostile.open(f"/runs/{run_id}")
    open_details(page)
    for place in (".turn td", ".turn li", ".trace pre", ".json", "main"):
        text = "\n".join(page.locator(place).all_inner_texts())
        assert [line for line in shown if line not in text and line.replace('"', '\\"') not in text] == [], place

    hostile.open("/inbox")
    task = hostile.find_task("Approval", run_id)
    task.get_by_text("Edit and approve").click()
    fields = task.locator(".field :is(input:not([type=checkbox]), textarea)")
    for field in fields.all():
        field.fill("\n".join(HOSTILE) if field.evaluate("field => field.tagName") == "TEXTAREA" else HOSTILE[3])
    hostile.click("Approve these arguments", task)
    expect(page.get_by_role("heading", name="Not valid")).to_be_visible()
    expect(fields.first).to_have_value(HOSTILE[3])
    expect(task.locator(".field-error")).not_to_have_count(0)
    check_harmless(page)
    assert hostile.get_status(run_id) == "waiting"
