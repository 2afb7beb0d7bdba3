"""Writes a quantised package, measures it on real text, and spends more bits until the rounding meets its budget.

Further attempts do not trace or calibrate again, and those of an interrupted export are not made again. If the budget cannot be
met, the export ends with the widest form instead of failing: the certificate holds the measurement, and the report a warning.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from onnx_textgen.errors import first_line
from onnx_textgen.files.replace import replaced_file
from onnx_textgen.package.manifest import Target

from ..errors import ExportError, innermost
from ..passes.graph.accuracy import ROUNDED
from ..passes.quantization.lossless import rounded_parameters
from ..passes.quantization.options import SMALLER_BLOCKS, Quantization
from ..passes.quantization.plan import Plan
from ..passes.quantization.rounding import Roundings
from ..proof.measures import Quality
from ..reports import Report, begin
from ..sources.source import Source
from ..sources.stored_form import StoredForm
from ..tokenization.text_assets import TextAssets
from ..weights.streamed import Weights
from .activations import InputRounding
from .code_search import Calibrated, calibrate
from .matrices import find_matrices
from .mix import Mix, cheapest_mix, describe_mix
from .quality import Measures, QualityMeter, largest_loss, summaries
from .texts import calibration_ids, measured_texts

BUDGETS = {"int8": 0.003, "int4": 0.03}
"""Default budget of a precision: mean KL divergence from the unrounded model, in nats per token."""
OF_ACTIVATIONS = 0.002
"""Approximate divergence from rounding the products' inputs to 8 bits, which no choice of bits for weights avoids."""
CALIBRATION_GAP = 1.16
"""Assumed ratio of the loss on another text to that on the calibration text, until it has been measured."""
MOST_ATTEMPTS = 6
WORTH_USING = 0.95
"""A package that uses this share of the budget is accepted; below it, smaller ones are tried."""


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """Allowed loss or size of a quantised package; by default the budget of its precision."""

    max_kl: float | None = None
    """Mean divergence from the unrounded model on the kind of text where it is largest, in nats per token."""
    target_bytes: int | None = None
    """Size of the package, for the best quality within it."""
    min_cosine: float | None = None
    """Of a text encoder: the smallest cosine of a vector with PyTorch's."""
    strict_bits: bool = False
    """Exactly the bits of the precision, whatever the loss."""
    calibrates: bool = True
    calibration: Path | None = None
    """A text file to calibrate on; None: the exporter's own texts."""

    def __post_init__(self) -> None:
        asked = [name for name in ("max_kl", "target_bytes", "strict_bits") if getattr(self, name)]
        if len(asked) > 1:
            words = {"max_kl": "--max-kl", "target_bytes": "--target-size", "strict_bits": "--strict-bits"}
            raise ExportError(f"{words[asked[0]]} and {words[asked[1]]} are two budgets for one package; give only one")
        if self.max_kl is not None and not 0 < self.max_kl < float("inf"):
            raise ExportError(f"--max-kl should be above 0, found {self.max_kl}; the defaults are 0.03 for int4 and 0.003 for int8")
        if self.min_cosine is not None and not 0 < self.min_cosine < 1:
            raise ExportError(f"--min-cosine should be above 0 and below 1, found {self.min_cosine}; the default for int8 is 0.998")
        if self.calibration is not None and not self.calibrates:
            raise ExportError("--calibrate FILE and --no-calibrate contradict each other; give only one")


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """One way to round a package."""

    options: Quantization
    mix: Mix
    """Forms of the calibrated matrices; `options` apply to the rest."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """What the search for the next attempt knows of an earlier one."""

    attempt: Attempt
    size_bytes: int
    loss: float
    """Mean divergence on the kind of text where it is largest."""
    keeps_all: bool = False
    """Every matrix keeps its numbers, so that no option would change it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A package that was written and measured."""

    attempt: Attempt
    size_bytes: int
    searched: Measures
    """By which attempts are compared."""
    roundings: Roundings
    unrounded: tuple[str, ...] = ()
    """Layers that do not round their inputs (see `activations`)."""
    accepted: Measures | None = None
    """On other texts, of an attempt that may be kept."""

    @property
    def loss(self) -> float:
        """Mean divergence on the kind of text where it is largest."""
        return max(largest_loss(each) for each in (self.searched, self.accepted) if each is not None)

    @property
    def quality(self) -> dict[str, Quality]:
        """By kind of text, and for `all`."""
        return summaries([each for each in (self.searched, self.accepted) if each is not None])

    def as_record(self, stored: Mapping[str, StoredForm]) -> dict[str, object]:
        """For the manifest: the options, the bytes of each form of a mix, and what became of matrices that were quantised before.

        stored: how the source stores the parameters that it holds quantised.
        """
        mix, ternary, kept = describe_mix(self.attempt.mix), self.roundings.ternary, self.roundings.kept
        more = (
            ({"mix": mix} if len(mix) > 1 else {})
            | ({"ternary": ternary} if ternary else {})
            | ({"as_stored": kept} if kept else {})
            | ({"sources": self.roundings.sources(stored)} if stored else {})
            | ({"unrounded_inputs": list(self.unrounded)} if self.unrounded else {})
        )
        options = self.attempt.options
        if self.roundings.keeps_all:  # no other option took effect
            return {"bits": options.bits, "accuracy_level": options.accuracy_level, **more}
        return options.as_record() | more


Write = Callable[[Quantization, Plan | None], tuple[int, Roundings | None]]
"""Writes the package's graph; returns the bytes of its folder, and what was rounded."""


