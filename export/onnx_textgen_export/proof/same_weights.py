"""The strict half of a quantised package's proof: with the same rounded weights, PyTorch gives the same logits.

Rounding to 4 bits moves logits so far that a small error of the graph would go unnoticed. So the package's weights are run by a
graph whose products compute in float32, and compared with PyTorch whose parameters are rounded in the same way. The remaining
difference is not rounding, and the limits of float32 apply to it (float16's where activations are float16). The wide limits of the
precision then apply to the rounding alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import onnx_ir as ir
from onnxruntime import SessionOptions

from onnx_textgen.backends.onnxruntime_session import OnnxRuntimeSession, make_options, open_on, open_session
from onnx_textgen.backends.protocol import CPU
from onnx_textgen.package.manifest import ENCODER_GRAPH, GoldenRun, Precision

from ..errors import ExportError, as_export_error
from ..passes.graph.accuracy import FLOAT32, multiply_in_float32
from ..passes.quantization.rounding import Change, Roundings
from ..reports import Report
from ..sources.source import Source
from ..weights.streamed import Weights
from .adapters import ProvenAdapter, computing_with
from .certificate import prove
from .measures import ANY_ROUNDING, REMEDIES, TOLERANCES, Scenario, Tolerance
from .reference import Reference, judge_greedy, judge_scenario
from .scenarios import (
    WHOLE_LENGTH,
    Fed,
    NewDecoder,
    ScenarioRun,
    corrected,
    counted,
    decoders_of,
    feed_batch,
    feed_in_pieces,
    feed_long,
    feed_whole,
    is_large,
    open_encoder,
    source_ids_for,
    text_length,
)

SLOW_PIECE, SLOW_STEPS = 8, 2
"""Tokens of the first piece of a text, and steps of a batch."""
MOST_CORRECTIONS = 3
"""Corrections of a draft by a model that is not large, and so may be opened a second time for them."""
EXPERTS = "ORT_QMOE_CPU_QNBIT_GEMM"
"""Environment variable that does the same for experts: QMoE has no such level at 8 bits (microsoft/onnxruntime#32644)."""


@contextlib.contextmanager
def opened_after(graph: Path, change: Callable[[ir.Graph], None], options: SessionOptions) -> Iterator[OnnxRuntimeSession]:
    """A graph after a change, opened in the folder of its weights."""
    model, changed = ir.load(graph), graph.with_name(f"changed_{graph.name}")
    change(model.graph)
    try:
        ir.save(model, changed)
        del model
        yield open_on(changed, CPU, options)
    finally:
        changed.unlink(missing_ok=True)


@contextlib.contextmanager
def in_float32(graph: Path) -> Iterator[OnnxRuntimeSession]:
    """The graph of a quantised package with all products in float32."""
    before = os.environ.get(EXPERTS)
    os.environ[EXPERTS] = "fp32"
    try:
        options = make_options(None)
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", str(FLOAT32))
        with opened_after(graph, multiply_in_float32, options) as session:
            yield session
    finally:
        del os.environ[EXPERTS]
        if before is not None:
            os.environ[EXPERTS] = before


@contextlib.contextmanager
def opened_for_proof(
    source: Source, graph: Path, *, precision: Precision, roundings: Roundings | None
) -> Iterator[tuple[OnnxRuntimeSession, dict[str, Change] | None, Tolerance]]:
    """The graph, the changes that give PyTorch the package's rounded weights, and how much the two may differ then.

    Where no such changes are known (None), PyTorch keeps its weights, and the tolerance of the precision applies.
    """
    changes = roundings.by_name(source.module) if roundings is not None else None
    if changes is None or roundings is None:
        yield open_session(graph, device="cpu"), None, TOLERANCES[precision]
        return
    with in_float32(graph) as session:
        yield session, changes, TOLERANCES[roundings.arithmetic]


def feed_exactly(source: Source, decoder: NewDecoder, ids: list[int]) -> Iterator[ScenarioRun]:
    """One text, beginnings of it, and a long one if there are windows: few runs, as one may take seconds.

    The rows of a batch are fed a beginning, and then single tokens over that, so a large model is fed nothing else.
    """
    text, read = ids[: text_length(WHOLE_LENGTH, source)], source_ids_for(source, ids)
    if not is_large(source):
        yield ScenarioRun("whole prompt", [Fed(text, feed_whole(decoder(read), text), read)])
        yield ScenarioRun("several tokens over a past", [Fed(text, feed_in_pieces(decoder(read), text, first=SLOW_PIECE), read)])
    yield feed_batch(source, decoder, ids, [text[: len(text) // 3], text, text[: len(text) // 2]], most_steps=SLOW_STEPS)
    if has_long_text(source):
        yield ScenarioRun("long text", [Fed(ids, feed_long(decoder(read), ids), read)])


def has_long_text(source: Source) -> bool:
    """Return whether a short text leaves something out: windows, and a switch of rotary frequencies."""
    return bool(source.windows) or source.rotary_switch is not None


def run_exactly(
    source: Source,
    graph: Path,
    ids: list[int],
    drafts: Sequence[GoldenRun],
    adapter: ProvenAdapter | None = None,
    *,
    report: Report = lambda step: None,
) -> tuple[list[ScenarioRun], tuple[GoldenRun, ...]]:
    """The logits of the package's graph in float32, and the greedy continuations; the graph is closed afterwards."""

    @functools.cache
    def drafting() -> NewDecoder:
        """The graph as it runs, whose single tokens take a fraction of the time."""
        return decoders_of(source, open_session(graph, device="cpu"), adapter, encoder=open_encoder(source, graph))

    with contextlib.ExitStack() as stack:
        session, encoder = stack.enter_context(in_float32(graph)), None
        if source.encoder is not None:
            encoder = stack.enter_context(in_float32(graph.with_name(ENCODER_GRAPH)))
        decoder = decoders_of(source, session, adapter, encoder=encoder)
        count = (1 if is_large(source) else 3) + has_long_text(source)
        fed = list(counted(feed_exactly(source, decoder, ids), count, "run in float32", report))
        most = 0 if is_large(source) else MOST_CORRECTIONS
        return fed, tuple(corrected(decoder, source, draft, drafting, most=most) for draft in drafts)


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison of a graph with PyTorch measured."""

    measured: list[Scenario]
    """Of the package as it runs."""
    exact: list[Scenario]
    """The same with the package's rounded weights on both sides; empty where nothing was rounded."""
    golden: tuple[GoldenRun, ...]


def prove_with_rounding(
    reference: Reference,
    weights: Weights,
    graph: Path,
    ids: list[int],
    *,
    precision: Precision,
    remedy: str,
    roundings: Roundings | None,
    adapter: ProvenAdapter | None = None,
    report: Report = lambda step: None,
) -> Compared:
    """Compare a graph with PyTorch, and a quantised one with the same rounded weights too.

    reference: of the unrounded weights. Raises `ExportError` where they differ too much, with `remedy` as what to do.
    """
    source = reference.source
    is_comparable = roundings is not None and roundings.by_name(source.module) is not None
    tolerance = ANY_ROUNDING if is_comparable else TOLERANCES[precision]  # how much rounding costs has been measured
    measured, golden = prove(reference, weights, graph, ids, tolerance=tolerance, remedy=remedy, adapter=adapter, report=report)
    if roundings is None:
        return Compared(measured, [], golden)
    known = reference if roundings.keeps_all else None
    exact, exact_runs = prove_exactly(
        source, weights, graph, ids, roundings, known=known, drafts=golden, adapter=adapter, report=report
    )
    return Compared(measured, exact, with_exact_ids(golden, exact_runs))


def prove_exactly(
    source: Source,
    weights: Weights,
    graph: Path,
    ids: list[int],
    roundings: Roundings,
    *,
    known: Reference | None = None,
    drafts: Sequence[GoldenRun] = (),
    adapter: ProvenAdapter | None = None,
    report: Report = lambda step: None,
) -> tuple[list[Scenario], tuple[GoldenRun, ...]]:
    """Measure a quantised package by float32's limits; raises `ExportError` if it differs by more than its rounding.

    known: the reference, where the weights are the source's own. Returns the measurements, and the greedy continuations of
    `drafts`' prompts in that arithmetic. There are no measurements if a rounded matrix is no parameter of the module, so that
    PyTorch cannot be given the same weights.
    """
    changes, tolerance = roundings.by_name(source.module), TOLERANCES[roundings.arithmetic]
    with as_export_error():
        fed, golden = run_exactly(source, graph, ids, drafts, adapter, report=report)
    if changes is None:
        return [], golden
    with weights.present(changes if known is None else None), computing_with(adapter, source.module):
        reference = known or Reference(source)
        reference.read(fed, golden)
        measured = [judge_scenario(reference, each) for each in counted(fed, len(fed), "PyTorch's text", report)]
        for scenario in measured:
            if not tolerance.accepts(scenario):
                raise ExportError(
                    f"the export disagrees with PyTorch by more than its rounding ({scenario.in_words()}), so nothing was written; "
                    + REMEDIES["fp32"]
                )
        for run in golden:
            judge_greedy(reference, run, tolerance, REMEDIES["fp32"])
    return measured, golden


def with_exact_ids(golden: tuple[GoldenRun, ...], exact: tuple[GoldenRun, ...]) -> tuple[GoldenRun, ...]:
    """The runs with the continuations in exact arithmetic of the same prompts, where those are others."""
    return tuple(
        run if run == other else dataclasses.replace(run, exact_ids=other.new_ids) for run, other in zip(golden, exact, strict=True)
    )
