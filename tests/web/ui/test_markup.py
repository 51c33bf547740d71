"""Markdown, data trees and forms of hostile text: what comes out has only our own elements and attributes."""

from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest
from tests.web.ui.journals import HOSTILE

from holdfast.core.run.waiting import WaitingCall
from holdfast.web.ui.argument_form import add_error, make_fields, read_fields
from holdfast.web.ui.json_tree import show_json
from holdfast.web.ui.markdown import show_text
from holdfast.web.ui.site import make_environment

#: How a payload is wrapped: a table, lists, a heading, code, links, bold text.
FORMS = (
    "| a | {0} |\n|---|---|\n| {0} | b |\n{0} | {0}",
    "- {0}\n- b\n  - {0}\n  {0}",
    "1. {0}\n2) {0}",
    "# {0}\n###### {0}",
    "```{0}\n{0}\n```\n{0}",
    "`{0}` **{0}** [{0}](https://example.com/{0}) https://example.com/{0}",
    "[x]({0}) ![x]({0}) <{0}>",
)
TEXT_TAGS = {
    "p",
    "br",
    "h3",
    "ul",
    "ol",
    "li",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "pre",
    "code",
    "strong",
    "a",
}
TREE_TAGS = {"div", "details", "summary", "span", "ul", "li", "pre"}
FORM_TAGS = {"div", "label", "span", "input", "textarea", "select", "option"}


class Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def parse(html: str) -> Collector:
    collector = Collector()
    collector.feed(html)
    collector.close()
    return collector


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("payload", HOSTILE)
def test_markdown_of_hostile_text_has_only_safe_elements(form: str, payload: str) -> None:
    for tag, attributes in parse(show_text(form.format(payload))).elements:
        assert tag in TEXT_TAGS
        assert set(attributes) <= {"href", "rel", "target", "tabindex"}
        assert (attributes.get("href") or "https://").startswith(("http://", "https://"))


@pytest.mark.parametrize("payload", HOSTILE)
def test_a_tree_of_hostile_data_has_only_safe_elements(payload: str) -> None:
    deep: Any = payload
    for _ in range(40):
        deep = {payload: [deep, 1, None, True, payload]}
    for value in (deep, [payload] * 300, {payload: f"{payload}\nsecond line"}):
        for tag, attributes in parse(show_json(value)).elements:
            assert tag in TREE_TAGS
            assert set(attributes) <= {"class", "open"}
            assert "<" not in (attributes.get("class") or "")


@pytest.mark.parametrize("payload", HOSTILE)
def test_a_form_of_hostile_arguments_has_only_its_fields(payload: str) -> None:
    arguments = {payload: payload, "long": f"{payload}\n{payload}", "data": [payload], "choice": "a", "flag": True}
    schema = {"properties": {payload: {"description": payload}, "choice": {"enum": ["a", payload]}}}
    fields, given = read_fields(make_fields(arguments, schema), {f"arg-{payload}": payload, "arg-data": payload})
    fields, rest = add_error(fields, f"{payload}: is not of type {payload}")
    call = WaitingCall(
        run_id="r", call_id="c", step=1, tool=payload, kind="approval", asked_at=datetime(2026, 1, 1, tzinfo=UTC)
    )
    task = {"call": call, "fields": fields, "anchor": "a"}
    module = make_environment().get_template("argument_form.html").module
    html = str(module.form_fields(task))  # type: ignore[attr-defined]
    for tag, attributes in parse(html).elements:
        assert tag in FORM_TAGS
        assert not any(name.startswith(("on", "hx-")) or name == "style" for name in attributes)
    assert given[payload] == payload
    assert rest == "" or payload in rest


def test_headings_lists_tables_and_code_are_shown() -> None:
    table = "| Lamp | Paid |\n|---|--:|\n| 1 | 129 |"
    text = f"# Found\n\n{table}\n\n- **two** `broken`\n- one\n\n1. first\n\n```py\nx = 1\n```\nend"
    assert show_text(text) == (
        "<h3>Found</h3>"
        '<table tabindex="0"><thead><tr><th>Lamp</th><th>Paid</th></tr></thead>'
        "<tbody><tr><td>1</td><td>129</td></tr></tbody></table>"
        "<ul><li><strong>two</strong> <code>broken</code></li><li>one</li></ul><ol><li>first</li></ol>"
        '<pre tabindex="0">x = 1</pre><p>end</p>'
    )
