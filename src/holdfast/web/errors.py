"""Errors of requests: each has the HTTP status of its response."""

from typing import ClassVar

from holdfast.errors import HoldfastError


class RequestError(HoldfastError):
    """The request was refused. Nothing was changed."""

    status: ClassVar[int] = 400


class NotAuthenticated(RequestError):
    """The request has no credentials, or they are not valid."""

    status = 401


class Forbidden(RequestError):
    """The credentials do not permit this request, or it came from another origin."""

    status = 403


class InvalidToken(NotAuthenticated):
    """The browser token was changed, was signed with another secret, or has expired."""


class AddressInUse(HoldfastError):
    """The server cannot listen on its port."""
