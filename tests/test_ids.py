"""Random ids and tokens, which a simulator draws from a seed."""

import contextvars
import random
import re

from holdfast.ids import RANDOM, draw_between, draw_bits, make_id, make_token, make_uuid


def _draw() -> list[object]:
    return [make_id(), make_id(4), make_token(), make_uuid(), draw_bits(31), draw_between(0.5, 1)]


def _draw_with_seed(seed: int) -> list[object]:
    RANDOM.set(random.Random(seed))
    return _draw()


def test_a_seed_set_in_a_context_gives_the_same_ids_again_and_changes_no_other_context() -> None:
    first = contextvars.Context().run(_draw_with_seed, 1)
    assert contextvars.Context().run(_draw_with_seed, 1) == first
    assert contextvars.Context().run(_draw_with_seed, 2) != first
    assert _draw() != _draw()


def test_ids_and_tokens_have_their_length_and_fit_in_a_url() -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", make_id())
    assert re.fullmatch(r"[0-9a-f]{8}", make_id(4))
    assert re.fullmatch(r"[A-Za-z0-9_-]{32}", make_token())
    assert make_uuid().version == 4
    assert 0 <= draw_bits(31) < 2**31
    assert 0.5 <= draw_between(0.5, 1) <= 1
