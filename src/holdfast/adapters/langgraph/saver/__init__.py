"""A LangGraph checkpointer in SQLite or PostgreSQL."""

from holdfast.adapters.langgraph.saver.saver import HoldfastSaver

__all__ = ["HoldfastSaver"]