@dataclasses.dataclass(frozen=True, slots=True)
class Traced:
    """A traced decoder, and where it is rounded."""

    model: ir.Model
    """The optimized graph, in float32."""
    source: Source
    weights: Weights
    assets: TextAssets
    target: Target
    graph: Path
    """The file that `Write` writes."""
    work: Path
    """An empty folder for codes; the returned roundings read them later."""


def round_within_budget(traced: Traced, *, options: Quantization, budget: Budget, write: Write, report: Report) -> Measured:
    """Write the package of a decoder, rounded within `budget`; reports what was chosen and what it costs."""
    limit = limit_of(options, budget)
    tried, made, records = list[Tried](), None, Records(traced.work)
    reading = begin("read texts with PyTorch", report)
    texts = measured_texts(traced.source, traced.assets)
    searches = bool(rounded_parameters(traced.model.graph, options))
    meter = QualityMeter(traced.source, traced.weights, texts, traced.work, searches=searches, report=reading)
    inputs = InputRounding(meter)
    calibrated = calibration(traced, options=options, budget=budget, report=report)

    def make(attempt: Attempt) -> Measured:
        report(f"write {describe(attempt)}")
        plan = calibrated.plan(attempt.mix) if calibrated is not None and attempt.mix else None
        size, roundings = write(attempt.options, plan)
        assert roundings is not None, "there are options"
        measuring, unrounded = begin("measure the rounding", report), tuple[str, ...]()
        if attempt.options.accuracy_level == ROUNDED and attempt.options.activations is None:
            found, unrounded = inputs.measure(traced.graph, measuring)
        else:
            found = meter.measure(traced.graph, "search", measuring)
        made = Measured(attempt, size, found, roundings, unrounded)
        return accept(made) if made.loss <= limit else made

    def accept(made: Measured) -> Measured:
        if not searches:
            return made
        measuring = begin("measure on other texts", report)
        return dataclasses.replace(made, accepted=meter.measure(traced.graph, "acceptance", measuring))

    while (attempt := next_attempt(tried, options, calibrated, budget, limit)) is not None:
        known = records.of(attempt)
        if known is None:
            made = make(attempt)
            known = Tried(attempt, made.size_bytes, made.loss, made.roundings.keeps_all)
            records.add(known)
        tried.append(known)
        if known.keeps_all:
            break
    chosen = best_of(tried, limit, budget)
    best = made if made is not None and made.attempt == chosen.attempt else make(chosen.attempt)
    best = best if best.accepted is not None else accept(best)
    report(verdict(best, tried, limit, budget))
    return best


