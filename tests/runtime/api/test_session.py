"""Sessions write what their token ids alone would make the model write, however they came about."""

import concurrent.futures
import itertools
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Cancellation, Model
from onnx_textgen.api.session import Session
from onnx_textgen.api.session_file import arrays_digest
from onnx_textgen.errors import OptionError, PackageError, PromptError, TemplateError
from support.cache_graphs import GRAPHS
from support.examples import examples

BEGIN = "Once upon a time, there was a little girl called Lily. She had a red ball and a big brown dog."
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.fixture(scope="module")
def forgetful() -> Model:
    return onnx_textgen.load(threads=1, device="cpu", prefix_cache=0, exact_history=True)


@pytest.fixture(scope="module")
def chatty(forgetful: Model) -> Model:
    return Model(forgetful.folder, forgetful.manifest, forgetful.graph, chat_template=TEMPLATE)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([" Then", " One day, the dog", ".", " He said"])),
        st.tuples(st.just("ids"), st.lists(st.integers(2, 4000), min_size=1, max_size=5)),
        st.tuples(st.just("generate"), st.integers(1, 12)),
        st.tuples(st.just("rewind"), st.floats(0.2, 1)),
        st.tuples(st.just("fork"), st.none()),
        st.tuples(st.just("save"), st.none()),
    ),
    max_size=8,
)


@given(steps=STEPS)
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_walk_equals_computing_from_the_beginning(forgetful: Model, tmp_path: Path, steps: list) -> None:
    session, ids = forgetful.session(), forgetful.encode(BEGIN)
    session.append(BEGIN)
    for seed, (step, value) in enumerate(steps):
        if step == "append":
            session.append(value)
            ids += forgetful.tokenizer.encode(value, add_special_tokens=False)
        elif step == "ids":
            session.append(value)
            ids += value
        elif step == "generate":
            found = session.generate(max_new_tokens=value, seed=seed)
            want = forgetful.generate(ids, max_new_tokens=value, seed=seed)
            assert (found.text, found.token_ids) == (want.text, want.token_ids)
            ids += want.token_ids
        elif step == "rewind":
            length = max(1, int(value * len(ids)))
            session.rewind(length)
            del ids[length:]
        elif step == "fork":
            other, session = session, session.fork()
            other.append(" This is another text.")
            other.generate(max_new_tokens=3, seed=1)
        else:
            session.save(tmp_path / "saved")
            session = forgetful.load_session(tmp_path / "saved")
        assert session.token_ids == tuple(ids)
        assert len(session) == len(ids)


@pytest.mark.parametrize("kind", GRAPHS)
def test_every_kind_of_cache_is_forked_and_saved(kind: str, tmp_path: Path) -> None:
    tiny = GRAPHS[kind]
    model = onnx_textgen.load(tiny.package(tmp_path), threads=1, device="cpu", prefix_cache=0)
    session = model.session()
    session.append([5, 9, 1, 0, 28, 3])
    session.generate(max_new_tokens=5, temperature=0)
    fork = session.fork()
    session.save(tmp_path / "saved")
    for other in (fork, model.load_session(tmp_path / "saved"), session):
        ids = [*other.token_ids, 7, 11]
        other.append([7, 11])
        assert list(other.generate(max_new_tokens=5, temperature=0).token_ids) == tiny.greedy(ids, 5)


def test_what_was_computed_is_not_computed_again(forgetful: Model, tmp_path: Path) -> None:
    session = forgetful.session()
    session.append(BEGIN)
    prompt = len(session)
    assert session.generate(max_new_tokens=10, seed=1).stats.reused_tokens == 0
    session.save(tmp_path / "saved")
    for other in (session.fork(), forgetful.load_session(tmp_path / "saved"), session):
        other.append(" Then they")
        assert other.generate(max_new_tokens=2, seed=1).stats.reused_tokens == prompt // 2 * 2  # up to an even place


