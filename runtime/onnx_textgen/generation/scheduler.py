"""Continuous batching: the texts of all callers go on together, a step of the graph for all at a time.

A request gets a row when one is free, and gives it up when its text ends; the texts of the others do not change by it. Streams
whose callers are busy elsewhere are decoded ahead of them only so far, unless a request waits for their rows. Which thread calls
this is not known here.
"""

from __future__ import annotations

import collections
import functools
import threading
import time
from collections.abc import Callable, Iterator

from ..backends.onnxruntime_session import LOG
from ..errors import BusyError, ModelError, OnnxTextgenError, first_line
from ..inference.decoder import Decoder
from ..inference.graph_runner import Logits
from ..inference.prefill import Progress, prefill_in_parts
from ..inference.prefix_cache import SHORTEST, PrefixStore
from ..kv_cache.memory_plan import fits, plan
from ..text.prefixes import common_prefix
from .delivery import Delivery
from .request import Request
from .steps import forget_guesses, go_on, take_verified

MOST_WAITING = 1024
"""Requests that may wait; more are refused."""
FARTHEST_AHEAD = 64
"""Chunks that a stream has for its caller before it is no longer decoded."""
SHORT_PART = 64
"""Tokens of a prompt at a time while other texts wait for their next token."""


class Scheduler:
    """The requests of one model: those that wait, and those that have a row of the decoder."""

    def __init__(self, new_decoder: Callable[[int], Decoder], store: PrefixStore, *, rows: int, lock: threading.RLock) -> None:
        """`new_decoder` makes one of so many rows. `lock` is held where what other threads look at changes."""
        self.new_decoder, self.store, self.most_rows, self.lock = new_decoder, store, rows, lock
        self.delivery = Delivery(lock)
        self.decoder: Decoder | None = None
        self.rows: list[Request] = []
        """The requests at work, each in the decoder's row of its place."""
        self.queue: collections.deque[Request] = collections.deque()

    def submit(self, request: Request) -> None:
        """Let a request wait for a row; raises `BusyError` where too many do."""
        with self.lock:
            if sum(not waiting.is_abandoned for waiting in list(self.queue)) >= MOST_WAITING:
                raise BusyError(f"{MOST_WAITING:,} requests are waiting already; try again later")
            self.queue.append(request)

    def advance(self, leader: Request) -> None:
        """One step for all, unless the leader's request is not here any more."""
        if leader in self.rows or leader in self.queue:
            self.step()
        else:
            self.delivery.set_error(leader, ModelError("the request was lost when another call was interrupted; ask again"))

    @property
    def holds_abandoned(self) -> bool:
        """Whether a request is at work or waits whose caller is gone."""
        return any(request.is_abandoned for request in (*self.rows, *self.queue))

    def release_abandoned(self) -> None:
        """Release what is held for callers that are gone."""
        self.reap_finished()

    def step(self) -> None:
        """A part of the oldest prompt that is not fed yet, a step of all texts that are under way, and their next tokens.

        The tokens come last, so that callers have them before the next step and not after it.
        """
        self.reap_finished()
        self.admit()
        if feeding := self.feeding:
            if len(begun := self.begin_together(feeding)) > 1:
                self.feed_prompts(begun)
            else:
                self.feed_part(feeding[0])
        if going := [request for request in self.rows if request.continuation.unfed and not self.rests(request)]:
            self.decode(going)
        for request in self.rows:
            if request.logits is not None and not request.is_done:
                with self.delivery.errors_to(request):
                    self.choose(request)
        self.reap_finished()

    def rests(self, request: Request) -> bool:
        """Whether a text has no step to make now: it is over, or far enough ahead of its caller while nobody waits for its row."""
        return request.is_done or (request.streams and len(request.chunks) >= FARTHEST_AHEAD and not self.queue)

    def admit(self) -> None:
        """Give free rows to those who wait, one prompt at a time, or several that are fed together."""
        while self.queue and len(self.rows) < self.most_rows:
            with self.lock:
                request = self.next_waiting()
                if request is None or not self.can_be_fed_with(request, self.feeding) or not self.has_memory_for(request):
                    return
                self.queue.remove(request)
                self.rows.append(request)
            row = len(self.rows) - 1
            continuation = request.continuation
            with self.delivery.errors_to(request):
                self.decoder = decoder = self.decoder or self.new_decoder(self.most_rows)
                request.work.enter_context(request.watch.active())
                past = request.context.take() if request.context is not None else None
                self.store.prepare_row(decoder, continuation.prompt_ids, row, past=past)
                continuation.reused_tokens = decoder.reusable(continuation.prompt_ids, row=row)
                request.parts = self.parts(request)

    def next_waiting(self) -> Request | None:
        """The first in the queue of those whose callers have the fewest rows: who wants many texts does not hold up the others."""
        rows = collections.Counter(id(request.caller) for request in self.rows)
        return min(self.queue, key=lambda waiting: rows[id(waiting.caller)], default=None)

    @property
    def feeding(self) -> list[Request]:
        """Those whose prompts are not fed to their end."""
        return [request for request in self.rows if request.parts is not None]

    @property
    def part_size(self) -> int:
        """Tokens of prompts at a time: fewer while texts wait for their next token."""
        assert self.decoder is not None, "admit made it"
        if len(self.feeding) == len(self.rows):
            return self.decoder.part_size
        return self.decoder.capabilities.short_part_size(SHORT_PART)

    def can_be_fed_with(self, request: Request, feeding: list[Request]) -> bool:
        """Whether a prompt can go along with those that are being fed; one that begins as they do waits and goes on from them."""
        if not feeding:
            return True
        prompts = [each.continuation.prompt_ids for each in (*feeding, request)]
        if self.decoder is None or any(common_prefix(prompts[-1], prompt) >= SHORTEST for prompt in prompts[:-1]):
            return False
        return self.decoder.can_prefill_together([len(prompt) for prompt in prompts], self.part_size)

    def has_memory_for(self, request: Request) -> bool:
        """Whether a text fits beside those at work: buffers may give each as much room as the longest needs."""
        if self.decoder is None:
            return True  # alone it does: who asked for it has looked
        count, tensors = len(self.rows), self.decoder.cache.tensors
        longest = max(each.continuation.most_tokens for each in (*self.rows, request))
        held = sum(self.decoder.bytes_of(length) for length in self.decoder.cache.lengths[:count])
        return fits(plan(tensors, longest, count + 1), held)

    def begin_together(self, feeding: list[Request]) -> list[Request]:
        """Of prompts that are being fed, those at the beginning that lie side by side, have not begun, and fit in a run."""
        assert self.decoder is not None, "admit made it"
        first, found = self.rows.index(feeding[0]), list[Request]()
        for row, request in enumerate(self.rows[first:], first):
            lengths = [len(each.continuation.prompt_ids) for each in (*found, request)]
            has_begun = request.parts is None or self.decoder.token_ids[row]
            if has_begun or not self.decoder.can_prefill_together(lengths, self.part_size):
                break
            found.append(request)
        return found

    def parts(self, request: Request) -> Iterator[Logits | None]:
        """Feed a prompt part by part; the last one gives the logits of its last token."""
        assert self.decoder is not None, "admit made it"
        decoder, prompt = self.decoder, request.continuation.prompt_ids
        return prefill_in_parts(
            decoder,
            prompt,
            row=lambda: self.rows.index(request),
            size=lambda: self.part_size,
            watch=request.watch,
            on_progress=functools.partial(self.delivery.emit_progress, request) if request.on_progress is not None else None,
        )

    def feed_part(self, request: Request) -> None:
        """One part of a prompt, ended within the run where its caller cancels."""
        assert self.decoder is not None and request.parts is not None, "admit made them"
        start = time.perf_counter()
        with self.delivery.errors_to(request):
            logits = next(request.parts)
            if logits is not None:
                request.parts, request.logits = None, logits
        request.continuation.prefill_seconds += time.perf_counter() - start

    def feed_prompts(self, requests: list[Request]) -> None:
        """Several whole prompts in one run; where it fails, it fails for all of them."""
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

    def decode(self, going: list[Request]) -> None:
        """Feed each text's new tokens."""
        assert self.decoder is not None, "admit made it"
        decoder = self.decoder
        for request in list(going):
            logits = take_verified(decoder, request.continuation, self.rows.index(request))
            if logits is not None:
                request.logits = logits
                going.remove(request)
        together = [request for request in going if self.takes_one(request)]
        if len(together) == 1 or not decoder.can_batch_decode:
            together = []  # each alone, so that its caller can end the run and an error is its own
        for request in going:
            if request not in together:
                with self.delivery.errors_to(request):
                    request.logits = go_on(decoder, request.continuation, request.watch, row=self.rows.index(request))
        if together:
            self.feed_together(together)

    def choose(self, request: Request) -> None:
        """The next token of a text, and those that a rule leaves no choice about."""
        continuation = request.continuation
        assert request.logits is not None, "it is running"
        logits, request.logits = request.logits, None
        self.delivery.emit(request, continuation.accept(continuation.choose(logits), logits))
        while continuation.finish_reason is None and continuation.is_forced:
            self.delivery.emit(request, continuation.accept(continuation.forced.popleft()))

    def takes_one(self, request: Request) -> bool:
        """Whether a text goes on with a single token that its context has room for."""
        continuation = request.continuation
        assert self.decoder is not None, "admit made it"
        row = self.rows.index(request)
        held = len(self.decoder.token_ids[row])
        fits = held < continuation.limits.context_length and not self.decoder.must_recompute(row, 1)
        return len(continuation.unfed) == 1 and fits

    def feed_together(self, requests: list[Request]) -> None:
        """One step for several texts; one that fails fails for all of them, and leaves their rows as they were."""
        assert self.decoder is not None, "admit made it"
        places = {self.rows.index(request): request for request in requests}
        count = max(places) + 1
        ids = [places[row].continuation.unfed[0] if row in places else 0 for row in range(count)]
        try:
            logits = self.decoder.step(ids, [row in places for row in range(count)])
        except OnnxTextgenError as error:
            for request in requests:
                self.delivery.set_error(request, error)
            return
        for row, request in places.items():
            request.continuation.take_unfed()
            request.logits = logits[row]

    def reap_finished(self) -> None:
        """Let go of requests that are over, or that nobody waits for any more; the last row moves into the gap."""
        for request in list(self.rows):
            if not request.is_done and (reason := request.watch.reason):
                self.delivery.finish_early(request, reason)
        with self.lock:
            waiting = [request for request in self.queue if request.is_abandoned or request.watch.reason]
            for request in waiting:
                self.queue.remove(request)
        for request in waiting:
            if reason := request.watch.reason:
                self.delivery.finish_early(request, reason)
        for request in [request for request in self.rows if request.is_done or request.is_abandoned]:
            self.release_row(self.rows.index(request))

    def release_row(self, row: int) -> None:
        """Keep what a row holds for later prompts, its session's or anyone's, and close the gap."""
        self.rows[row].work.close()
        last = len(self.rows) - 1
        if self.decoder is None:  # it could not be made
            self.rows.pop(row)
            return
        request = self.rows[row]
        forget_guesses(self.decoder, request.continuation, row)
        request.continuation.close()
        try:
            if request.context is None:
                self.store.keep(self.decoder, row=row)
            else:
                request.context.snapshot = self.decoder.snapshot(row=row)
        except Exception as error:  # noqa: BLE001 - no memory for a copy, say: the text is there, later ones are computed anew
            LOG.warning("what a prompt left was not kept: %s", first_line(error))
        if row != last:
            self.decoder.fork(last, row)
            self.rows[row] = self.rows[last]
        self.rows.pop()
        if self.rows:
            self.decoder.rewind(0, row=last)
        else:
            self.decoder = None  # and with it the memory of as many rows as there were

    def abort(self, error: BaseException) -> None:
        """Forget the decoder and let the callers of all its rows know."""
        why = f"another call was interrupted ({type(error).__name__}) in the middle of a common run; ask again"
        for request in self.rows:
            request.work.close()
            self.delivery.set_error(request, ModelError(why))
        self.rows, self.decoder = [], None