class Records:
    """Attempts of an interrupted export, in a file for each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file_of(self, attempt: Attempt) -> Path:
        """An attempt's file."""
        mix = sorted(attempt.mix.items(), key=lambda each: each[0])  # resumed, matrices come in another order
        return self.folder / f"attempt_{hashlib.sha256(repr((attempt.options, mix)).encode()).hexdigest()}.json"

    def of(self, attempt: Attempt) -> Tried | None:
        """What an attempt gave; None if it has not been made."""
        file = self.file_of(attempt)
        return Tried(attempt, **json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None

    def add(self, tried: Tried) -> None:
        """Keep what an attempt gave."""
        found = {"size_bytes": tried.size_bytes, "loss": tried.loss, "keeps_all": tried.keeps_all}
        with replaced_file(self.file_of(tried.attempt)) as partial:
            partial.write_text(json.dumps(found), encoding="utf-8")


def limit_of(options: Quantization, budget: Budget) -> float:
    """The divergence that a package should not exceed."""
    return budget.max_kl if budget.max_kl is not None else BUDGETS[f"int{options.bits}"]


def best_of(tried: Sequence[Tried], limit: float, budget: Budget) -> Tried:
    """The best package of the target size, or the smallest one within the budget; the closest one if none is."""
    if budget.target_bytes is not None:
        fitting = [each for each in tried if each.size_bytes <= budget.target_bytes]
        return min(fitting, key=lambda each: each.loss) if fitting else min(tried, key=lambda each: each.size_bytes)
    holding = [each for each in tried if each.loss <= limit]
    return min(holding, key=lambda each: each.size_bytes) if holding else min(tried, key=lambda each: each.loss)


def calibration(traced: Traced, *, options: Quantization, budget: Budget, report: Report) -> Calibrated | None:
    """Codes from real text; None if calibration is not asked for, not possible, or would have nothing to round."""
    matrices = find_matrices(traced.model.graph, options, traced.target) if options.method == "calibrated" else []
    if not matrices:
        return None
    try:
        source = traced.source
        ids = calibration_ids(source, traced.assets, budget.calibration, forward_only=options.bits == 8)
        calibrating = begin(f"calibrate on {ids.numel():,} tokens", report)
        return calibrate(source, traced.weights, matrices, ids, options=options, folder=traced.work, report=calibrating)
    except ExportError as error:
        if budget.calibration is not None:
            raise
        report(f"not calibrated: {first_line(error)}")
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        report(f"not calibrated: {type(traced.source.module).__name__} failed in the backward pass: {first_line(innermost(error))}")
    return None


def next_attempt(
    tried: Sequence[Tried], options: Quantization, calibrated: Calibrated | None, budget: Budget, limit: float
) -> Attempt | None:
    """The next attempt; None if the last one is final."""
    is_fixed = budget.strict_bits or options.head_bits is not None or options.sensitive_bits is not None
    if calibrated is None or options.bits == 8:
        rungs = ladder(options, calibrated)
        over = len(tried) == len(rungs) or bool(tried and (tried[-1].loss <= limit or is_fixed or budget.target_bytes))
        return None if over else rungs[len(tried)]
    if is_fixed or budget.target_bytes is not None:
        over = len(tried) == (1 if is_fixed else 2)
        return None if over else within_size(tried, options, calibrated, budget.target_bytes)
    return towards_budget(tried, options, calibrated, limit)


def ladder(options: Quantization, calibrated: Calibrated | None) -> list[Attempt]:
    """Attempts without calibrated losses, from narrow to wide: smaller blocks at int8, more matrices with 8 bits at int4."""
    if options.bits == 8:
        forms = [options, *(dataclasses.replace(options, block_size=size) for size in SMALLER_BLOCKS if size < options.block_size)]
        return [Attempt(form, {} if calibrated is None else smallest_mix(form, calibrated)) for form in forms]
    wider = [options, dataclasses.replace(options, head_bits=8), dataclasses.replace(options, head_bits=8, sensitive_bits=8)]
    eight = dataclasses.replace(
        options, method="k_quant" if options.method == "hqq" else options.method, head_bits=8, sensitive_bits=8
    )
    return [Attempt(form, {}) for form in dict.fromkeys([*wider, dataclasses.replace(eight, all_bits=8)])]


def smallest_mix(options: Quantization, calibrated: Calibrated) -> Mix:
    """Every matrix in the form that the options specify."""
    mix: Mix = {}
    for name, choices in calibrated.choices.items():
        bits = options.bits_of(calibrated.matrices[name].part)
        mix[name] = next(
            each for each in choices if each.bits == bits and (each.block_size == options.block_size or bits != options.bits)
        )
    return mix


def within_size(tried: Sequence[Tried], options: Quantization, calibrated: Calibrated, most: int | None) -> Attempt:
    """First the smallest package, to measure the rest of its folder; then the best one within the size."""
    smallest = smallest_mix(options, calibrated)
    if most is None or not tried:
        return Attempt(options, smallest)
    rest = tried[0].size_bytes - sum(each.bytes for each in smallest.values())
    return Attempt(options, cheapest_mix(calibrated.choices, most_bytes=most - rest))


def towards_budget(tried: Sequence[Tried], options: Quantization, calibrated: Calibrated, limit: float) -> Attempt | None:
    """The mix expected to meet the budget, by the expected and measured losses of earlier ones."""
    if tried and WORTH_USING * limit <= tried[-1].loss <= limit:
        return None
    widest = Attempt(options, cheapest_mix(calibrated.choices))
    if len(tried) >= MOST_ATTEMPTS:
        return None if any(each.loss <= limit or each.attempt == widest for each in tried) else widest
    mix = cheapest_mix(calibrated.choices, most_loss=expected_loss(tried, limit))
    return None if any(each.attempt.mix == mix for each in tried) else Attempt(options, mix)


def expected_loss(tried: Sequence[Tried], limit: float) -> float:
    """The sum of expected losses at which a mix should be measured just under the budget."""
    goal = (1 + WORTH_USING) / 2 * limit
    activations = min(OF_ACTIVATIONS, goal / 2)
    points = [(sum(each.loss for each in one.attempt.mix.values()), one.loss) for one in tried]
    under, over = [point for point in points if point[1] <= goal], [point for point in points if point[1] > goal]
    if under and over:
        (low, small), (high, large) = max(under), min(over)
        return low + (high - low) * (goal - small) / (large - small)
    if not points:
        return (goal - activations) / CALIBRATION_GAP
    expected, found = points[-1]
    return expected * (goal - activations) / max(found - activations, 0.1 * found, 1e-12)


def describe(attempt: Attempt) -> str:
    """An attempt in words, for a report."""
    mix = describe_mix(attempt.mix)
    if not mix:
        return attempt.options.describe()
    return ", ".join(f"{kind} {size / 1e6:.1f} MB" for kind, size in mix.items())


def forms_of(measured: Measured) -> str:
    """Return the forms that a package consists of: those that were kept, or those of the attempt."""
    kept = measured.roundings.kept
    if measured.roundings.keeps_all:
        return ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in kept.items())
    return describe(measured.attempt)


