"""Times the products of a package on this machine in its own form and in others that an export can make.

Only products are timed, with ONNX Runtime on the CPU; attention, norms and the choice of tokens take the same time in any form. So
a model gains less than its products do, and the less, the longer the text.

The forms take turns, round after round, so that a slow moment of the machine affects all of them. Other work on the machine only
adds time, so the fastest round counts. Each turn reads weights that the other forms' turns have displaced from caches, as a run of
a whole model does. One shape at a time is in memory, with few of its weights: of a larger matrix, a part is timed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import onnxruntime

from ..backends.onnxruntime_session import make_options
from .product_forms import Form, Product, Products, form_in, other_forms
from .product_graph import INPUT, product_model, random_weights

PART = 128
"""Tokens of a part of a prompt."""
SHARE = 0.9
"""The share of all weights whose products are timed."""
MOST_WEIGHTS = 2**24
"""Weights of a form that are in memory at a time; all forms together then take more than most caches hold."""
MOST_COPIES = 16
SECONDS = 0.6
"""Time for the rounds of one shape."""
LEAST_ROUNDS = 6
FASTER = 1.1
"""How many times as fast another form has to be to be named."""
DISTURBED = 1.5
"""Half of the rounds take this many times as long as the fastest where other work runs on the machine."""

Seconds = npt.NDArray[np.float64]
"""[2, rounds]: for one token, and for a part of a prompt."""


@dataclasses.dataclass(frozen=True, slots=True)
class FormSpeed:
    """Another form, compared with the package's own."""

    form: str
    export_options: str
    """What makes it."""
    text: float
    """How many times as fast its products are for one token."""
    prompt: float
    """The same for a part of a prompt."""
    size: float
    """Bytes of its weights, divided by the package's."""
    faster_for: tuple[str, ...]
    """`text`, `prompts`: what its products are at least 1.1 times as fast for, in each half of the rounds; empty if other work
    disturbed the measurement."""


@dataclasses.dataclass(frozen=True, slots=True)
class FormSpeeds:
    """All forms compared on this machine."""

    package: str
    """The package's own forms, the most frequent first."""
    text_ms: float
    """Time of the package's products for one token, as they were timed alone."""
    prompt_ms: float
    """The same for a part of a prompt, 128 tokens."""
    forms: tuple[FormSpeed, ...]
    keeps_8_bits: bool
    """Whether the package has products of 4 and of 8 bits; those of 8 keep them in other forms of 4."""
    has_only_8_bits: bool
    """Whether all its products have 8 bits, of which an export at int4 would keep some."""
    disturbed: bool
    """Whether other work on the machine disturbed the measurement."""

    def fastest(self, what: str) -> FormSpeed | None:
        """The form that is fastest for `text` or `prompts`, if it is faster than the package's own."""
        named = [each for each in self.forms if what in each.faster_for]
        return max(named, key=lambda each: each.text if what == "text" else each.prompt, default=None)


def compare_forms(
    products: Products, width: int, *, threads: int | None = None, on_shape: Callable[[int, int], None] | None = None
) -> FormSpeeds:
    """Time the products of a model of that width in each form; takes about a second for each shape of which the model is made.

    `on_shape` gets the number of a shape and of all shapes, before it is timed. Raises `OptionError` for a wrong number of threads.
    """
    forms, shapes = list(other_forms(products, width)), largest_shapes(products)
    timed = dict[tuple[int, int, bool], dict[Form, Seconds]]()
    for number, shape in enumerate(shapes):
        if on_shape is not None:
            on_shape(number + 1, len(shapes))
        here = [product for product in products if shape_of(product) == shape]
        needed = dict.fromkeys(each for product in here for each in (product.form, *(form_in(product, f, products) for f in forms)))
        timed[shape] = time_shape(here[0], list(needed), threads)

    def total(form: Form | None) -> Seconds:
        """Of all products timed, [2, 4]: the fastest of all rounds, of each half, and the median."""
        parts = [
            count * summary(timed[shape_of(product)][product.form if form is None else form_in(product, form, products)])
            for product, count in products.items()
            if shape_of(product) in timed
        ]
        return sum(parts, start=np.zeros((2, 4)))

    own, bits = total(None), {product.form.bits for product in products}
    disturbed = bool((own[:, 3] > DISTURBED * own[:, 0]).any())
    sizes = {form: bytes_of(products, form) / bytes_of(products, None) for form in forms}
    return FormSpeeds(
        package="; ".join(form.describe() for form in forms_by_weights(products)),
        text_ms=float(own[0, 0] * 1000),
        prompt_ms=float(own[1, 0] * 1000),
        forms=tuple(compared(form, own / total(form), sizes[form], disturbed=disturbed) for form in forms),
        keeps_8_bits=bits >= {4, 8},
        has_only_8_bits=bits == {8},
        disturbed=disturbed,
    )


