"""Markdown of a transcript as safe HTML. The text is hostile: only a few elements come out of it, and no attribute
but the address of a link to http or https.

Each line is looked at a bounded number of times, so a long text takes time in proportion to its length.
"""

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

#: Longer text is shown as it is.
_MAX_LENGTH = 100_000
#: Cells of one table row.
_MAX_CELLS = 40

_FENCE = re.compile(r"^ {0,3}```")
_HEADING = re.compile(r"^(#{1,6}) +(\S.*)$")
_BULLET = re.compile(r"^( {0,12})[-*+] +(\S.*)$")
_NUMBER = re.compile(r"^( {0,12})\d{1,9}[.)] +(\S.*)$")
_RULE = re.compile(r"^\|?(?: *:?-+:? *\|)* *:?-+:? *\|? *$")
_INLINE = re.compile(
    r"`(?P<code>[^`\n]+)`"
    r"|\*\*(?P<bold>[^*\n]+)\*\*"
    r"|\[(?P<label>[^\[\]\n]{1,300})\]\((?P<target>https?://[^\s()<>\"']{1,2000})\)"
    r"|(?P<url>https?://[^\s<>\"'`)\]]{1,2000}[^\s<>\"'`)\].,;:!?])"
)


def show_text(text: str) -> Markup:
    """Return the text as HTML: paragraphs, headings, lists, tables, code, bold text and links."""
    if len(text) > _MAX_LENGTH:
        return Markup("<p>{}</p>").format(text)
    lines = text.split("\n")
    parts: list[Markup] = []
    position = 0
    while position < len(lines):
        part, position = _show_block(lines, position)
        parts.append(part)
    return Markup("").join(parts)


def _show_block(lines: list[str], start: int) -> tuple[Markup, int]:
    """Return the block that begins with a line, and the line after it."""
    line = lines[start]
    if not line.strip():
        return Markup(), start + 1
    if _FENCE.match(line):
        end = next((at for at in range(start + 1, len(lines)) if _FENCE.match(lines[at])), len(lines))
        return Markup('<pre tabindex="0">{}</pre>').format("\n".join(lines[start + 1 : end])), end + 1
    if found := _HEADING.match(line):
        return Markup("<h3>{}</h3>").format(_show_inline(found[2])), start + 1
    for pattern, element in ((_BULLET, "ul"), (_NUMBER, "ol")):
        if pattern.match(line):
            return _show_list(lines, start, pattern, element)
    if _begins_table(lines, start):
        return _show_table(lines, start)
    end = start + 1
    while end < len(lines) and lines[end].strip() and not _begins_block(lines, end):
        end += 1
    shown = [_show_inline(each) for each in lines[start:end]]
    return Markup("<p>{}</p>").format(Markup("<br>").join(shown)), end


def _begins_table(lines: list[str], at: int) -> bool:
    return "|" in lines[at] and at + 1 < len(lines) and "|" in lines[at + 1] and bool(_RULE.match(lines[at + 1]))


def _begins_block(lines: list[str], at: int) -> bool:
    line = lines[at]
    return any(each.match(line) for each in (_FENCE, _HEADING, _BULLET, _NUMBER)) or _begins_table(lines, at)


def _show_list(lines: list[str], start: int, pattern: re.Pattern[str], element: str) -> tuple[Markup, int]:
    """Show consecutive items. A line that is indented continues its item; deeper lists are not nested."""
    items: list[Markup] = []
    end = start
    while end < len(lines) and lines[end].strip():
        if found := pattern.match(lines[end]):
            items.append(_show_inline(found[2]))
        elif lines[end].startswith("  ") and items:
            other = _BULLET.match(lines[end]) or _NUMBER.match(lines[end])
            items[-1] += Markup("<br>{}").format(_show_inline(f"– {other[2]}" if other else lines[end].strip()))
        else:
            break
        end += 1
    shown = Markup("").join(Markup("<li>{}</li>").format(item) for item in items)
    return (Markup("<ul>{}</ul>") if element == "ul" else Markup("<ol>{}</ol>")).format(shown), end


def _show_table(lines: list[str], start: int) -> tuple[Markup, int]:
    end = start + 2
    while end < len(lines) and "|" in lines[end]:
        end += 1
    head = Markup("").join(Markup("<th>{}</th>").format(cell) for cell in _split_row(lines[start]))
    rows = [
        Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(cell) for cell in _split_row(line)))
        for line in lines[start + 2 : end]
    ]
    shown = Markup('<table tabindex="0"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>')
    return shown.format(head, Markup("").join(rows)), end


def _split_row(line: str) -> Iterator[Markup]:
    for cell in line.strip().strip("|").split("|")[:_MAX_CELLS]:
        yield _show_inline(cell.strip())


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
