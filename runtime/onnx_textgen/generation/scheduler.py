"""Continuous batching: each step of the graph serves the texts of all callers.

A request gets a row when one is free, and releases it when its text ends; other texts do not change by it. A stream whose caller
does not take its chunks pauses after `MOST_CHUNKS_AHEAD`, unless a request waits for a row. `turn_taking` chooses the thread.
"""

from __future__ import annotations

import collections
import functools
import threading
import time
from collections.abc import Callable, Generator

from ..encoders.encoder import Encoded
from ..errors import LOG, BusyError, ModelError, OnnxTextgenError, first_line
from ..inference.decoder import Decoder
from ..inference.graph_runner import Logits
from ..inference.prefill import Progress, prefill_in_parts
from ..inference.prefix_cache import SHORTEST, PrefixStore
from ..kv_cache.memory_plan import fits, plan, source_bytes, whole_bytes
from ..text.prefixes import common_prefix
from .delivery import Delivery
from .request import Request
from .steps import accept_verified, feed_pending, roll_back_draft

MOST_WAITING = 1024
"""The most requests that may wait; more are refused."""
MOST_CHUNKS_AHEAD = 64
"""The most chunks of a stream that its caller has not taken, before the stream pauses."""


class Scheduler:
    """The requests of one model: those that wait, and those that have a row of the decoder."""

    def __init__(self, new_decoder: Callable[[int], Decoder], store: PrefixStore, *, rows: int, lock: threading.RLock) -> None:
        """`new_decoder` makes a decoder of the given number of rows. `lock`: held while state that other threads read changes."""
        self.new_decoder, self.store, self.most_rows, self.lock = new_decoder, store, rows, lock
        self.delivery = Delivery(lock)
        self.decoder: Decoder | None = None
        self.rows: list[Request] = []
        """The requests that have a row: their index is the row of the decoder."""
        self.queue: collections.deque[Request] = collections.deque()

    @property
    def sources(self) -> list[Encoded]:
        """What the encoder has read for those that have a row or wait for one."""
        with self.lock:
            held = [] if self.decoder is None else self.decoder.runner.sources.rows
            return [each for each in (*held, *(request.source for request in self.queue)) if each is not None]

    def check_waiting(self) -> None:
        """Raise `BusyError` if no more requests may wait."""
        with self.lock:
            if sum(not waiting.is_abandoned for waiting in list(self.queue)) >= MOST_WAITING:
                raise BusyError(f"{MOST_WAITING:,} requests are waiting already; try again later")

    def submit(self, request: Request) -> None:
        """Add a request to those that wait for a row; raises `BusyError` if too many do."""
        with self.lock:
            self.check_waiting()
            self.queue.append(request)

    def advance(self, leader: Request) -> None:
        """Do one step for all; if the leader's request was lost, give it an error instead."""
        if leader in self.rows or leader in self.queue:
            self.step()
        else:
            self.delivery.set_error(leader, ModelError("the request was lost when another call was interrupted; try again"))

    @property
    def holds_abandoned(self) -> bool:
        """Whether a request whose caller is gone has a row or waits for one."""
        return any(request.is_abandoned for request in (*self.rows, *self.queue))

    def release_abandoned(self) -> None:
        """Release the requests of callers that are gone."""
        self.release_finished()

    def step(self) -> None:
        """Feed a part of the oldest unfinished prompt, decode all texts that have begun, and choose their next tokens.

        The tokens are chosen last, so that callers have them before the next step, not after it.
        """
        self.release_finished()
        self.admit()
        if prefilling := self.prefilling:
            if len(together := self.prefill_batch(prefilling)) > 1:
                self.feed_prompts(together)
            else:
                self.feed_part(prefilling[0])
        if decoding := [each for each in self.rows if each.continuation.pending_ids and not self.is_paused(each)]:
            self.decode(decoding)
        for request in self.rows:
            if request.logits is not None and not request.is_done:
                with self.delivery.errors_to(request):
                    self.choose(request)
        self.delivery.hand_over()  # together, as what wakes other threads takes the interpreter from this one
        self.release_finished()

    def is_paused(self, request: Request) -> bool:
        """Return whether a text is not decoded now: it is done, or far enough ahead of its caller while nobody waits for a row."""
        return request.is_done or (request.streams and len(request.chunks) >= MOST_CHUNKS_AHEAD and not self.queue)

    def admit(self) -> None:
        """Give free rows to waiting requests: one prompt at a time, or several that are fed together."""
        while self.queue and len(self.rows) < self.most_rows:
            with self.lock:
                request = self.next_waiting()
                if request is None or not self.can_prefill_with(request, self.prefilling) or not self.has_memory_for(request):
                    return
                self.queue.remove(request)
                self.rows.append(request)
            row = len(self.rows) - 1
            continuation = request.continuation
            with self.delivery.errors_to(request):
                self.decoder = decoder = self.decoder or self.new_decoder(self.most_rows)
                request.work.enter_context(request.scope.active())
                decoder.set_adapter(continuation.config.adapter, row=row)
                decoder.set_salt(continuation.cache_salt, row=row)
                if request.source is not None:
                    decoder.set_source(request.source, row=row)
                    request.source = None  # the row has it
                past = request.context.take() if request.context is not None else None
                self.store.prepare_row(decoder, continuation.prompt_ids, row, past=past)
                continuation.reused_tokens = decoder.reusable(continuation.prompt_ids, row=row)
                request.parts = self.parts(request)

    def next_waiting(self) -> Request | None:
        """The first request of the callers with the fewest rows, so that a caller of many texts does not hold up the others."""
        rows = collections.Counter(id(request.caller) for request in self.rows)
        return min(self.queue, key=lambda waiting: rows[id(waiting.caller)], default=None)

    @property
    def prefilling(self) -> list[Request]:
        """The requests whose prompts are not fed completely."""
        return [request for request in self.rows if request.parts is not None]

    def part_size(self, decoder: Decoder) -> int:
        """Tokens of a prompt's part, fed to this decoder: fewer while texts wait for their next token."""
        has_waiting_texts = len(self.prefilling) < len(self.rows)
        return decoder.capabilities.short_part_size if has_waiting_texts else decoder.part_size

    def can_prefill_with(self, request: Request, prefilling: list[Request]) -> bool:
        """Return whether a prompt can be fed together with these; one that shares a beginning with them waits, to reuse it."""
        if not prefilling:
            return True
        prompts = [each.continuation.prompt_ids for each in (*prefilling, request)]
        alike = [each for each in prefilling if each.continuation.shares_cache_with(request.continuation)]
        if self.decoder is None or any(common_prefix(prompts[-1], each.continuation.prompt_ids) >= SHORTEST for each in alike):
            return False
        return self.decoder.can_prefill_together([len(prompt) for prompt in prompts], self.part_size(self.decoder))

    def has_memory_for(self, request: Request) -> bool:
        """Return whether a text fits in memory with those that have rows: each row may take the capacity of the longest."""
        if self.decoder is None:
            return True  # a single text does: its caller has checked that
        count, tensors, requests = len(self.rows), self.decoder.cache.tensors, (*self.rows, request)
        longest = max(each.continuation.most_tokens for each in requests)
        held = sum(self.decoder.bytes_of(length) for length in self.decoder.cache.lengths[:count])
        source = source_bytes(self.decoder.graph.encoder_inputs, max(len(each.continuation.source_ids) for each in requests))
        engine, prompt = self.decoder.prompt_engine, max(len(each.continuation.prompt_ids) for each in requests)
        second = 0 if engine is None or not engine.computes(prompt) else whole_bytes(tensors, prompt)
        wanted = plan(tensors, longest, count + 1, source_bytes=source, second_bytes=second)
        self.store.make_room(wanted, held)
        return fits(wanted, held)

    def prefill_batch(self, prefilling: list[Request]) -> list[Request]:
        """The first of these requests and those in the rows after it, as far as none has begun and their prompts fit in one run."""
        assert self.decoder is not None, "admit made it"
        first, found = self.rows.index(prefilling[0]), list[Request]()
        for row, request in enumerate(self.rows[first:], first):
            lengths = [len(each.continuation.prompt_ids) for each in (*found, request)]
            has_begun = request.parts is None or bool(self.decoder.token_ids[row])
            if has_begun or not self.decoder.can_prefill_together(lengths, self.part_size(self.decoder)):
                break
            found.append(request)
        return found

    def parts(self, request: Request) -> Generator[Logits | None, None, None]:
        """Feed a prompt part by part; after the last part, yield the logits of its last token."""
        assert self.decoder is not None, "admit made it"
        decoder, prompt = self.decoder, request.continuation.prompt_ids
        return prefill_in_parts(
            decoder,
            prompt,
            row=lambda: self.rows.index(request),
            size=self.part_size,
            scope=request.scope,
            on_progress=functools.partial(self.delivery.emit_progress, request) if request.on_progress is not None else None,
            end_ids=request.continuation.limits.eos_ids,
        )

    def feed_part(self, request: Request) -> None:
        """Feed one part of a prompt; if its caller cancels, the run ends."""
        assert self.decoder is not None and request.parts is not None, "admit made them"
        start = time.perf_counter()
        with self.delivery.errors_to(request):
            logits = next(request.parts)
            if logits is not None:
                request.parts, request.logits = None, logits
        request.continuation.prefill_seconds += time.perf_counter() - start

    def feed_prompts(self, requests: list[Request]) -> None:
        """Feed several whole prompts in one run; if it fails, it fails for all of them."""
        assert self.decoder is not None, "admit made it"
        start, prompts = time.perf_counter(), [request.continuation.prompt_ids for request in requests]
        try:
            logits = self.decoder.prefill_rows(prompts, self.rows.index(requests[0]))
        except OnnxTextgenError as error:
            for request in requests:
                self.delivery.set_error(request, error)
            return
        for request, prompt, each in zip(requests, prompts, logits, strict=True):
            request.parts, request.logits = None, each
            request.continuation.prefill_seconds += time.perf_counter() - start
            if request.on_progress is not None:
                self.delivery.emit_progress(request, Progress(len(prompt), len(prompt)))

    def decode(self, requests: list[Request]) -> None:
        """Feed each text's pending tokens."""
        assert self.decoder is not None, "admit made it"
        decoder = self.decoder
        for request in list(requests):
            logits = accept_verified(decoder, request.continuation, self.rows.index(request))
            if logits is not None:
                request.logits = logits
                requests.remove(request)
        together = [request for request in requests if self.feeds_one_token(request)]
        if len(together) == 1 or not decoder.can_batch_decode:
            together = []  # each alone, so that its caller can end the run, and an error concerns no other
        for request in requests:
            if request not in together:
                with self.delivery.errors_to(request):
                    request.logits = feed_pending(decoder, request.continuation, request.scope, row=self.rows.index(request))
        if together:
            self.feed_together(together)

    def choose(self, request: Request) -> None:
        """Choose the next token of a text, and append those that its constraint leaves no choice about."""
        continuation = request.continuation
        assert request.logits is not None, "its tokens were fed"
        logits, request.logits = request.logits, None
        self.delivery.emit(request, continuation.accept(continuation.choose(logits), logits))
        while continuation.finish_reason is None and continuation.is_forced:
            self.delivery.emit(request, continuation.accept(continuation.forced.popleft()))

    def feeds_one_token(self, request: Request) -> bool:
        """Return whether a text continues with a single token, which fits in its context."""
        continuation = request.continuation
        assert self.decoder is not None, "admit made it"
        row = self.rows.index(request)
        held = len(self.decoder.token_ids[row])
        fits = held < continuation.limits.context_length and not self.decoder.must_recompute(row, 1)
        return len(continuation.pending_ids) == 1 and fits

    def feed_together(self, requests: list[Request]) -> None:
        """Decode a step of several texts in one run; if it fails, it fails for all of them, and their rows are unchanged."""
        assert self.decoder is not None, "admit made it"
        request_of_row = {self.rows.index(request): request for request in requests}
        count = max(request_of_row) + 1
        ids = [request_of_row[row].continuation.pending_ids[0] if row in request_of_row else 0 for row in range(count)]
        try:
            logits = self.decoder.step(ids, [row in request_of_row for row in range(count)])
        except OnnxTextgenError as error:
            for request in requests:
                self.delivery.set_error(request, error)
            return
        for row, request in request_of_row.items():
            request.continuation.take_pending()
            request.logits = logits[row]

    def release_finished(self) -> None:
        """Release requests that are done, cancelled or abandoned; the last row moves into the gap."""
        for request in list(self.rows):
            if not request.is_done and (reason := request.scope.reason):
                self.delivery.finish_early(request, reason)
        with self.lock:
            waiting = [request for request in self.queue if request.is_abandoned or request.scope.reason]
            for request in waiting:
                self.queue.remove(request)
        for request in waiting:
            if reason := request.scope.reason:
                self.delivery.finish_early(request, reason)
        for request in [request for request in self.rows if request.is_done or request.is_abandoned]:
            self.release_row(self.rows.index(request))

    def release_row(self, row: int) -> None:
        """Release a row: keep its cache for later prompts, of its session or of all callers, and close the gap."""
        self.rows[row].work.close()
        last = len(self.rows) - 1
        if self.decoder is None:  # creating it failed
            self.rows.pop(row)
            return
        request = self.rows[row]
        prompt = len(request.continuation.prompt_ids)
        roll_back_draft(self.decoder, request.continuation, row)
        request.continuation.close()
        try:
            if request.parts is not None:
                request.parts.close()  # what was fed elsewhere comes to the row
            if request.context is not None:
                request.context.snapshot = self.decoder.snapshot(row=row)
                self.store.save(request.context.snapshot, self.decoder, prompt)
            elif not request.continuation.source_ids:  # prompts of an encoder-decoder are the ids that begin a text
                self.store.keep(self.decoder, prompt, row=row, whole=not request.continuation.config.has_several_texts)
        except Exception as error:  # noqa: BLE001 - such as no memory for a copy: the text is complete
            LOG.warning("the cache of a prompt was not kept for later ones: %s", first_line(error))
        if row != last:
            self.decoder.fork(last, row)
            self.rows[row] = self.rows[last]
        self.rows.pop()
        if self.rows:
            self.decoder.rewind(0, row=last)
        else:
            self.decoder = None  # which frees the memory of its rows

    def abort(self, error: BaseException) -> None:
        """Drop the decoder, and give an error to the callers of all its rows."""
        why = f"another call was interrupted ({type(error).__name__}) in the middle of a shared run; try again"
        for request in self.rows:
            request.work.close()
            self.delivery.set_error(request, ModelError(why))
        self.rows, self.decoder = [], None
