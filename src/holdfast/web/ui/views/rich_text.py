"""Text of models and people as HTML: code, emphasis and links. Everything else is escaped, HTML included."""

import re

from markupsafe import Markup, escape

_FENCE = re.compile(r"^```[^\n`]*\n(.*?)(?:^```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(
    r"`(?P<code>[^`\n]+)`"
    r"|\*\*(?P<bold>[^*\n]+)\*\*"
    r"|\[(?P<label>[^\]\n]{1,300})\]\((?P<target>https?://[^\s()<>\"']{1,2000})\)"
    r"|(?P<url>https?://[^\s<>\"'`)\]]{1,2000}[^\s<>\"'`)\].,;:!?])"
)


def show_text(text: str) -> Markup:
    """Return the text as HTML. Only `pre`, `code`, `strong` and links to http and https come out of it."""
    parts: list[Markup] = []
    position = 0
    for fence in _FENCE.finditer(text):
        parts.append(_show_inline(text[position : fence.start()].rstrip("\n")))
        parts.append(Markup("<pre>{}</pre>").format(fence[1].rstrip("\n")))
        position = fence.end()
    parts.append(_show_inline(text[position:].lstrip("\n") if position else text))
    return Markup("").join(parts)


def _show_inline(text: str) -> Markup:
    parts: list[Markup] = []
    position = 0
    for found in _INLINE.finditer(text):
        parts.append(escape(text[position : found.start()]))
        parts.append(_show_match(found))
        position = found.end()
    parts.append(escape(text[position:]))
    return Markup("").join(parts)


def _show_match(found: re.Match[str]) -> Markup:
    if code := found["code"]:
        return Markup("<code>{}</code>").format(code)
    if bold := found["bold"]:
        return Markup("<strong>{}</strong>").format(bold)
    target = found["target"] or found["url"]
    return Markup('<a href="{}" rel="noopener noreferrer nofollow" target="_blank">{}</a>').format(
        target, found["label"] or target
    )
