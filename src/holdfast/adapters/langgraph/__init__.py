"""LangGraph: `durable` graphs, and a checkpointer on SQLite and PostgreSQL. Needs the extra `langgraph`."""

from holdfast.adapters.langgraph.loop import LangGraphLoop, durable
from holdfast.adapters.langgraph.saver import HoldfastSaver
from holdfast.adapters.langgraph.tool_nodes import record_tool_call

__all__ = ["HoldfastSaver", "LangGraphLoop", "durable", "record_tool_call"]
