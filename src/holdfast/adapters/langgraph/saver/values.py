"""Channel values as rows. A list is stored item by item, so that a list that grew costs only its new items."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast.ids import draw_bits

#: Types of a stored value that the serializer does not know.
INLINE_LIST, LIST = "items", "ranges"

#: A list of fewer bytes is stored with its version.
_INLINE_SIZE = 512
#: A list whose items are in more places is stored anew.
_MAX_RANGES = 32
#: The cache holds the places of this many items, some 200 bytes each.
_MAX_CACHED_ITEMS = 200_000

Encoded = tuple[str, bytes]
#: Thread, namespace, channel.
ChannelKey = tuple[str, str, str]


class Range(NamedTuple):
    """Items of a list with consecutive numbers in one stream."""

    stream: int
    first: int
    stop: int


_DECODE_ITEMS = msgspec.msgpack.Decoder(list[tuple[str, bytes]])
_DECODE_RANGES = msgspec.msgpack.Decoder(list[tuple[int, int, int]])


class EncodedList(NamedTuple):
    """A list, each item encoded by itself."""

    items: list[Encoded]

    def is_small(self) -> bool:
        return sum(len(body) for _, body in self.items) < _INLINE_SIZE

    def to_inline(self) -> Encoded:
        return INLINE_LIST, msgspec.msgpack.encode(self.items)


def encode_value(serde: SerializerProtocol, value: Any) -> Encoded | EncodedList:
    """Return the value encoded, a list item by item.

    A list of numbers is encoded whole. So is every value if the serializer may encode equal items differently, as
    one that encrypts does: their bytes say nothing about what is new.
    """
    if type(value) is list and value and type(serde) is JsonPlusSerializer and not isinstance(value[0], int | float):
        return EncodedList([serde.dumps_typed(item) for item in value])
    return serde.dumps_typed(value)


def decode_inline(serde: SerializerProtocol, body: bytes) -> list[Any]:
    """Return a list that is stored with its version."""
    return [serde.loads_typed(item) for item in _DECODE_ITEMS.decode(body)]


def decode_ranges(body: bytes) -> list[Range]:
    """Return where the items of a list are."""
    return [Range(*part) for part in _DECODE_RANGES.decode(body)]


class ListIndex(msgspec.Struct, frozen=True):
    """Where the items of one stored version of a list are."""

    version: str
    #: By digest: stream and number.
    places: dict[bytes, tuple[int, int]]
    #: Where the next new item goes.
    stream: int
    next_number: int


class ListPlan(msgspec.Struct, frozen=True):
    """How a list is stored: the items that are new, and where all of them are."""

    new_items: dict[tuple[int, int], Encoded]
    body: bytes
    index: ListIndex


def plan_list(encoded: EncodedList, version: str, index: ListIndex | None, *, new_stream: bool) -> ListPlan:
    """Return how to store a list, given the index of a version that is stored.

    Args:
        new_stream: whether new items must not continue the index's stream, because another process did so.
    """
    if index is None:
        index = ListIndex(version, {}, _make_stream(), 0)
    elif new_stream:
        index = ListIndex(index.version, index.places, _make_stream(), 0)
    plan = _plan(encoded, version, index)
    if plan is None:  # too many ranges
        plan = _plan(encoded, version, ListIndex(version, {}, _make_stream(), 0), max_ranges=len(encoded.items))
    assert plan is not None
    return plan


def _plan(encoded: EncodedList, version: str, index: ListIndex, *, max_ranges: int = _MAX_RANGES) -> ListPlan | None:
    places: dict[bytes, tuple[int, int]] = {}
    new_items: dict[tuple[int, int], Encoded] = {}
    ranges: list[list[int]] = []
    number = index.next_number
    for item in encoded.items:
        digest = make_digest(item)
        place = index.places.get(digest) or places.get(digest)
        if place is None:
            place = (index.stream, number)
            new_items[place] = item
            number += 1
        places[digest] = place
        if ranges and ranges[-1][0] == place[0] and ranges[-1][2] == place[1]:
            ranges[-1][2] += 1
        elif len(ranges) == max_ranges:
            return None
        else:
            ranges.append([place[0], place[1], place[1] + 1])
    return ListPlan(new_items, msgspec.msgpack.encode(ranges), ListIndex(version, places, index.stream, number))


def index_loaded_list(version: str, ranges: Sequence[Range], items: Sequence[Encoded]) -> ListIndex:
    """Return the index of a list that was read."""
    numbered = [(part.stream, number) for part in ranges for number in range(part.first, part.stop)]
    places = {make_digest(item): place for item, place in zip(items, numbered, strict=True)}
    return ListIndex(version, places, ranges[-1].stream, ranges[-1].stop)


def make_digest(item: Encoded) -> bytes:
    """Return a digest of an encoded item."""
    return hashlib.blake2b(item[1], digest_size=16, person=item[0].encode()[:16]).digest()


def _make_stream() -> int:
    return draw_bits(31)


class ListCache:
    """The index of the newest version of each list channel that this process wrote or read."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[ChannelKey, ListIndex] = OrderedDict()
        self._items = 0

    def get(self, key: ChannelKey) -> ListIndex | None:
        """Return the index of a channel, if it is known."""
        return self._indexes.get(key)

    def put(self, key: ChannelKey, index: ListIndex) -> None:
        """Remember an index, and forget those that were not used for the longest time."""
        self.discard(key)
        self._indexes[key] = index
        self._items += len(index.places)
        while self._items > _MAX_CACHED_ITEMS and len(self._indexes) > 1:
            self.discard(next(iter(self._indexes)))

    def discard(self, key: ChannelKey) -> None:
        """Forget a channel."""
        if (index := self._indexes.pop(key, None)) is not None:
            self._items -= len(index.places)
