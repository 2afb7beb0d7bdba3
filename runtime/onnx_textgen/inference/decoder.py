"""Token ids in, logits out: one open graph over one cache.

`feed` takes a prompt, a part of one, or one token; `step` takes one token for every row. `Capabilities` says what the graph can do.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import getitem
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..backends.engine_errors import model_errors
from ..backends.protocol import Graph, mask_of
from ..backends.signature import LOGITS
from ..cancellation import UNCANCELLED, CancelScope
from ..encoders.encoder import Encoded, Encoder
from ..errors import PromptError
from ..images.image_rows import LOWEST, ImageRows
from ..kv_cache.factory import make_cache
from ..kv_cache.snapshot import Origin, Snapshot
from ..package.manifest import Geometry
from ..text.prefixes import common_prefix
from .capabilities import Capabilities
from .commit_guard import CommitGuard
from .graph_runner import GraphRunner, Logits
from .prompt_engine import PromptEngine
from .verifier import Verifier


class Decoder:
    """A graph and its cache of `rows` rows, each with its own length.

    If `output` names another output of the graph, such as hidden states, the methods return that output instead of logits.
    `extra_outputs` name further outputs to keep: see `last_extra_outputs`.
    """

    def __init__(
        self,
        graph: Graph,
        geometry: Geometry,
        *,
        rows: int = 1,
        capacity: int | None = None,
        output: str = LOGITS,
        extra_outputs: Sequence[str] = (),
        capabilities: Capabilities | None = None,
        adapter: str | None = None,
        encoder: Encoder | None = None,
        prompt_engine: PromptEngine | None = None,
        exact_history: bool = True,
        images: ImageRows | None = None,
    ) -> None:
        """`capabilities`: those of the graph for this output, if they are known already; `adapter`: that of all rows at first.

        `encoder`: the other half of an encoder-decoder; `prompt_engine`: what computes long prompts, if that is not the graph;
        `exact_history`: later prompts reuse only what was fed as they would be, to the last bit. `images`: the pictures that ids
        below 0 name, of a graph that reads pictures.
        """
        self.graph, self.geometry, self.rows, self.capacity = graph, geometry, rows, capacity
        self.capabilities = capabilities or Capabilities.of(graph, geometry, output)
        self.encoder, self.prompt_engine, self.exact_history = encoder, prompt_engine, exact_history
        self.images = images
        self.token_ids: list[list[int]] = [[] for _ in range(rows)]
        """Per row, the ids whose keys and values the cache holds."""
        held = functools.partial(getitem, self.token_ids)
        name = graph.name_of(output)
        self.runner = GraphRunner(graph, self.capabilities, name, extra_outputs, rows=rows, images=images, held=held)
        self.part_size = self.capabilities.part_size
        """Tokens that a caller should feed at a time."""
        self.layouts = Counter(dataclasses.replace(tensor, past="", present="") for tensor in graph.cache_tensors)
        """How many tensors of the cache have the same size: most graphs have one or two kinds."""
        self.can_batch_decode = rows > 1 and self.capabilities.can_batch_decode
        self.can_batch_prefill = rows > 1 and self.capabilities.can_batch_prefill
        self.changes = 0
        """How often the cache was fed or rolled back: by this, users of a shared decoder see that another one used it."""
        self.adapters: list[str | None] = [None] * rows
        """Per row, the name of its LoRA adapter; None: the model without one."""
        self.engines: list[str | None] = [None] * rows
        """Per row, the device that computes its prompt, if that is not the graph."""
        self.salts: list[str | None] = [None] * rows
        """Per row, whose text it has; see `Origin`."""
        self.reset()
        for row in range(rows):
            self.set_adapter(adapter, row=row)

    def set_adapter(self, name: str | None, *, row: int = 0) -> None:
        """Give a row one of the graph's adapters, or none; a row whose adapter changes becomes empty."""
        if name == self.adapters[row]:
            return
        assert name is None or name in self.graph.adapters, "the caller has checked"
        self.rewind(0, row=row)
        self.adapters[row] = name
        self.runner.adapter_mask[row, 0] = [name == each for each in self.graph.adapters]

    def read_source(self, token_ids: Sequence[int], *, row: int = 0, scope: CancelScope = UNCANCELLED) -> None:
        """Let the encoder read the source that the text of a row follows; a row whose source changes becomes empty.

        A source that another row has is not read again. Raises `ModelError`, and `InterruptedRunError` if `scope` ends the run.
        """
        assert self.encoder is not None, "a decoder has no source"
        wanted = tuple(token_ids)
        known = (each for each in self.runner.sources.rows if each is not None and each.token_ids == wanted)
        self.set_source(next(known, None) or self.encoder.encode(wanted, scope), row=row)

    def set_source(self, source: Encoded, *, row: int = 0) -> None:
        """Say what source the text of a row follows; a row whose source changes becomes empty."""
        held = self.runner.sources.rows
        if (own := held[row]) is None or own.token_ids != source.token_ids:
            self.rewind(0, row=row)
            held[row] = source

    def choose_engine(self, tokens: int, *, row: int = 0) -> None:
        """Choose what computes a prompt of `tokens` tokens, by their number alone; a row whose engine changes becomes empty."""
        engine = self.prompt_engine
        chosen = engine.device if engine is not None and engine.computes(tokens) else None
        if chosen != self.engines[row]:
            self.rewind(0, row=row)
            self.engines[row] = chosen

    def set_salt(self, salt: str | None, *, row: int = 0) -> None:
        """Say whose text a row gets; a row whose salt changes becomes empty."""
        if salt != self.salts[row]:
            self.rewind(0, row=row)
            self.salts[row] = salt

    def origin(self, row: int) -> Origin:
        """Return the origin of a row's keys and values."""
        return Origin(self.adapters[row], self.engines[row], self.salts[row])

    def is_alike(self, row: int, other: int) -> bool:
        """Return whether equal tokens have equal keys and values in two rows: they have the same origin and the same source."""
        sources = self.runner.sources.rows
        return self.origin(row) == self.origin(other) and sources[row] is sources[other]

    def reset(self) -> None:
        """Make an empty cache."""
        sizes = {"rows": self.rows, "capacity": self.capacity, "context_length": self.geometry.context_length}
        with model_errors("allocated its cache"):
            self.cache = make_cache(self.graph, **sizes)  # type: ignore[arg-type]
        self.token_ids[:] = [[] for _ in range(self.rows)]
        self.exact_length = [0] * self.rows
        """Per row, how many of them, from the first, are as any prompt has them: see `Capabilities.is_batch_invariant_run`."""
        self.uses_long_rope = [False] * self.rows
        """Per row, whether its keys were rotated as for a text beyond `rope_switch_length`."""
        self.is_inconsistent = False
        """Whether an interrupt of the process left a run half committed, so that the content of the cache is not known."""

    @property
    def last_extra_outputs(self) -> list[npt.NDArray[Any]]:
        """The extra outputs of the last run, in their order."""
        return self.runner.last_extra_outputs

    def most_at_once(self, row: int, every_position: bool) -> int | None:
        """The most tokens of a run, by the graph's limits and the room that windows have; None: any number."""
        can = self.capabilities
        over_past = bool(self.token_ids[row]) and not can.appends
        is_single = can.takes_single_tokens or over_past or (every_position and can.gives_last_only)
        limits = (1 if is_single else can.most_tokens, self.cache.windows.room(len(self.token_ids[row])))
        return min((limit for limit in limits if limit is not None), default=None)

    def picture_boundary(self, token_ids: Sequence[int], end: int) -> int:
        """Where a part of a prompt has to end that should end at `end`; see `ImageRows.picture_boundary`."""
        return end if self.images is None else self.images.picture_boundary(token_ids, end)

    def feed(
        self, token_ids: Sequence[int], *, row: int = 0, every_position: bool = False, scope: CancelScope = UNCANCELLED
    ) -> Logits:
        """Append `token_ids` to a row; returns logits [1, vocabulary] of the last; [tokens, vocabulary] if `every_position`.

        Raises `PromptError` for ids outside the vocabulary or beyond the context, `ModelError` if the run fails, and
        `InterruptedRunError` if `scope` ends it. Then the cache is unchanged; but if the tokens take more than one run, the cache
        holds those of the runs before the failure.
        """
        ids = self.checked(token_ids)
        self.check_context(row, len(ids))
        if self.images is not None:
            self.images.check_whole(token_ids)
        most = self.most_at_once(row, every_position)
        if most is not None and len(ids) > most:
            each, start = list[Logits](), 0
            while start < len(ids):
                end = start + (self.most_at_once(row, every_position) or len(ids))
                each = each if every_position else []
                each.append(
                    self.feed(token_ids[start:end], row=row, every_position=every_position and end > start + 1, scope=scope)
                )
                start = end
            return np.concatenate(each)
        whole = ids
        if self.must_recompute(row, len(ids)):
            whole = np.concatenate([np.array(self.token_ids[row], dtype=np.int64), ids])
            self.rewind(0, row=row)
        positions = np.arange(len(whole) - len(ids), len(whole)) if every_position else self.runner.last_only
        with CommitGuard(self):
            only = range(row, row + 1)
            logits = self.runner.run(self.cache, whole[None], positions, only, advanced=[len(whole)], scope=scope)[0]
            self.mark_exact(row, len(whole))
            self.token_ids[row] += whole.tolist()
        self.uses_long_rope[row] = self.capabilities.uses_long_rope(len(self.token_ids[row]))
        return logits if len(positions) == len(logits) else cast("Logits", logits[positions])

    def verify(self, token_ids: Sequence[int], verifier: Verifier, *, row: int = 0, scope: CancelScope = UNCANCELLED) -> Logits:
        """Append tokens to a row that holds some already; returns logits [tokens, vocabulary] of all.

        Logits, keys and values equal those of a `feed` per token to the last bit. Raises as `feed` does.
        """
        ids = self.checked(token_ids)
        self.check_context(row, len(ids))
        if len(ids) == 1:
            return self.feed(token_ids, row=row, scope=scope)
        if (room := self.cache.windows.room(len(self.token_ids[row]))) is not None and len(ids) > room:
            parts = (self.verify(part, verifier, row=row, scope=scope) for part in (token_ids[:room], token_ids[room:]))
            return np.concatenate([*parts])
        with CommitGuard(self):
            places, rows, advanced = np.arange(len(ids)), range(row, row + 1), [len(ids)]
            found = self.runner.run(self.cache, ids[None], places, rows, advanced=advanced, scope=scope, verifier=verifier)
            self.token_ids[row] += ids.tolist()
        return cast("Logits", found[0])

    def mark_exact(self, row: int, new: int) -> None:
        """Count `new` tokens that are about to be appended as exact, if they are; after a second engine's they are not."""
        held, can, is_own = len(self.token_ids[row]), self.capabilities, self.engines[row] is None
        if is_own and self.exact_length[row] == held == can.aligned_to_pairs(held) and can.is_batch_invariant_run(new):
            self.exact_length[row] += new

    def reusable_length(self, row: int = 0) -> int:
        """How many tokens of a row, from the first, later prompts can reuse: all, or with `exact_history` those that are exact."""
        return self.exact_length[row] if self.exact_history else len(self.token_ids[row])

    def reset_if_inconsistent(self) -> None:
        """Empty the cache if its content is not known."""
        if self.is_inconsistent:
            self.reset()
            self.changes += 1

    def must_recompute(self, row: int, new: int) -> bool:
        """Return whether `new` more tokens bring a row across the rope switch, so that all its keys must be computed again."""
        held = len(self.token_ids[row])
        return held > 0 and self.capabilities.uses_long_rope(held + new) != self.uses_long_rope[row]

    def step(self, token_ids: Sequence[int], active: Sequence[bool], *, scope: CancelScope = UNCANCELLED) -> Logits:
        """Feed one token to each of the first rows at once; returns logits [rows, vocabulary].

        Rows that are not `active` do not advance: any id may be given for them, and their logits are undefined. Raises as `feed`.
        """
        if not 0 < len(token_ids) <= self.rows or len(active) != len(token_ids):
            found = f"{len(token_ids)} token ids and {len(active)} flags"
            raise PromptError(f"a step takes one token id and one flag for each of at most {self.rows} rows, found {found}")
        ids = self.checked(token_ids)
        advancing = [row for row, on in enumerate(active) if on]
        for row in advancing:
            self.check_context(row, 1)
        if len(ids) == len(advancing) == 1:
            return self.feed(token_ids, scope=scope)
        if not advancing or not self.can_batch_decode or any(self.must_recompute(row, 1) for row in advancing):
            logits = np.zeros((len(ids), self.geometry.vocab_size), dtype=np.float32)
            for row in advancing:
                logits[row] = self.feed([int(ids[row])], row=row, scope=scope)[0]
            return logits
        with CommitGuard(self):
            rows = self.runner.run(
                self.cache, ids[:, None], self.runner.last_only, range(len(ids)), advanced=[int(on) for on in active], scope=scope
            )
            for row in advancing:
                self.mark_exact(row, 1)
                self.token_ids[row].append(int(ids[row]))
        return rows[:, -1]

    def can_prefill_together(self, lengths: Sequence[int], most: int) -> bool:
        """Return whether to feed prompts of these lengths in one run: it computes at most `most` tokens, with little padding.

        A prompt of one token takes a separate run; see `Capabilities.is_batch_invariant_run`.
        """
        if not self.can_batch_prefill or min(lengths) < 2 or max(lengths) >= self.geometry.context_length:
            return False
        if self.prompt_engine is not None and self.prompt_engine.computes(max(lengths)):
            return False
        if (room := self.cache.windows.room(0)) is not None and max(lengths) >= room:
            return False
        computed = len(lengths) * max(lengths)
        return computed <= most and 2 * computed <= 3 * sum(lengths)

    def prefill_rows(self, prompts: Sequence[Sequence[int]], first: int, *, scope: CancelScope = UNCANCELLED) -> Logits:
        """Feed whole prompts to the empty rows from `first`, in one run; returns logits [rows, vocabulary] of their last tokens.

        Only for prompts that `can_prefill_together` accepts. Raises as `feed` does; then the rows stay empty.
        """
        last = np.array([len(prompt) - 1 for prompt in prompts])
        positions = np.unique(last)
        logits = self.feed_rows(prompts, first, positions, scope=scope)
        return logits[np.arange(len(prompts)), np.searchsorted(positions, last)]

    def feed_rows(
        self, prompts: Sequence[Sequence[int]], first: int, positions: npt.NDArray[np.int64], *, scope: CancelScope = UNCANCELLED
    ) -> Logits:
        """`prefill_rows` for other positions; returns logits [rows, positions, vocabulary], undefined after the end of a prompt."""
        rows, lengths = range(first, first + len(prompts)), [len(prompt) for prompt in prompts]
        ids = np.zeros((len(prompts), max(lengths) + max(lengths) % 2), np.int64)  # an even number, as tokens are computed in pairs
        for index, prompt in enumerate(prompts):
            assert not self.token_ids[first + index], "the rows are empty"
            self.check_context(first + index, len(prompt))
            ids[index, : len(prompt)] = self.checked(prompt)
        with CommitGuard(self):
            logits = self.runner.run(
                self.cache, ids, positions, rows, advanced=lengths, scope=scope, mask=mask_of(lengths, ids.shape[1])
            )
            for row, prompt in zip(rows, prompts, strict=True):
                self.mark([len(prompt)], row=row)
                if self.capabilities.is_batch_invariant:
                    self.mark_exact(row, len(prompt))
                self.token_ids[row] += prompt
        return logits

    def rewind(self, length: int, *, row: int = 0) -> None:
        """Remove all but the first `length` tokens of a row.

        Raises `PromptError` if the row holds fewer, or if it cannot return to that length; see `nearest`.
        """
        self.reset_if_inconsistent()
        held = len(self.token_ids[row])
        if not 0 <= length <= held:
            raise PromptError(f"cannot rewind to {length} tokens: the cache holds {held}")
        if length < held:
            if self.nearest(length, row=row) != length:
                what = "states" if self.capabilities.has_states else "windows"
                raise PromptError(f"cannot rewind to {length} tokens: this model's {what} cannot return there; rewind to 0")
            self.changes += 1
            self.cache.rewind(row, length)
            del self.token_ids[row][length:]
            self.exact_length[row] = min(self.exact_length[row], length)

    def nearest(self, length: int, *, row: int = 0) -> int:
        """The longest length that a row can be rewound to, at most `length`: any, but for states and windows.

        Windows return at least `backends.window.REACH` tokens back, and to the lengths that `mark` was told.
        """
        held, windows = len(self.token_ids[row]), self.cache.windows
        found = self.cache.states.nearest(row, windows.nearest(row, length, held), held)
        return found if windows.nearest(row, found, held) == found else 0

    def reserve(self, length: int, *, row: int = 0) -> None:
        """Allocate memory for a text of `length` tokens, so that the cache need not grow, and be copied, part by part."""
        self.reset_if_inconsistent()
        with model_errors("enlarged its cache"):
            self.cache.reserve(row, min(length, self.geometry.context_length))

    def fork(self, source: int, target: int) -> None:
        """Make row `target` hold a copy of row `source`."""
        self.reset_if_inconsistent()
        if source != target:
            self.changes += 1
            self.cache.copy_row(source, target)
            self.token_ids[target] = list(self.token_ids[source])
            self.exact_length[target] = self.exact_length[source]
            self.uses_long_rope[target] = self.uses_long_rope[source]
            self.adapters[target], self.engines[target], self.salts[target] = self.origin(source)
            self.runner.sources.rows[target] = self.runner.sources.rows[source]
            self.runner.adapter_mask[target] = self.runner.adapter_mask[source]

    def bytes_of(self, length: int) -> int:
        """Bytes of the keys, values and states of a row of `length` tokens."""
        return sum(count * layout.bytes_for(length) for layout, count in self.layouts.items())

    def snapshot(self, *, row: int = 0, most: int | None = None) -> Snapshot:
        """Copy what later prompts can reuse of a row, at most `most` tokens; see `reusable_length`."""
        self.reset_if_inconsistent()
        held, length = self.token_ids[row], self.reusable_length(row)
        length = length if most is None else min(length, most)
        states = {known: each for known, each in self.cache.states.take(row, len(held)).items() if known <= length}
        if self.capabilities.has_states:
            length = max(states, default=0)
        if (length := self.nearest(length, row=row)) not in states:
            states = {}
        arrays = self.cache.take(row, length)
        return Snapshot(
            tuple(held[:length]),
            arrays,
            states,
            self.uses_long_rope[row],
            self.origin(row),
            shortest=self.cache.windows.shortest(arrays, length),
            exact_length=min(self.exact_length[row], length),
            windows=self.cache.windows.take_copies(row, length),
        )

    def restore(self, snapshot: Snapshot, length: int, *, row: int = 0) -> None:
        """Make a row hold the first `length` tokens of a snapshot of this graph; `Snapshot.usable` returns the possible lengths."""
        assert snapshot.usable(length) == length, "the snapshot can be cut to this length"
        assert snapshot.origin == self.origin(row), "its keys are those that the row's prompt would have"
        self.check_context(row, length - len(self.token_ids[row]))
        self.rewind(0, row=row)
        if not length:  # which is always usable, and takes nothing
            return
        with model_errors("restored a cache"):
            self.cache.put(row, snapshot.cut(length, self.cache.tensors), length)
            self.cache.states.put(row, snapshot.states, length)
            self.cache.windows.put_copies(row, (each for each in snapshot.windows if each.last < length))
        self.token_ids[row], self.exact_length[row] = list(snapshot.token_ids[:length]), snapshot.exact_part(length)
        self.uses_long_rope[row] = snapshot.uses_long_rope
        self.changes += 1

    def reusable(self, prompt: Sequence[int], *, row: int = 0, most: int | None = None) -> int:
        """The number of a row's tokens that a prompt can reuse: they are its beginning (see `reusable_length`).

        `most`: limits the number; default: `Capabilities.most_reusable`, which leaves tokens to feed for the logits.
        """
        self.reset_if_inconsistent()
        held, most = self.token_ids[row], self.capabilities.most_reusable(len(prompt)) if most is None else most
        shared = self.capabilities.aligned_to_pairs(min(common_prefix(held, prompt), self.reusable_length(row), most))
        found = self.nearest(shared, row=row)
        if (
            self.exact_history
            and self.capabilities.has_states
            and not self.capabilities.takes_single_tokens
            and found == len(prompt) - 2
        ):  # else the part before the last token would have a single token
            found = self.nearest(min(shared, len(prompt) - 3), row=row)
        return found

    def keep(self, *, row: int = 0) -> None:
        """If the graph has states, allow later rewinds of the row to its present length."""
        self.cache.states.keep(row, len(self.token_ids[row]))

    @property
    def has_windows(self) -> bool:
        """Whether layers hold only the end of a text."""
        return self.cache.windows.window is not None

    def mark(self, lengths: Iterable[int], *, row: int = 0) -> None:
        """If the graph has windows, allow later rewinds of the row to these lengths, which it may not have yet."""
        self.cache.windows.mark(row, lengths)

    def check_context(self, row: int, new: int) -> None:
        """Raise `PromptError` if `new` more tokens of a row exceed the context."""
        self.reset_if_inconsistent()
        if self.encoder is not None and self.runner.sources.rows[row] is None:
            raise PromptError("an encoder-decoder needs a source before the first token; give it one: decoder.read_source(ids)")
        total, context = len(self.token_ids[row]) + new, self.geometry.context_length
        if total > context:
            raise PromptError(f"{total:,} tokens do not fit in the context of {context:,}; give a shorter text")

    def checked(self, token_ids: Sequence[int]) -> npt.NDArray[np.int64]:
        """Token ids as an array; raises `PromptError` if there are none, or for one outside the vocabulary."""
        ids = np.asarray(token_ids, dtype=np.int64)
        if ids.size == 0:
            raise PromptError("no token to feed; give at least one")
        least = 0 if self.images is None else LOWEST
        if min(token_ids) < least or max(token_ids) >= self.geometry.vocab_size:
            wrong = int(ids[(ids < least) | (ids >= self.geometry.vocab_size)][0])
            raise PromptError(f"token id {wrong} is outside the vocabulary; ids go from 0 to {self.geometry.vocab_size - 1}")
        return ids
