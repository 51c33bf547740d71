"""LangGraph: `durable` graphs, and a checkpointer on SQLite and PostgreSQL. Needs the extra `langgraph`."""

from holdfast.adapters.langgraph.durable import LangGraphLoop, durable
from holdfast.adapters.langgraph.node_calls import record_tool_call
from holdfast.adapters.langgraph.saver import HoldfastSaver

__all__ = ["HoldfastSaver", "LangGraphLoop", "durable", "record_tool_call"]