def compared(form: Form, ratios: Seconds, size: float, *, disturbed: bool) -> FormSpeed:
    """The record of a form; ratios [2, 4]: the time of the package's own, divided by its time (see `summary`)."""
    faster = zip(("text", "prompts"), ratios, strict=True)
    names = tuple(name for name, each in faster if (each[:3] >= FASTER).all() and not disturbed)
    return FormSpeed(form.describe(), form.export_options, float(ratios[0, 0]), float(ratios[1, 0]), size, names)


def shape_of(product: Product) -> tuple[int, int, bool]:
    """What products are timed together by."""
    return product.inputs, product.outputs, product.is_head


def largest_shapes(products: Products) -> list[tuple[int, int, bool]]:
    """The fewest shapes that have `SHARE` of all weights, those with the most weights first."""
    weights = dict[tuple[int, int, bool], int]()
    for product, count in products.items():
        weights[shape_of(product)] = weights.get(shape_of(product), 0) + count * product.weights
    shapes = sorted(weights, key=lambda shape: -weights[shape])
    sums = np.cumsum([weights[shape] for shape in shapes])
    return shapes[: int(np.searchsorted(sums, SHARE * sums[-1])) + 1]


def forms_by_weights(products: Products) -> Iterable[Form]:
    """The package's own forms, those with the most weights first."""
    weights = dict[Form, int]()
    for product, count in products.items():
        weights[product.form] = weights.get(product.form, 0) + count * product.weights
    return sorted(weights, key=lambda form: -weights[form])


def bytes_of(products: Products, form: Form | None) -> float:
    """Bytes of all weights in a form; None: in the package's own."""
    return sum(
        count * product.weights * (product.form if form is None else form_in(product, form, products)).bytes_per_weight
        for product, count in products.items()
    )


def summary(seconds: Seconds) -> Seconds:
    """[2, 4]: the fastest of all rounds, the fastest of either half of them, and the median."""
    halves = (seconds, seconds[:, ::2], seconds[:, 1::2])
    return np.stack([*(each.min(axis=1) for each in halves), np.median(seconds, axis=1)], axis=1)


def time_shape(product: Product, forms: Sequence[Form], threads: int | None) -> dict[Form, Seconds]:
    """Time a product in each form; of a large one a part, whose time is multiplied up."""
    outputs = min(product.outputs, max(1, MOST_WEIGHTS // product.inputs))
    part = dataclasses.replace(product, outputs=outputs)
    copies = max(1, min(MOST_COPIES, MOST_WEIGHTS // part.weights))
    factors = product.outputs / outputs * np.array([[1 / copies], [1.0]])
    turns = {form: Turn(dataclasses.replace(part, form=form), copies, threads) for form in forms}
    rounds = take_turns(turns, product.is_head)
    if product.is_head:
        factors[1] = factors[0]
    return {form: np.array(rounds[form]).T * factors for form in forms}


def take_turns(turns: dict[Form, Turn], is_head: bool) -> dict[Form, list[tuple[float, float]]]:
    """Seconds of each form's turns, round by round; each round begins with another form."""
    order, found = list(turns), {form: list[tuple[float, float]]() for form in turns}
    for form in order:
        turns[form].take(is_head)  # memory is allocated, and not timed
    start, number = time.perf_counter(), 0
    while number < LEAST_ROUNDS or time.perf_counter() - start < SECONDS:
        order = order[1:] + order[:1]
        for form in order:
            found[form].append(turns[form].take(is_head))
        number += 1
    return found


class Turn:
    """One form of a product, open in ONNX Runtime."""

    def __init__(self, product: Product, copies: int, threads: int | None) -> None:
        arrays = random_weights(product)
        self.many = open_model(product_model(product, arrays, copies=copies), threads)
        self.one = self.many if copies == 1 else open_model(product_model(product, arrays), threads)
        real = np.float16 if product.form.is_float16 else np.float32
        self.tokens = np.random.default_rng(1).normal(size=(PART, product.inputs)).astype(real)

    def take(self, is_head: bool) -> tuple[float, float]:
        """Seconds of a run of all copies for one token, and of one copy for a part of a prompt; of a head's, the former twice."""
        text = seconds_of(self.many, self.tokens[:1])
        return text, text if is_head else seconds_of(self.one, self.tokens)


def open_model(model: bytes, threads: int | None) -> onnxruntime.InferenceSession:
    """Open a graph whose idle threads do not spin: the next form's turn begins at once."""
    options = make_options(threads)
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def seconds_of(session: onnxruntime.InferenceSession, tokens: npt.NDArray[np.generic]) -> float:
    """Of one run."""
    start = time.perf_counter()
    session.run(None, {INPUT: tokens})
    return time.perf_counter() - start