def test_a_saved_session_goes_on_in_another_process(forgetful: Model, tmp_path: Path) -> None:
    session = forgetful.session()
    session.append(BEGIN)
    session.generate(max_new_tokens=8, seed=2)
    session.save(tmp_path / "saved")
    code = (
        "import onnx_textgen, sys; s = onnx_textgen.load(threads=1, device='cpu').load_session(sys.argv[1]); "
        "print(s.generate(max_new_tokens=12, seed=5).token_ids, s.token_ids[:3])"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "saved"], capture_output=True, text=True, check=True)
    want = session.generate(max_new_tokens=12, seed=5).token_ids
    assert done.stdout.strip() == f"{want} {session.token_ids[:3]}"
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_chat_is_the_text_of_its_template(chatty: Model, tmp_path: Path) -> None:
    session, messages = chatty.session(), []
    for turn, question in enumerate(["Hello", "Who are you?", "And the dog?"]):
        session.append({"role": "user", "content": question})
        messages.append({"role": "user", "content": question})
        if turn == 1:
            session.save(tmp_path / "chat")
            session = chatty.load_session(tmp_path / "chat").fork()
        found = session.generate(max_new_tokens=10, seed=turn)
        want = chatty.generate(chatty.encode_chat(messages), max_new_tokens=10, seed=turn)
        assert found.text == want.text
        messages.append({"role": "assistant", "content": want.text})
        assert session.messages == messages
    assert found.stats.reused_tokens > 10
    session.rewind(messages=2)
    session.append([{"role": "user", "content": "No."}])
    assert [message["content"] for message in session.messages[::2]] == ["Hello", "No."]
    assert session.generate(max_new_tokens=3, seed=0).text == chatty.generate(
        chatty.encode_chat(session.messages[:-1]), max_new_tokens=3, seed=0
    ).text  # fmt: skip


def test_a_stream_that_is_closed_or_cancelled_leaves_what_came(forgetful: Model) -> None:
    session = forgetful.session()
    session.append(BEGIN)
    ids = list(session.token_ids)
    stream = session.stream(max_new_tokens=20, seed=3)
    came = [i for _ in range(4) for i in next(stream).token_ids]
    stream.close()
    assert list(session.token_ids) == ids + came
    cancel = Cancellation()
    cancel.cancel()
    assert session.generate(max_new_tokens=5, cancel=cancel).finish_reason == "cancelled"
    assert list(session.token_ids) == ids + came
    assert (
        session.generate(max_new_tokens=5, seed=1).token_ids == forgetful.generate(ids + came, max_new_tokens=5, seed=1).token_ids
    )
    assert session.text.startswith(BEGIN)


def test_sessions_are_decoded_together_and_each_text_is_its_own(forgetful: Model) -> None:
    """Batched, where one thread per session would write them: a step of the graph serves both."""
    sessions, together = [forgetful.session() for _ in range(3)], list[int]()
    step = forgetful.generator.engine.scheduler.feed_together
    for session, begin in zip(sessions, (BEGIN, "The dog", BEGIN + " Then"), strict=True):
        session.append(begin)
    alone = [forgetful.generate(list(session.token_ids), max_new_tokens=12, seed=4) for session in sessions]

    def counted(requests: list) -> None:
        together.append(len(requests))
        step(requests)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(forgetful.generator.engine.scheduler, "feed_together", counted)
        streams = [session.stream(max_new_tokens=12, seed=4) for session in sessions]
        found = ["".join(chunk.text for chunk in chunks if chunk) for chunks in zip(*itertools.zip_longest(*streams), strict=True)]
    assert found == [each.text for each in alone]
    assert max(together) == 3
    for session, each in zip(sessions, alone, strict=True):
        assert session.token_ids == each.prompt_ids + each.token_ids


def test_sessions_in_threads_write_what_they_write_alone(forgetful: Model) -> None:
    def three_turns(number: int) -> tuple[int, ...]:
        session = forgetful.session()
        for turn in range(3):
            session.append([5 + number, 9, 30 + turn, 11])
            session.generate(max_new_tokens=6 + number, seed=number, ignore_eos=True)
        return session.token_ids

    alone = [three_turns(number) for number in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(three_turns, range(4))) == alone


def test_a_stream_that_is_closed_early_leaves_only_what_it_gave_while_others_decode_on(forgetful: Model) -> None:
    first, second = forgetful.session(), forgetful.session()
    first.append(BEGIN)
    second.append("The dog")
    held, ids = first.stream(max_new_tokens=40, seed=3, ignore_eos=True), list(first.token_ids)
    given = [token_id for chunk in itertools.islice(held, 2) for token_id in chunk.token_ids]
    second.generate(max_new_tokens=20, seed=3, ignore_eos=True)  # steps the first one's row too, ahead of its caller
    held.close()
    assert list(first.token_ids) == [*ids, *given]
    assert (
        first.generate(max_new_tokens=8, seed=1).token_ids == forgetful.generate([*ids, *given], max_new_tokens=8, seed=1).token_ids
    )


def test_a_session_that_shifts_goes_on_with_what_it_kept(forgetful: Model) -> None:
    session = forgetful.session()
    session.append(list(range(2, 500)))
    assert len(session.generate(max_new_tokens=40, seed=1, context_limit="shift", ignore_eos=True).token_ids) == 40
    assert len(session) <= 512
    session.append([9])
    assert session.generate(max_new_tokens=2, seed=1).token_ids


