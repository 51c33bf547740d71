"""Responses and snapshots of all kinds."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from holdfast.fanout.responses import ModelResponse, PartialResponse
from holdfast.fanout.workspace import WriteSnapshot

#: A loaded machine makes drawing and fsync slow, which says nothing about what is tested.
untimed = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)

#: What JSON in UTF-8 can hold.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
COUNT = st.integers(0, 2**53)
WRITES = st.builds(WriteSnapshot, path=TEXT, content=TEXT, delete=st.booleans())

FIGURES: dict[str, Any] = {
    "model_id": TEXT,
    "text": TEXT,
    "latency_ms": COUNT,
    "input_tokens": COUNT,
    "output_tokens": COUNT,
    "reasoning_tokens": COUNT,
    "cost_usd": st.floats(0, 1e6),
    "proposed_writes": st.lists(WRITES, max_size=4).map(tuple),
    "tool_calls": st.dictionaries(TEXT, COUNT, max_size=4),
    "error": TEXT,
}

PARTIALS = st.builds(PartialResponse, **FIGURES)
RESPONSES = st.builds(ModelResponse, **FIGURES, interrupted=st.booleans())
