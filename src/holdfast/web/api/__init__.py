"""The HTTP API: a Starlette app that serves the runs of an `App`."""

from holdfast.web.api.application import make_api

__all__ = ["make_api"]
