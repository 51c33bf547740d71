"""The entries of one write, kept as one row: nothing of it changes unnoticed."""

import pytest

from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.pieces import Piece, packed, unpacked


def some(first: int, *bodies: bytes) -> list[Entry]:
    kinds = list(EntryKind)
    return [Entry(seq=seq, kind=kinds[seq % len(kinds)], body=body) for seq, body in enumerate(bodies, first)]


def flipped(content: bytes, bit: int) -> bytes:
    spoilt = bytearray(content)
    spoilt[bit // 8] ^= 1 << bit % 8
    return bytes(spoilt)


def test_entries_are_the_same_again() -> None:
    entries = some(0, b"zero", b"", b"two" * 100, b"\x00\xff", "fünf".encode(), b"six", b"seven", b"eight")
    pieces = [packed(entries[:1]), packed(entries[1:4]), packed(entries[4:])]
    assert unpacked(pieces) == entries
    assert unpacked(pieces[1:]) == entries[1:]
    assert unpacked([]) == []


def test_the_checksum_is_what_earlier_releases_wrote() -> None:
    assert packed(some(7, b"seven", b"eight")) == Piece(7, "b5 m5", 0x3EF20EEA, b"seveneight")


def test_no_flipped_bit_goes_unnoticed() -> None:
    whole = packed(some(11, b"eleven", b"twelve and more"))
    spoilt = [whole._replace(body=flipped(whole.body, bit)) for bit in range(8 * len(whole.body))]
    for bit in range(8 * len(whole.layout)):
        layout = flipped(whole.layout.encode(), bit).decode(errors="surrogateescape")
        spoilt.append(whole._replace(layout=layout))
    spoilt += [whole._replace(seq=whole.seq ^ 1 << bit) for bit in range(63)]
    spoilt += [whole._replace(checksum=whole.checksum ^ 1 << bit) for bit in range(63)]
    for piece in spoilt:
        with pytest.raises(ValueError, match="is not what was written"):
            unpacked([piece])


def test_a_piece_that_is_missing_or_out_of_its_place_is_named() -> None:
    first, second, third = packed(some(0, b"a", b"b")), packed(some(2, b"c")), packed(some(3, b"d"))
    for pieces in ([first, third], [first, third, second], [first, first, second, third]):
        with pytest.raises(ValueError, match="entry 2 is missing"):
            unpacked(pieces)


def test_a_text_is_no_body() -> None:
    piece = packed(some(0, b"zero"))
    with pytest.raises(ValueError, match="entry 0"):
        unpacked([(*piece[:3], piece.body.decode())])  # type: ignore[list-item]
