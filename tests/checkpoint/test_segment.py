"""The entries of one write, kept as one row: nothing of it changes unnoticed."""

import pytest

from holdfast.checkpoint.journal import Entry, EntryKind, Segment, pack_segment, unpack_segments


def some(first: int, *bodies: bytes) -> list[Entry]:
    kinds = list(EntryKind)
    return [Entry(seq=seq, kind=kinds[seq % len(kinds)], body=body) for seq, body in enumerate(bodies, first)]


def flipped(content: bytes, bit: int) -> bytes:
    spoilt = bytearray(content)
    spoilt[bit // 8] ^= 1 << bit % 8
    return bytes(spoilt)


def test_entries_are_the_same_again() -> None:
    entries = some(0, b"zero", b"", b"two" * 100, b"\x00\xff", "fünf".encode(), b"six", b"seven", b"eight")
    pieces = [pack_segment(entries[:1]), pack_segment(entries[1:4]), pack_segment(entries[4:])]
    assert unpack_segments(pieces) == entries
    assert unpack_segments(pieces[1:]) == entries[1:]
    assert unpack_segments([]) == []


def test_the_checksum_is_what_earlier_releases_wrote() -> None:
    entries = [
        Entry(seq=7, kind=EntryKind.BEGIN, body=b"seven"),
        Entry(seq=8, kind=EntryKind.MESSAGE, body=b"eight"),
    ]
    assert pack_segment(entries) == Segment(7, "b5 m5", 0x3EF20EEA, b"seveneight")


def test_no_flipped_bit_goes_unnoticed() -> None:
    whole = pack_segment(some(11, b"eleven", b"twelve and more"))
    spoilt = [whole._replace(body=flipped(whole.body, bit)) for bit in range(8 * len(whole.body))]
    for bit in range(8 * len(whole.layout)):
        layout = flipped(whole.layout.encode(), bit).decode(errors="surrogateescape")
        spoilt.append(whole._replace(layout=layout))
    spoilt += [whole._replace(seq=whole.seq ^ 1 << bit) for bit in range(63)]
    spoilt += [whole._replace(checksum=whole.checksum ^ 1 << bit) for bit in range(63)]
    for piece in spoilt:
        with pytest.raises(ValueError, match="does not match its checksum"):
            unpack_segments([piece])


def test_a_piece_that_is_missing_or_out_of_its_place_is_named() -> None:
    first, second, third = pack_segment(some(0, b"a", b"b")), pack_segment(some(2, b"c")), pack_segment(some(3, b"d"))
    for pieces in ([first, third], [first, third, second], [first, first, second, third]):
        with pytest.raises(ValueError, match="entry 2 is missing"):
            unpack_segments(pieces)


def test_a_text_is_no_body() -> None:
    piece = pack_segment(some(0, b"zero"))
    with pytest.raises(ValueError, match="entry 0"):
        unpack_segments([(*piece[:3], piece.body.decode())])  # type: ignore[list-item]
