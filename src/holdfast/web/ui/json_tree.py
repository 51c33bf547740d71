"""Data of a transcript as a tree of folded parts."""

from contextlib import suppress
from typing import Any

import msgspec
from markupsafe import Markup, escape

from holdfast.runtime.reading.formatting import cut_text, format_count
from holdfast.web.ui.markdown import show_text

#: Deeper data is one line. A tree shows this many parts of a list or object.
_MAX_DEPTH, _MAX_PARTS = 8, 100
#: Parts that are open when the tree is shown.
_OPEN_DEPTH = 2
_BRIEF = 60


def show_json(value: Any) -> Markup:
    """Return data as HTML. It comes from tools and models, so everything in it is escaped."""
    return Markup('<div class="json">{}</div>').format(_show(value, 0, Markup()))


def show_document(text: str) -> Markup:
    """Return a text as HTML: JSON as a tree, other text as Markdown."""
    if text[:1] in ("{", "["):
        with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
            return show_json(msgspec.json.decode(text))
    return show_text(text)


def _show(value: Any, depth: int, name: Markup) -> Markup:
    if not isinstance(value, dict | list) or not value or depth >= _MAX_DEPTH:
        return name + _show_scalar(value)
    parts = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    shown = [
        Markup("<li>{}</li>").format(_show(part, depth + 1, Markup('<span class="k">{}</span>').format(key)))
        for key, part in parts[:_MAX_PARTS]
    ]
    if len(parts) > _MAX_PARTS:
        shown.append(Markup('<li class="count">and {} more</li>').format(len(parts) - _MAX_PARTS))
    kind = "key" if isinstance(value, dict) else "item"
    brief = "" if depth < _OPEN_DEPTH else f": {_format_brief(value)}"
    return Markup('<details{}><summary>{}<span class="count">{}{}</span></summary><ul>{}</ul></details>').format(
        Markup(" open") if depth < _OPEN_DEPTH else "",
        name,
        format_count(len(parts), kind),
        brief,
        Markup("").join(shown),
    )


def _show_scalar(value: Any) -> Markup:
    if isinstance(value, str):
        if "\n" in value:
            return Markup('<pre class="s">{}</pre>').format(value)
        return Markup('<span class="s">"{}"</span>').format(value)
    kind = "b" if value is None or isinstance(value, bool) else "v"
    return Markup('<span class="{}">{}</span>').format(kind, escape(_format_brief(value, 2_000)))


def _format_brief(value: Any, limit: int = _BRIEF) -> str:
    return cut_text(msgspec.json.encode(value).decode(errors="replace"), limit)
