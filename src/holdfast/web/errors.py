"""Errors of requests: each has the HTTP status of its response."""

from typing import ClassVar

from holdfast.root_error import HoldfastError


class RequestError(HoldfastError):
    """The request was refused. Nothing was changed.

    What to do: The subclass and the message say what to change.
    """

    status: ClassVar[int] = 400


class NotAuthenticated(RequestError):
    """The request has no credentials, or they are not valid.

    What to do: Send the credentials that the server's `authorize` expects.
    """

    status = 401


class Forbidden(RequestError):
    """The credentials do not permit this request, or it came from another origin.

    What to do: Use credentials with the scope that the message names, or call from an allowed origin.
    """

    status = 403


class InvalidToken(NotAuthenticated):
    """The browser token was changed, was signed with another secret, or has expired.

    What to do: Ask the server for a new browser token.
    """


class AddressInUse(HoldfastError):
    """The server cannot listen on its port.

    What to do: Choose another port with `--port`, or end the process that listens there.
    """
