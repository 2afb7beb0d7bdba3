"""Token ids in, logits out: one open graph over one cache.

`feed` takes a prompt, a part of one, or one token; `step` takes one token for every row at once. Which inputs the graph wants
is read off the graph. Choosing tokens is left to `sampling`, text to `text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..backends.protocol import Graph, Run, mask_of
from ..backends.signature import LOGITS
from ..cancellation import NOBODY, Watch
from ..errors import ModelError, OnnxTextgenError, PromptError, first_line
from ..kv_cache.factory import SharedCache, make_cache
from ..kv_cache.snapshot import Snapshot
from ..package.manifest import Geometry
from ..text.prefixes import common_prefix
from .capabilities import check_graph, check_rows

if TYPE_CHECKING:
    from ..speculation.verification import Verifier

SHORT_CHUNK = 16
"""Tokens of a prompt at a time where each takes a run of its own."""

Logits = npt.NDArray[np.float32]
MOST_LOGITS = 2**25
"""Numbers of logits at a time, where a graph gives those of every token: 128 MiB."""


class model_errors:  # noqa: N801 - a context, and a class rather than a generator because every step of the model is in one
    """Turn whatever an engine and NumPy raise, out of memory included, into `ModelError`."""

    __slots__ = ("doing",)

    def __init__(self, doing: str) -> None:
        self.doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, OnnxTextgenError):
            raise ModelError(f"the model failed while it {self.doing}: {first_line(error)}") from error


class Decoder:
    """A graph at work on `rows` sequences of its own.

    What it gives are logits; with another `output` it is that one, of the width it has there, wherever logits are spoken of.
    Outputs `beside` it are kept from run to run.
    """

    def __init__(
        self,
        session: Graph,
        geometry: Geometry,
        *,
        rows: int = 1,
        capacity: int | None = None,
        output: str = LOGITS,
        beside: Sequence[str] = (),
    ) -> None:
        check_graph(session, geometry)
        check_rows(session, output)
        self.session, self.geometry, self.rows = session, geometry, rows
        self.output = session.name_of(output)
        width = session.outputs[self.output][0][-1]
        unnamed = geometry.vocab_size if output == LOGITS else geometry.hidden_size
        self.width = width if isinstance(width, int) else unnamed
        self.beside = tuple(beside)
        self.seen_beside: list[npt.NDArray[Any]] = []
        """What the last run gave as these outputs, in their order."""
        self.capacity = capacity
        self.is_torn = False
        """Whether an interrupt of the process left a run half taken over, so that what the cache holds is not known."""
        with model_errors("made its cache"):
            self.cache = make_cache(session, rows=rows, capacity=capacity, context_length=geometry.context_length)
        self.token_ids: list[list[int]] = [[] for _ in range(rows)]
        """The ids whose keys and values the cache holds, per row."""
        self.prefilled = [0] * rows
        """How many of them, from the beginning, were fed as a prompt is: see `feeds_as_prompt`."""
        self.changes = 0
        """How often the cache was fed or rewound; who shares a decoder sees by it that someone else did."""
        self.last_only = np.array([-1], dtype=np.int64)
        self.last_only.flags.writeable = False
        self.rotary_switch = session.rotary_switch
        self.is_beyond = [False] * rows
        """Per row, whether its keys were made for a text beyond the switch."""
        self.roles = session.roles
        batch, tokens = self.roles["input_ids"].shape
        self.one_by_one = tokens == 1
        """Whether the graph takes one token at a time, as recurrent models do."""
        self.has_states = bool(self.cache.states.tensors)
        self.last_row_only = session.outputs[self.output][0][1] == 1
        """Whether the graph gives the last token's logits, and no others."""
        self.takes_several_over_past = "use_cache_branch" not in self.roles
        """A graph of two branches made the one with a past from a single token, often without a mask among the new ones."""
        self.chunk = self.best_chunk()
        """Tokens that a caller should feed at a time."""
        has_mask = "attention_mask" in self.roles
        any_batch = not isinstance(batch, int)
        kinds = {one.kind for one in self.cache.tensors}
        pads = has_mask and ("growing" not in kinds or session.hints.pads_rows)
        self.steps_together = rows > 1 and any_batch and (pads or kinds == {"state"})
        """Whether one run can take a token of every row: keys and values of unequal number need a mask."""
        chooses = "logits_positions" in self.roles and not isinstance(tokens, int)
        in_place = kinds == {"shared"} and has_mask and self.rotary_switch is None
        self.begins_together = rows > 1 and any_batch and chooses and in_place
        """Whether one run can take the whole prompts of several rows, short ones padded."""

    def best_chunk(self) -> int:
        """As many tokens at a time as the graph takes over a past, and as have logits of a size that memory has room for."""
        if self.one_by_one:
            return SHORT_CHUNK
        if not self.takes_several_over_past:
            return self.geometry.context_length
        chooses = self.last_row_only or not self.roles.keys().isdisjoint({"logits_positions", "num_logits_to_keep"})
        best = self.session.best_part
        return best if chooses else min(best, max(SHORT_CHUNK, MOST_LOGITS // self.geometry.vocab_size // 2 * 2))

    def short_chunk(self, size: int) -> int:
        """Tokens of a prompt at a time where other rows wait: `size`, unless interrupting the prompt costs more than it helps."""
        grows = any(tensor.kind == "growing" for tensor in self.cache.tensors)  # rows are put together and apart in between
        return self.chunk if grows or not self.takes_several_over_past else min(size, self.chunk)

    def must_feed_singly(self, row: int, every_position: bool) -> bool:
        """Whether several tokens take a run each: the graph's own limits, or logits that it gives of the last one only."""
        over_past = bool(self.token_ids[row]) and not self.takes_several_over_past
        return self.one_by_one or over_past or (every_position and self.last_row_only)

    def feed(self, token_ids: Sequence[int], *, row: int = 0, every_position: bool = False, watch: Watch = NOBODY) -> Logits:
        """Append `token_ids` to a row and return logits [1, vocabulary] of the last, or [tokens, vocabulary] of every one.

        Raises `PromptError` for ids outside the vocabulary and beyond the context, `ModelError` if the run fails, and
        `InterruptedRunError` if `watch` ends it; the cache then is as before, or holds the tokens before the failure where each
        is a run of its own.
        """
        ids = self.checked(token_ids)
        self.check_room(row, len(ids))
        if len(ids) > 1 and self.must_feed_singly(row, every_position):
            each: list[Logits] = []
            for token in ids.tolist():
                each = each if every_position else []
                each.append(self.feed([token], row=row, watch=watch))
            return np.concatenate(each)
        whole = ids
        if self.must_begin_anew(row, len(ids)):
            whole = np.concatenate([np.array(self.token_ids[row], dtype=np.int64), ids])
            self.rewind(0, row=row)
        positions = np.arange(len(whole) - len(ids), len(whole)) if every_position else self.last_only
        with TakingOver(self):
            logits: Logits = self.run(whole[None], positions, range(row, row + 1), advanced=[len(whole)], watch=watch)[0]
            self.count_prefilled(row, len(whole))
            self.token_ids[row] += whole.tolist()
        self.is_beyond[row] = self.rotary_switch is not None and len(self.token_ids[row]) > self.rotary_switch
        return logits if len(positions) == len(logits) else logits[positions]

    def verify(self, token_ids: Sequence[int], verifier: Verifier, *, row: int = 0, watch: Watch = NOBODY) -> Logits:
        """Append tokens to a row that holds some; returns logits [tokens, vocabulary] of every one.

        These, and the keys and values that stay, have the bits of a `feed` for each token. Raises as `feed` does.
        """
        ids = self.checked(token_ids)
        self.check_room(row, len(ids))
        if len(ids) == 1:
            return self.feed(token_ids, row=row, watch=watch)
        with TakingOver(self):
            places, only = np.arange(len(ids)), range(row, row + 1)
            logits: Logits = self.run(ids[None], places, only, advanced=[len(ids)], watch=watch, verifier=verifier)[0]
            self.token_ids[row] += ids.tolist()
        return logits

    def feeds_as_prompt(self, new: int) -> bool:
        """Whether tokens fed so many at once leave the keys and values that any prompt leaves that has them.

        Runs of two tokens or more that begin at an even place agree to the last bit, however a prompt is cut. Attention over a
        single token adds up in another order, and so do 4-bit products in blocks of 64 weights, which take tokens in pairs, for a
        token without a partner; where activations are rounded to 8 bits the difference grows to a hundredth. So a text is gone on
        from only as far as it was fed in such runs, and equals one computed from the beginning.
        """
        return new > 1 or self.one_by_one

    def count_prefilled(self, row: int, new: int) -> None:
        """Note that `new` tokens are about to be held."""
        held = len(self.token_ids[row])
        if self.prefilled[row] == held == self.paired(held) and self.feeds_as_prompt(new):
            self.prefilled[row] += new

    def paired(self, length: int) -> int:
        """How many of so many tokens have a partner: see `feeds_as_prompt`; all where states say which lengths there can be."""
        return length if self.one_by_one or self.has_states else length - length % 2

    def mend(self) -> None:
        """Forget everything where it is not known what the cache holds."""
        if self.is_torn:
            sizes = {"rows": self.rows, "capacity": self.capacity, "context_length": self.geometry.context_length}
            with model_errors("made its cache"):
                self.cache = make_cache(self.session, **sizes)  # type: ignore[arg-type]
            self.token_ids, self.prefilled = [[] for _ in range(self.rows)], [0] * self.rows
            self.is_beyond, self.is_torn = [False] * self.rows, False
            self.changes += 1

    def must_begin_anew(self, row: int, new: int) -> bool:
        """Whether `new` more tokens bring a row to the other side of the rotary switch, where none of its keys is right."""
        held = len(self.token_ids[row])
        return self.rotary_switch is not None and held > 0 and (held + new > self.rotary_switch) != self.is_beyond[row]

    def step(self, token_ids: Sequence[int], active: Sequence[bool], *, watch: Watch = NOBODY) -> Logits:
        """One token for each of the first rows at once: logits [rows, vocabulary]; rows that are not `active` do not advance.

        Their logits mean nothing, and any id may stand in their place. Raises as `feed` does.
        """
        if not 0 < len(token_ids) <= self.rows or len(active) != len(token_ids):
            found = f"{len(token_ids)} token ids and {len(active)} flags"
            raise PromptError(f"a step takes one token id and one flag for each of at most {self.rows} rows, found {found}")
        ids = self.checked(token_ids)
        going = [row for row, on in enumerate(active) if on]
        for row in going:
            self.check_room(row, 1)
        if len(ids) == len(going) == 1:
            return self.feed(token_ids, watch=watch)
        if not going or not self.steps_together or any(self.must_begin_anew(row, 1) for row in going):
            logits = np.zeros((len(ids), self.geometry.vocab_size), dtype=np.float32)
            for row in going:
                logits[row] = self.feed([int(ids[row])], row=row, watch=watch)[0]
            return logits
        with TakingOver(self):
            rows = self.run(ids[:, None], self.last_only, range(len(ids)), advanced=[int(on) for on in active], watch=watch)
            for row in going:
                self.count_prefilled(row, 1)
                self.token_ids[row].append(int(ids[row]))
        return rows[:, -1]

    def takes_prompts(self, lengths: Sequence[int], most: int) -> bool:
        """Whether prompts of these lengths should be fed in one run that computes `most` tokens: few of them would be padding.

        A single token is left to a run of its own; see `feeds_as_prompt`.
        """
        if not self.begins_together or min(lengths) < 2 or max(lengths) >= self.geometry.context_length:
            return False
        computed = len(lengths) * max(lengths)
        return computed <= most and 2 * computed <= 3 * sum(lengths)

    def begin_rows(self, prompts: Sequence[Sequence[int]], first: int) -> Logits:
        """Feed whole prompts to empty rows from `first` on, in one run; returns logits [rows, vocabulary] of their last tokens.

        `takes_prompts` says whether it can be. Raises as `feed` does, and leaves the rows empty then.
        """
        rows, lengths = range(first, first + len(prompts)), [len(prompt) for prompt in prompts]
        ids = np.zeros((len(prompts), max(lengths) + max(lengths) % 2), np.int64)  # tokens keep their partners
        for index, prompt in enumerate(prompts):
            assert not self.token_ids[first + index], "the rows are empty"
            self.check_room(first + index, len(prompt))
            ids[index, : len(prompt)] = self.checked(prompt)
        last = np.array(lengths) - 1
        positions = np.unique(last)
        with TakingOver(self):
            logits = self.run(ids, positions, rows, advanced=lengths, watch=NOBODY, mask=mask_of(lengths, ids.shape[1]))
            for row, prompt in zip(rows, prompts, strict=True):
                self.count_prefilled(row, len(prompt))
                self.token_ids[row] += prompt
        return logits[np.arange(len(rows)), np.searchsorted(positions, last)]

    def rewind(self, length: int, *, row: int = 0) -> None:
        """Forget all but the first `length` tokens of a row.

        Raises `PromptError` beyond what the row holds, and where the graph's states cannot go back there; `reusable` tells.
        """
        self.mend()
        held = len(self.token_ids[row])
        if not 0 <= length <= held:
            raise PromptError(f"cannot rewind to {length} tokens: the cache holds {held}")
        if length < held:
            if self.cache.states.nearest(row, length, held) != length:
                raise PromptError(f"cannot rewind to {length} tokens: this model's states cannot go back there; rewind to 0")
            self.changes += 1
            self.cache.rewind(row, length)
            del self.token_ids[row][length:]
            self.prefilled[row] = min(self.prefilled[row], length)

    def reserve(self, length: int, *, row: int = 0) -> None:
        """Make room for a text of that length at once, so that its cache need not grow, and be copied, part by part."""
        self.mend()
        with model_errors("made room"):
            self.cache.reserve(row, min(length, self.geometry.context_length))

    def fork(self, source: int, target: int) -> None:
        """Make a row hold the tokens of another one, and go on from there by itself."""
        self.mend()
        if source != target:
            self.changes += 1
            self.cache.copy_row(source, target)
            self.token_ids[target] = list(self.token_ids[source])
            self.prefilled[target] = self.prefilled[source]
            self.is_beyond[target] = self.is_beyond[source]

    def bytes_of(self, length: int) -> int:
        """What a row of `length` tokens takes: keys, values and states."""
        return sum(tensor.bytes_for(length) for tensor in self.cache.tensors)

    def snapshot(self, *, row: int = 0) -> Snapshot:
        """What a row holds of a prompt, as arrays of its own; what was generated behind it is left out."""
        self.mend()
        held, length = self.token_ids[row], self.prefilled[row]
        states = {known: each for known, each in self.cache.states.take(row, len(held)).items() if known <= length}
        if self.has_states:
            length = max(states, default=0)
        return Snapshot(tuple(held[:length]), self.cache.take(row, length), states, self.is_beyond[row])

    def restore(self, snapshot: Snapshot, length: int, *, row: int = 0) -> None:
        """Make a row hold the first `length` tokens of a snapshot of this graph; `Snapshot.usable` says which lengths can be."""
        assert snapshot.usable(length) == length, "a length that the snapshot can be cut to"
        self.check_room(row, length - len(self.token_ids[row]))
        self.rewind(0, row=row)
        with model_errors("took up a cache"):
            self.cache.put(row, snapshot.tensors, length)
            if length:
                self.cache.states.put(row, snapshot.states.get(length, {}))
        self.token_ids[row], self.prefilled[row] = list(snapshot.token_ids[:length]), length
        self.is_beyond[row] = snapshot.is_beyond
        self.changes += 1

    def reusable(self, prompt: Sequence[int], *, row: int = 0, most: int | None = None) -> int:
        """How many of the tokens that a row holds a prompt can go on from: they are its beginning, and were fed as a prompt's.

        `most`: see `most_reusable`, unless no logits of these tokens are wanted.
        """
        self.mend()
        held, most = self.token_ids[row], self.most_reusable(len(prompt)) if most is None else most
        shared = self.paired(min(common_prefix(held, prompt), self.prefilled[row], most))
        found = self.cache.states.nearest(row, shared, len(held))
        if self.has_states and not self.one_by_one and found == len(prompt) - 2:  # it would leave a part of a single token
            found = self.cache.states.nearest(row, min(shared, len(prompt) - 3), len(held))
        return found

    def most_reusable(self, length: int) -> int:
        """How much of a prompt of so many tokens need not be fed: the last token's logits are wanted, of a run as of any prompt."""
        if not self.takes_several_over_past:
            return 0
        return max(0, length - (1 if self.one_by_one or self.has_states else 2))

    def keep(self, *, row: int = 0) -> None:
        """Let the row be rewound to the tokens it holds now, where the graph has states; the place kept before is forgotten."""
        self.cache.states.keep(row, len(self.token_ids[row]))

    def check_room(self, row: int, new: int) -> None:
        """Raise `PromptError` where a row has no room for `new` more tokens."""
        self.mend()
        total, context = len(self.token_ids[row]) + new, self.geometry.context_length
        if total > context:
            raise PromptError(f"{total:,} tokens do not fit in the context of {context:,}; give a shorter text")

    def checked(self, token_ids: Sequence[int]) -> npt.NDArray[np.int64]:
        """Token ids as an array, none empty and none outside the vocabulary."""
        ids = np.asarray(token_ids, dtype=np.int64)
        if ids.size == 0:
            raise PromptError("no token to feed; give at least one")
        if min(token_ids) < 0 or max(token_ids) >= self.geometry.vocab_size:
            wrong = int(ids[(ids < 0) | (ids >= self.geometry.vocab_size)][0])
            raise PromptError(f"token id {wrong} is outside the vocabulary; ids go from 0 to {self.geometry.vocab_size - 1}")
        return ids

    def run(
        self,
        ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        rows: range,
        *,
        advanced: Sequence[int],
        watch: Watch,
        mask: npt.NDArray[np.int64] | None = None,
        verifier: Verifier | None = None,
    ) -> Logits:
        """Run the graph, or its verifier's, on ids [rows, new]; returns logits [rows, positions or new, vocabulary].

        `mask` [rows, past + new]: if not one of everything that is held and new.
        """
        new = ids.shape[1]
        with model_errors("ran"):
            if verifier is None:
                run = self.cache.begin(rows, new, advanced)
            else:
                assert isinstance(self.cache, SharedCache), "no other cache has a verifier"
                run = verifier.begin(self.cache, rows.start, new)
            mask = self.cache.mask(rows, new) if mask is None else mask
            self.give(run, "input_ids", ids)
            self.give(run, "attention_mask", mask)
            if "position_ids" in self.roles:
                self.give(run, "position_ids", (mask.cumsum(1) - 1)[:, -new:].clip(min=0))
            self.give(run, "logits_positions", positions)
            if "num_logits_to_keep" in self.roles:
                self.give(run, "num_logits_to_keep", np.array(1 if positions is self.last_only else 0))  # 0: all
            if "use_cache_branch" in self.roles:
                self.give(run, "use_cache_branch", np.array(mask.shape[1] > new))
            shape = len(ids), self.rows_of_logits(new, positions), self.width
            found, self.seen_beside = watch.run(lambda: run.compute(self.output, shape, self.beside), run.stop)
            logits: Logits = np.asarray(found, dtype=np.float32)
            self.cache.end(rows, advanced)
        self.changes += 1
        return logits

    def rows_of_logits(self, new: int, positions: npt.NDArray[np.int64]) -> int:
        """Of how many of `new` tokens the graph gives logits when it is asked for those at some positions."""
        if "logits_positions" in self.roles:
            return len(positions)
        keeps_last = "num_logits_to_keep" in self.roles and positions is self.last_only
        return 1 if self.last_row_only or keeps_last else new

    def give(self, run: Run, role: str, array: npt.NDArray[Any]) -> None:
        """Set the input of a role, in the graph's type and number of dimensions; nothing where the graph has no such."""
        if (taken := self.roles.get(role)) is not None:
            if array.ndim != len(taken.shape):
                array = array.reshape((1,) * len(taken.shape))
            run.give(taken.name, np.asarray(array, dtype=taken.dtype, order="C"))


class TakingOver:
    """Around a run and all that follows from it; an interrupt in the middle leaves the decoder torn, and `mend` empties it."""

    __slots__ = ("decoder",)

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def __enter__(self) -> None:
        self.decoder.is_torn = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, OnnxTextgenError):  # after such an error the cache is as before the run
            self.decoder.is_torn = False