def verdict(best: Measured, tried: Sequence[Tried], limit: float, budget: Budget) -> str:
    """Say what was chosen, what it costs, and whether it meets the budget."""
    quality = best.quality
    everything, (worst, most) = quality.pop("all"), max(quality.items(), key=lambda each: each[1].kl_mean)
    line = (
        f"rounding: {forms_of(best)}; KL {most.kl_mean:.4f} on {worst}, {everything.kl_mean:.4f} on {everything.tokens:,} tokens, "
        f"same top-1 {everything.top1_agreement:.1%}, perplexity {everything.perplexity_change:+.1%}"
    )
    line += f"; {', '.join(best.unrounded)} compute{'s' if len(best.unrounded) == 1 else ''} in float32" if best.unrounded else ""
    if best.roundings.keeps_all:
        inputs = ", the inputs of products are rounded to 8 bits" if best.attempt.options.accuracy_level == 4 else ""
        return f"{line}; every matrix keeps its numbers{inputs}"
    if budget.target_bytes is not None:
        return line if best.size_bytes <= budget.target_bytes else f"{line}; no smaller package is possible"
    if best.loss > limit:
        why = "as --strict-bits asks" if budget.strict_bits else "the widest form"
        why += "; --exact rounds weights alone" if best.attempt.options.accuracy_level == ROUNDED else ""
        return f"{line}; above the budget of {limit:g}, {why}"
    more = best.size_bytes - min(each.size_bytes for each in tried)
    return f"{line}; within the budget of {limit:g}" + (f" for {more / 1e6:.1f} MB more" if more > 0 else "")
