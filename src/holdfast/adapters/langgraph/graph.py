"""The type of compiled graphs."""

from typing import Any

from langgraph.pregel import Pregel

Graph = Pregel[Any, Any, Any, Any]
