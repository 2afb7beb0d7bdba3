"""What a sound template says of messages that it does not take."""

from ..errors import TemplateError


class RefusedError(TemplateError):
    """A chat template refused these messages, or failed on them; it may take them in another order."""
