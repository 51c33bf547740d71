"""A LangGraph checkpointer in SQLite or PostgreSQL."""

from holdfast.adapters.langgraph.saver.holdfast_saver import HoldfastSaver

__all__ = ["HoldfastSaver"]
