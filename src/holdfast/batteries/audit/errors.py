"""What can go wrong with an audit."""

from holdfast.errors import HoldfastError


class AuditError(HoldfastError):
    """The audit was put together in a way that cannot work."""
