"""Drafts: the reply under way, for watchers only. Stores keep the newest one of a run, outside its journal."""

import msgspec


class Draft(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The part of a reply that has arrived so far."""

    #: Of the claim under which the model was asked. A draft of an earlier claim is void.
    token: int
    #: The number of the next journal entry when the model was asked: a reply with this number or a later one ends the
    #: draft.
    seq: int
    #: Tells this draft apart from the others of the claim.
    number: int
    text: str = ""
    reasoning: str = ""
