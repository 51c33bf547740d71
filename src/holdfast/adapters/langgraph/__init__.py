"""LangGraph: `durable` graphs, and a checkpointer on SQLite and PostgreSQL. Needs the extra `langgraph`."""

from holdfast.core.agents.tool import ToolPolicy
from holdfast.extras import require_extra

with require_extra("langgraph"):
    from holdfast.adapters.langgraph.durable import durable
    from holdfast.adapters.langgraph.node_calls import record_tool_call
    from holdfast.adapters.langgraph.saver import HoldfastSaver

__all__ = ["HoldfastSaver", "ToolPolicy", "durable", "record_tool_call"]
