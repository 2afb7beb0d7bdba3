"""Of threads that wait, one leads; whoever it is, and whoever goes, the work of all is done, and by one thread at a time."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.errors import OptionError
from onnx_textgen.generation.turn_taking import TurnTaking
from support.examples import examples


class Wish:
    """Waits for so many parts of work."""

    def __init__(self, parts: int) -> None:
        self.left, self.changed, self.is_abandoned, self.error = parts, threading.Event(), False, None

    @property
    def is_ready(self) -> bool:
        return self.left <= 0 or self.error is not None


class Counter:
    """Does one part for every wish at a time."""

    def __init__(self, wishes: list[Wish], lock: threading.RLock) -> None:
        self.wishes, self.lock, self.inside, self.leaders = list(wishes), lock, threading.Lock(), []

    def advance(self, leader: Wish) -> None:
        assert self.inside.acquire(blocking=False), "two threads lead"
        self.leaders.append(leader)
        for wish in list(self.wishes):
            with self.lock:
                wish.left -= 1
                if wish.is_ready:
                    wish.changed.set()
        self.release_abandoned()
        self.inside.release()

    @property
    def holds_abandoned(self) -> bool:
        return any(wish.is_abandoned for wish in self.wishes)

    def release_abandoned(self) -> None:
        self.wishes = [wish for wish in self.wishes if not wish.is_abandoned]

    def abort(self, error: BaseException) -> None:
        for wish in self.wishes:
            wish.error = error
            wish.changed.set()
        self.wishes = []


def begin(parts: list[int]) -> tuple[TurnTaking, Counter, list[Wish]]:
    wishes, lock = [Wish(count) for count in parts], threading.RLock()
    work = Counter(wishes, lock)
    return TurnTaking(work, lock), work, wishes


@given(parts=st.lists(st.integers(1, 20), min_size=1, max_size=8))
@examples(30)
def test_every_thread_gets_what_it_waits_for_and_nothing_is_done_twice(parts: list[int]) -> None:
    turns, work, wishes = begin(parts)
    threads = [threading.Thread(target=turns.wait_for, args=(wish,), daemon=True) for wish in wishes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert all(wish.is_ready for wish in wishes)
    assert max(parts) <= len(work.leaders) <= sum(parts)
    assert turns.leader is None
    assert not turns.followers


def test_one_caller_leads_itself() -> None:
    turns, work, (wish,) = begin([3])
    turns.wait_for(wish)
    assert work.leaders == [wish] * 3


def test_what_is_left_is_released_by_who_leaves_where_nobody_leads() -> None:
    turns, work, wishes = begin([3, 5])
    turns.leave([wishes[1]])
    assert work.wishes == [wishes[0]]
    assert work.leaders == []


def test_an_interrupt_is_told_to_all_and_the_next_one_leads() -> None:
    turns, work, (interrupted, other) = begin([3, 5])
    advance, work.advance = work.advance, lambda leader: (_ for _ in ()).throw(KeyboardInterrupt())  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        turns.wait_for(interrupted)
    assert isinstance(other.error, KeyboardInterrupt)
    work.advance, late = advance, Wish(2)  # type: ignore[method-assign]
    work.wishes.append(late)
    turns.wait_for(late)
    assert work.leaders == [late] * 2


def test_a_thread_that_leads_cannot_wait_for_something_else() -> None:
    turns, work, (first, second) = begin([2, 2])

    def ask_again(_: Wish) -> None:
        with pytest.raises(OptionError, match="inside a run of the model"):
            turns.wait_for(second)
        first.left = 0

    work.advance = ask_again  # type: ignore[method-assign]
    turns.wait_for(first)
    assert first.is_ready
