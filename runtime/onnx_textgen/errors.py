"""The errors this package raises: each message is one line that says what is wrong, why, and what to do.

What is no error, but should be known, goes to the log.
"""

import logging
from collections.abc import Iterable, Mapping

MOST_COMPARED = 100
LOG = logging.getLogger("onnx_textgen")


class OnnxTextgenError(Exception):
    """Base class of the errors that a caller can fix; catch it to catch them all."""


class PackageError(OnnxTextgenError):
    """A model folder that is missing, damaged, unknown or newer than this version."""


class OptionError(OnnxTextgenError):
    """An option that does not exist, is out of range or cannot take effect."""


class PromptError(OnnxTextgenError):
    """A prompt that is empty, too long, not valid text, or holds ids outside the vocabulary."""


class ImageError(PromptError):
    """A picture that is missing, damaged, too large or of an unknown format, or that the model does not read."""


class AudioError(PromptError):
    """A sound that is missing, damaged, empty or of an unknown format."""


class DeviceError(OnnxTextgenError):
    """A device that was requested and is not available."""


class TokenizerError(OnnxTextgenError):
    """A tokenizer file that cannot be used, or that failed on a text."""


class TemplateError(OnnxTextgenError):
    """A chat template that is missing, refused the messages, or asked for more than a template may."""


class BusyError(OnnxTextgenError):
    """Too many requests wait for one model."""


class ModelError(OnnxTextgenError):
    """The model failed while it ran, or its logits are not numbers."""


class RuleError(ModelError):
    """A text that cannot follow its rule any further: the rule allows no token of the model, or takes too much work."""


def did_you_mean(name: str, names: Iterable[str], elsewhere: Mapping[str, str] = {}) -> str:
    """A question with the name that is most similar; empty if none is. `elsewhere`: other words, and what they are called here.

    >>> did_you_mean("Stroy", ["story", "smollm2"]), did_you_mean("x", ["story"])
    ('did you mean story? ', '')
    """
    import difflib  # noqa: PLC0415  (for a mistake only)

    meant, wanted = {each.casefold(): each for each in names} | dict(elsewhere), name[:MOST_COMPARED].casefold()
    closest = [each for each in meant if each.startswith(wanted)] or difflib.get_close_matches(wanted, meant, n=1)
    return f"did you mean {meant[closest[0]]}? " if closest else ""


def first_line(error: BaseException) -> str:
    r"""The message of an exception in one short line; its class name if it has no message.

    >>> first_line(ValueError("no such file\nat line 3")), first_line(KeyError())
    ('no such file', 'KeyError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
