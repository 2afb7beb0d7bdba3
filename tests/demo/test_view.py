"""What a transcript looks like, and that nothing a model writes becomes HTML."""

import math
from types import SimpleNamespace

import pytest

from onnx_textgen import Alternative, Chunk, Stats
from onnx_textgen_demo import view
from onnx_textgen_demo.transcript import Transcript

PIECES = {1: " cat", 2: "<script>alert(1)</script>", 3: "\n"}


def model_of(piece):
    return SimpleNamespace(tokenizer=SimpleNamespace(piece=piece, streaming=None), manifest=SimpleNamespace(eos_ids=(3,)))


def transcript_of(*chunks):
    transcript = Transcript(model_of(PIECES.__getitem__), seed=7)
    for chunk in chunks:
        transcript.add(chunk)
    return transcript


def chunk(token_id, probability, *alternatives, **last):
    return Chunk(
        PIECES[token_id],
        (token_id,),
        (math.log(probability),),
        (tuple(Alternative(i, PIECES[i], math.log(p)) for i, p in alternatives),),
        **last,
    )


def test_probabilities_are_written_for_a_person():
    assert [view.percent(p) for p in (1.0, 0.8512, 0.00312, 0.0000004, 0.0)] == [
        "100.0 %",
        "85.1 %",
        "0.31 %",
        "< 0.01 %",
        "< 0.01 %",
    ]


@pytest.mark.parametrize(
    ("probability", "name"),
    [(1.0, "80 % or more"), (0.8, "80 % or more"), (0.5, "40 to 80 %"), (0.0, "below 2 %"), (0.019, "below 2 %")],
)
def test_every_probability_has_a_band_with_a_colour(probability, name):
    assert view.band(probability) == name
    assert name in view.BAND_COLORS


def test_spaces_and_line_ends_are_visible_in_the_table():
    transcript = transcript_of(chunk(1, 0.5), chunk(3, 0.25))
    assert view.rows(transcript.tokens) == [[1, "␣cat", "50.0 %"], [2, "⏎", "25.0 %"]]


def test_the_drawn_token_is_marked_among_its_rivals():
    bars = view.bars(transcript_of(chunk(1, 0.3, (3, 0.6), (1, 0.3))).tokens, 1)
    assert bars.count("<tr") == 2
    assert bars.count('class="drawn"') == 1
    assert bars.index("⏎") < bars.index("␣cat") < bars.index("drawn</span>")


def test_a_drawn_token_that_is_not_among_the_likeliest_gets_a_bar_of_its_own():
    bars = view.bars(transcript_of(chunk(1, 0.01, (3, 0.6), (2, 0.3))).tokens, 1)
    assert bars.count("<tr") == 3
    assert "1.0 %" in bars


def test_two_rivals_that_look_the_same_are_told_apart_by_their_ids():
    transcript = Transcript(model_of(lambda _: "same"), seed=7)
    transcript.add(
        Chunk("same", (5,), (math.log(0.3),), ((Alternative(4, "same", math.log(0.6)), Alternative(5, "same", math.log(0.3))),))
    )
    assert transcript.tokens[0].rank == 1


def test_all_tokens_but_the_drawn_one_can_be_gone_on_from():
    bars = view.bars(transcript_of(chunk(1, 0.3, (3, 0.6), (1, 0.3))).tokens, 1, choosable=True)
    assert bars.count('<th scope="row"><button') == 1
    assert 'data-place="[1,0]"' in bars


def test_a_rival_that_ends_the_text_ends_it():
    other = transcript_of(chunk(1, 0.3, (3, 0.6), (1, 0.3))).branch(1, 0)
    assert (other.finish_reason, other.text, other.tokens) == ("eos", "", [])


@pytest.mark.parametrize("position", [-1, 0, 2])
def test_bars_of_a_position_without_token_explain_themselves(position):
    assert "<tr" not in view.bars(transcript_of(chunk(1, 0.5)).tokens, position)


def test_text_of_a_model_never_becomes_html():
    transcript = transcript_of(chunk(2, 0.9, (2, 0.9)))
    page = view.bars(transcript.tokens, 1) + view.status(transcript, problem="no file <b>x</b>")
    assert "<script" not in page
    assert "<b>x" not in page


def test_the_status_line_gives_speed_first_token_time_seed_and_reason():
    stats = Stats(3, 0, 1, 0.01, 0.015, 1.0, 300.0, 42.5, 7)
    line = view.status(transcript_of(chunk(1, 0.5, finish_reason="eos", stats=stats)))
    for part in ("tokens/s <b>42.5</b>", "first token <b>15 ms</b>", "seed <b>7</b>", "finished: eos"):
        assert part in line


def test_the_status_line_follows_a_generation_from_start_to_stop():
    assert "ready" in view.status(None)
    assert "reading the prompt" in view.status(transcript_of())
    assert "writing" in view.status(transcript_of(chunk(1, 0.5)))
    assert "finished: cancelled" in view.status(transcript_of(chunk(1, 0.5)), stopped=True)


def test_a_last_chunk_without_token_ends_the_transcript():
    transcript = transcript_of(chunk(1, 0.5), Chunk(" end", (), finish_reason="eos"))
    assert (transcript.text, len(transcript.tokens), transcript.finish_reason) == (" cat end", 1, "eos")