def test_wrong_uses_are_told_in_one_line(forgetful: Model, chatty: Model) -> None:
    session, chat = forgetful.session(), chatty.session()
    with pytest.raises(PromptError, match="the session is empty; append a text"):
        session.generate()
    with pytest.raises(TemplateError, match="has no chat template"):
        session.append({"role": "user", "content": "Hello"})
    session.append("Once")
    with pytest.raises(OptionError, match="a session generates one text"):
        session.generate(num_beams=2)
    with pytest.raises(PromptError, match=r"tokens; this model takes 512 at most"):
        session.append([5] * 600)
    assert session.token_ids == tuple(forgetful.encode("Once"))
    for wrong in ({}, {"length": 9}, {"length": -1}, {"length": 1, "messages": 0}, {"messages": 1}):
        with pytest.raises(OptionError):
            session.rewind(**wrong)
    chat.append({"role": "user", "content": "Hello"})
    with pytest.raises(PromptError, match="this session is a chat; append messages"):
        chat.append("text")
    with pytest.raises(OptionError, match="a chat is rewound by whole messages"):
        chat.rewind(1)
    other = chatty.session()
    other.append("text")
    with pytest.raises(PromptError, match="plain text and takes no chat messages"):
        other.append({"role": "user", "content": "Hello"})


