"""The answer of a store to posted mail."""

import msgspec

from holdfast.core.mail import Mail as Mail


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a store to posted mail."""

    #: Whether this call added the mail. Otherwise the run had mail with this id before.
    is_new: bool
    #: The mail that the store has under this id: of the call that was first.
    mail: Mail
    #: Whether the run has consumed it.
    consumed: bool = False
