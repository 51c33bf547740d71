"""LangGraph: a checkpointer on SQLite or PostgreSQL."""

from holdfast.adapters.langgraph.saver import HoldfastSaver

__all__ = ["HoldfastSaver"]