def test_files_that_are_no_session_of_this_model_are_refused_in_one_line(forgetful: Model, exact: Model, tmp_path: Path) -> None:
    session, path = forgetful.session(), tmp_path / "saved"
    session.append(BEGIN)
    session.generate(max_new_tokens=3)
    session.save(path)
    good = path.read_bytes()

    def refusal(model: Model = forgetful) -> str:
        with pytest.raises(PackageError) as caught:
            model.load_session(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "was saved with another model" in refusal(exact)
    for damaged in (b"", b"PK", good[: len(good) // 2], good[:-30]):
        path.write_bytes(damaged)
        assert "not a saved session, or is damaged" in refusal()
    path.unlink()
    assert "cannot be read" in refusal()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.npy", b"0" * 2**28)
    assert "larger than any session" in refusal()
    for place in (tmp_path / "no" / "where", "", "/", ".", "a\0b"):
        with pytest.raises(PackageError):
            session.save(place)


def test_what_a_killed_save_left_is_cleared_away_by_a_later_one(forgetful: Model, tmp_path: Path) -> None:
    for name in (
        ".saved.partial-0123abcd",
        ".saved.partial-89abcdef",
        ".other.partial-0123abcd",
        ".saved.partial-notes",
        "saved.old",
    ):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / ".saved.partial-89abcdef").touch()  # is being written
    kept = {path.name for path in tmp_path.iterdir()} - {".saved.partial-0123abcd"}
    session = forgetful.session()
    session.append(BEGIN)
    session.save(tmp_path / "saved")
    assert {path.name for path in tmp_path.iterdir()} == kept | {"saved"}


@pytest.fixture
def session(forgetful: Model) -> Session:
    """A session of a short text."""
    session = forgetful.session()
    session.append(BEGIN)
    session.generate(max_new_tokens=3)
    return session


@pytest.fixture
def saved(session: Session, tmp_path: Path) -> Path:
    """The file of that session."""
    session.save(tmp_path / "saved")
    return tmp_path / "saved"


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a saved session, without their digest."""
    with np.load(path) as archive:
        return {name: array for name, array in archive.items() if name != "sha256"}


def write_arrays(path: Path, arrays: dict[str, np.ndarray], *, with_digest: bool = True) -> None:
    """Replace a saved session; `with_digest`: with the digest of these arrays, so that what is refused is their content."""
    with path.open("wb") as file:
        np.savez(file, **arrays, **({"sha256": arrays_digest(arrays)} if with_digest else {}))


def with_header(arrays: dict[str, np.ndarray], **changes: object) -> dict[str, np.ndarray]:
    header = json.loads(arrays["header"].tobytes()) | changes
    return arrays | {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": np.array([99999])},
        {"token_ids": np.array([1.5])},
        {"token_ids": np.arange(2, 900)},
        {"token_ids_held": np.array([5])},
        {"header": np.frombuffer(json.dumps({"format": "?"}).encode(), np.uint8)},
        {"header": np.frombuffer(b"{", np.uint8)},
        {"cache/past_key_values.0.key": np.zeros((1, 1, 2, 64), np.float32)},
        {"cache/past_key_values.0.key": None},
    ],
)
def test_a_file_with_other_contents_is_refused(forgetful: Model, saved: Path, change: dict) -> None:
    write_arrays(saved, {name: value for name, value in {**arrays_of(saved), **change}.items() if value is not None})
    with pytest.raises(PackageError, match="not a saved session, or is damaged"):
        forgetful.load_session(saved)


def test_a_session_of_the_format_before_the_digest_still_opens(forgetful: Model, session: Session, saved: Path) -> None:
    arrays = arrays_of(saved)
    write_arrays(saved, with_header(arrays, format="onnx-textgen session 1"), with_digest=False)
    assert forgetful.load_session(saved).token_ids == session.token_ids
    write_arrays(saved, arrays, with_digest=False)
    with pytest.raises(PackageError, match="is damaged"):
        forgetful.load_session(saved)


def test_a_stream_that_is_closed_late_changes_nothing_any_more(chatty: Model, forgetful: Model) -> None:
    chat = chatty.session()
    chat.append({"role": "user", "content": "Hello"})
    stream = chat.stream(max_new_tokens=20, seed=1)
    next(stream)
    chat.append({"role": "user", "content": "Never mind"})
    stream.close()
    assert [message["content"] for message in chat.messages] == ["Hello", "Never mind"]
    session = forgetful.session()
    session.append(BEGIN)
    stream = session.stream(max_new_tokens=20, seed=1)
    next(stream)
    session.rewind(4)
    with pytest.raises(OptionError, match="meanwhile; end a stream first"):
        next(stream)
    assert len(session) == 4


CHANGES = {
    "append": lambda session: session.append([7, 8]),
    "rewind": lambda session: session.rewind(2),
    "stream": lambda session: session.stream(max_new_tokens=3),
    "generate": lambda session: session.generate(max_new_tokens=3, seed=1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_stream_that_is_begun_after_the_session_changed_leaves_it_alone(forgetful: Model, change: str) -> None:
    session = forgetful.session()
    session.append(BEGIN)
    stream = session.stream(max_new_tokens=3, seed=2)
    CHANGES[change](session)
    ids = session.token_ids
    with pytest.raises(OptionError, match="meanwhile; end a stream first"):
        next(stream)
    assert session.token_ids == ids


@given(wrong=st.sampled_from([5, None, "", [], [1.5], [-1], [10**9], [7] * 600, 2.5, b"ab", {7}, ["a"]]), begin=st.booleans())
def test_what_cannot_be_appended_is_refused_in_one_line_and_changes_nothing(forgetful: Model, wrong: object, begin: bool) -> None:
    session = forgetful.session()
    stream = None
    if begin:
        session.append(BEGIN)
        stream = session.stream(max_new_tokens=2, seed=1)
    ids = session.token_ids
    with pytest.raises(PromptError) as caught:
        session.append(wrong)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert "token id -1" not in str(caught.value) or wrong == [-1]
    assert session.token_ids == ids
    assert stream is None or len(list(stream)) == 2  # it is still the last that was asked for


@pytest.mark.parametrize("kind", ["shared", "growing", "states"])
def test_an_interrupt_in_the_middle_of_taking_over_a_run_is_no_wrong_text(kind: str, tmp_path: Path, monkeypatch) -> None:
    kinds = {"shared": "layers of different heads, shared", "growing": "keys and values of different sizes"}
    tiny = GRAPHS[kinds.get(kind, "states and a growing cache, one token at a time")]
    model = onnx_textgen.load(tiny.package(tmp_path), threads=1, device="cpu", prefix_cache=0)
    session = model.session()
    session.append([5, 9, 1, 0, 28, 3])
    session.generate(max_new_tokens=3, temperature=0)
    cache = type(model.new_context().cache)
    end, left = cache.end, [2]

    def interrupted(self: object, *given: object) -> None:
        end(self, *given)  # type: ignore[arg-type]
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cache, "end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.generate(max_new_tokens=9, temperature=0)
    assert session.context.snapshot is None  # nobody knows what the row holds
    ids = list(session.token_ids)
    assert list(session.generate(max_new_tokens=9, temperature=0).token_ids) == tiny.greedy(ids, 9)
    session.save(tmp_path / "saved")
    assert list(model.load_session(tmp_path / "saved").generate(max_new_tokens=4, temperature=0).token_ids) == tiny.greedy(
        list(session.token_ids), 4
    )


def test_what_a_template_gets_holds_for_every_turn_of_a_session_and_its_forks(story, tmp_path):
    template = "{{ mood }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    model = onnx_textgen.Model(story.folder, story.manifest, story.graph, chat_template=template)
    session = model.session(chat_template_kwargs={"mood": "Sad: "})
    session.append({"role": "user", "content": "The dog"})
    session.generate(max_new_tokens=3, temperature=0)
    session.save(tmp_path / "talk")
    again = model.load_session(tmp_path / "talk", chat_template_kwargs={"mood": "Sad: "})
    for each in (session, session.fork(), again):
        each.append({"role": "user", "content": "It ran"})
        each.generate(max_new_tokens=3, temperature=0)
        assert each.text.startswith("Sad: <user>The dog<assistant>")
    assert session.token_ids == again.token_ids
    with pytest.raises(OptionError, match="a session takes tools, documents, chat_template_kwargs, found 'mood'"):
        model.session(mood="Sad: ")
