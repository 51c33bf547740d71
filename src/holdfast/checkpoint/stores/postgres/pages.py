"""Cuts pieces where a page of the server's table ends.

A row that has no room in what is left of a page goes to the next one, and what is left stays empty: an eighth of the
table with rows of a third of a page. So such a row is cut, and its rest is a row of its own.

Where pages end only the server knows. It is enough to count what is sent, and to cut as if a page ended every so many
bytes: sooner or later the server begins a page with such a rest, and then both agree, until somebody else writes on the
same page. Who counts wrongly wastes room, nothing else.
"""

#: Of a page, without its own header.
_ROOM = 8192 - 24
#: Longer rows go aside, and leave a pointer of so many bytes.
_LONGEST, _POINTER = 8160, 18
#: Less than this is left empty: a row more costs about a hundred bytes, and work.
_WORTH = 256
#: Of a row, before its layout; and of a number; and of the length before a body.
_BEFORE, _NUMBER, _LENGTH = 24 + 8 + 8 + 1, 8, 4
#: A row's place in its page.
_PLACE = 4


class Pages:
    """How full the page is that is written now."""

    def __init__(self) -> None:
        self._left = _ROOM

    def cut(self, layout: int, body: int) -> int:
        """How many bytes of a body fit on this page, if the rest should go to the next; else zero.

        Both are given as lengths. A layout becomes longer by one if this is not zero, and that of a rest is empty.
        """
        before_body = (_BEFORE + layout + 7 & -8) + _NUMBER + _LENGTH
        row = before_body + body + 7 & -8
        if row > _LONGEST:
            row = before_body + _POINTER + 7 & -8
        left = self._left - row - _PLACE
        if left >= 0:
            self._left = left
            return 0
        if self._left < _WORTH or row <= _WORTH:
            self._left = _ROOM - row - _PLACE
            return 0
        before_body = (_BEFORE + layout + 1 + 7 & -8) + _NUMBER + _LENGTH
        here = (self._left - _PLACE & -8) - before_body
        rest = (_BEFORE + 7 & -8) + _NUMBER + _LENGTH + body - here
        self._left = _ROOM - (rest + 7 & -8) - _PLACE
        return here
