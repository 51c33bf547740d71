"""Tokens for browsers: one run or conversation, some scopes, an expiry; signed, so that nothing has to be stored."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Set
from datetime import datetime, timedelta

import msgspec
from starlette.requests import Request

from holdfast.clock import CLOCK, Clock
from holdfast.core.errors import DefinitionError
from holdfast.core.run.info import check_run_id
from holdfast.core.validation import check_duration
from holdfast.web.auth import Principal, Scope, read_bearer_token
from holdfast.web.errors import InvalidToken

_MIN_SECRET_BYTES = 16
#: A signature over something else with the same secret is no token.
_PURPOSE = b"holdfast browser token 1\n"
_READ: frozenset[Scope] = frozenset({"read"})


class _Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The signed content of a token."""

    run_id: str
    caller_id: str
    scopes: frozenset[str]
    expires_at: datetime


class BrowserTokens:
    """Issues and verifies tokens that give a browser access to one run or conversation until they expire."""

    def __init__(self, secret: str | bytes, *, clock: Clock | None = None) -> None:
        """Sign with `secret`, which all processes that issue and verify tokens share.

        Raises:
            DefinitionError: the secret has less than 16 bytes.
        """
        key = secret.encode() if isinstance(secret, str) else secret
        if not isinstance(key, bytes) or len(key) < _MIN_SECRET_BYTES:
            raise DefinitionError(f"the secret of browser tokens is too short: give {_MIN_SECRET_BYTES} bytes or more")
        self._key, self._clock = key, clock or CLOCK.get()

    def issue(
        self,
        run_id: str,
        *,
        caller_id: str = "",
        scopes: Set[Scope] = _READ,
        expires_in: timedelta = timedelta(hours=1),
    ) -> str:
        """Return a token for one run or conversation.

        Args:
            caller_id: recorded as the sender of messages and answers.

        Raises:
            DefinitionError: the run id, a scope or the duration is not valid.
        """
        check_run_id(run_id)
        check_duration("expires_in", expires_in)
        Principal(caller_id=caller_id, scopes=scopes, run_id=run_id)  # checks the scopes
        expires_at = self._clock.now() + expires_in
        grant = _Grant(run_id=run_id, caller_id=caller_id, scopes=frozenset(scopes), expires_at=expires_at)
        body = _encode(msgspec.json.encode(grant))
        return f"{body}.{self._sign(body)}"

    def verify(self, token: str) -> Principal:
        """Return the principal of a token.

        Raises:
            InvalidToken: it was changed, was signed with another secret, or has expired.
        """
        body, _, signature = token.rpartition(".")
        if not hmac.compare_digest(self._sign(body).encode(), signature.encode(errors="replace")):
            raise InvalidToken("the token is not valid: it was changed, or signed with another secret")
        try:
            grant = msgspec.json.decode(_decode(body), type=_Grant)
        except (msgspec.MsgspecError, binascii.Error) as exc:  # signed by another release
            raise InvalidToken("the token is not valid: another release of holdfast issued it") from exc
        if grant.expires_at <= self._clock.now():
            raise InvalidToken("the token has expired: ask for another one")
        scopes: Set[Scope] = grant.scopes  # type: ignore[assignment]
        return Principal(caller_id=grant.caller_id, scopes=scopes, run_id=grant.run_id, expires_at=grant.expires_at)

    def authorize(self, request: Request) -> Principal | None:
        """Return the principal of the request's token, or `None` if there is none: an `authorize` of its own."""
        token = read_bearer_token(request)
        try:
            return self.verify(token) if token else None
        except InvalidToken:
            return None

    def _sign(self, body: str) -> str:
        return _encode(hmac.digest(self._key, _PURPOSE + body.encode(errors="replace"), hashlib.sha256))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
