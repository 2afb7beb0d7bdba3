"""What a transcript looks like, and that nothing a model writes becomes HTML."""

import math
import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

import onnx_textgen
from onnx_textgen import Alternative, Chunk, Stats
from onnx_textgen.text.tokenizer import TextTokenizer
from onnx_textgen.text.tokenizer_json import Streaming
from onnx_textgen_demo import text_pane, view
from onnx_textgen_demo.tabs.write import make_continue
from onnx_textgen_demo.transcripts import Token, Transcript
from support.scripted_model import TINY_PACKAGE

PIECES = {1: " cat", 2: "<script>alert(1)</script>", 3: "\n"}


def model_of(piece):
    def decode(ids):
        return "".join(map(piece, ids))

    tokenizer = SimpleNamespace(piece=piece, visible_token=piece, decode=decode, streaming=Streaming.TOKENS)
    return SimpleNamespace(tokenizer=tokenizer, manifest=SimpleNamespace(eos_ids=(3,), encoder=None))


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
    style = (Path(view.__file__).with_name("page.css")).read_text(encoding="utf-8")
    assert f".band-{list(view.BANDS).index(name)} {{ background" in style


def test_spaces_and_line_ends_are_visible_in_the_table():
    transcript = transcript_of(chunk(1, 0.5), chunk(3, 0.25))
    assert view.rows(transcript.tokens) == [[1, "␣cat", "50.0 %"], [2, "⏎", "25.0 %"]]


def test_the_drawn_token_is_marked_among_its_alternatives():
    bars = view.bars(transcript_of(chunk(1, 0.3, (3, 0.6), (1, 0.3))).tokens, 1)
    assert bars.count("<tr") == 2
    assert bars.count('class="drawn"') == 1
    assert bars.index("⏎") < bars.index("␣cat") < bars.index("drawn</span>")


def test_a_drawn_token_that_is_not_among_the_likeliest_gets_a_bar_of_its_own():
    bars = view.bars(transcript_of(chunk(1, 0.01, (3, 0.6), (2, 0.3))).tokens, 1)
    assert bars.count("<tr") == 3
    assert "1.0 %" in bars


def test_two_alternatives_that_look_the_same_are_told_apart_by_their_ids():
    transcript = Transcript(model_of(lambda _: "same"), seed=7)
    transcript.add(
        Chunk("same", (5,), (math.log(0.3),), ((Alternative(4, "same", math.log(0.6)), Alternative(5, "same", math.log(0.3))),))
    )
    assert transcript.tokens[0].rank == 1


def test_all_tokens_but_the_drawn_one_can_be_gone_on_from():
    bars = view.bars(transcript_of(chunk(1, 0.3, (3, 0.6), (1, 0.3))).tokens, 1, choosable=True)
    assert bars.count('<th scope="row"><button') == 1
    assert 'data-alternative="[1, 0]"' in bars


def test_an_alternative_that_ends_the_text_ends_it():
    other = transcript_of(chunk(1, 0.3, (3, 0.6), (1, 0.3))).branch(1, 0)
    assert (other.finish_reason, other.text, other.tokens) == ("eos", "", [])


@pytest.mark.parametrize("position", [-1, 0, 2])
def test_there_are_no_bars_of_a_position_without_token(position):
    assert view.bars(transcript_of(chunk(1, 0.5)).tokens, position) == ""


def test_text_of_a_model_never_becomes_html():
    transcript = transcript_of(chunk(2, 0.9, (2, 0.9)))
    transcript.prompt = "<script>alert(2)</script>"
    page = view.bars(transcript.tokens, 1) + view.status(transcript, problem="no file <b>x</b>") + text_pane.text_html(transcript)
    assert "<script" not in page
    assert "<b>x" not in page


def test_the_status_line_gives_speed_first_token_time_seed_and_reason():
    stats = Stats(3, 0, 1, 0.01, 0.015, 1.0, 300.0, 42.5, 7)
    line = view.status(transcript_of(chunk(1, 0.5, finish_reason="eos", stats=stats)))
    for part in ("tokens/s <b>42.5</b>", "first token <b>15 ms</b>", "seed <b>7</b>", "finished: eos"):
        assert part in line


def test_the_status_line_follows_a_generation_from_start_to_stop():
    assert re.sub("<[^>]+>", "", view.status(None)) == ""
    assert "reading the prompt" in view.status(transcript_of())
    transcript = transcript_of(chunk(1, 0.5))
    assert "writing" in view.status(transcript)
    transcript.end("cancelled")
    assert "finished: cancelled" in view.status(transcript)


def test_a_last_chunk_without_token_ends_the_transcript():
    transcript = transcript_of(chunk(1, 0.5), Chunk("", (), finish_reason="eos"))
    assert (transcript.text, len(transcript.tokens), transcript.finish_reason) == (" cat", 1, "eos")


def in_bytes():
    """A tokenizer like Llama's: words, and a token for each byte."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581cat", "\u2581", "s", "."]
    ids = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(ids, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return TextTokenizer(tokenizer.to_str())


TOKENIZERS = {"bytes as words": in_bytes(), "words of bytes": onnx_textgen.load(TINY_PACKAGE).tokenizer}
some_ids = st.lists(st.one_of(st.integers(1, 250), st.sampled_from([11, 33, 196, 170])), max_size=40)


def transcript_of_ids(tokenizer, ids):
    transcript = Transcript(
        SimpleNamespace(tokenizer=tokenizer, manifest=SimpleNamespace(encoder=None)), 7, "Once", tokenizer.encode("s")
    )
    for token_id in ids:
        transcript.append(Token(token_id, tokenizer.piece(token_id), 0.5, ()))
    transcript.end("length")
    return transcript


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@given(ids=some_ids)
def test_the_tokens_of_a_text_are_together_the_text_to_the_letter(tokenizer, ids):
    transcript = transcript_of_ids(tokenizer, ids)
    whole, before = tokenizer.decode([*transcript.prompt_ids, *ids]), tokenizer.decode(transcript.prompt_ids)
    assert before + transcript.text == whole
    shown = text_pane.text_html(transcript).partition('<span class="prompt">')[2].partition('<ul class="bands"')[0]
    assert unescape(re.sub("<[^>]+>", "", shown)) == "Once" + transcript.text


def test_a_line_end_that_is_a_token_of_a_byte_is_shown_as_one():
    tokenizer = TOKENIZERS["bytes as words"]
    ids = [257, tokenizer.encode("\n", add_special_tokens=False)[-1], 257]
    transcript = transcript_of_ids(tokenizer, ids)
    assert [token.text for token in transcript.tokens] == [" cat", "\n", " cat"]
    assert [row[1] for row in view.rows(transcript.tokens)] == ["␣cat", "⏎", "␣cat"]
    assert "0x0A" not in text_pane.text_html(transcript)


def test_bytes_of_a_character_are_shown_until_the_one_that_completes_it():
    tokenizer = TOKENIZERS["bytes as words"]
    ids = [1 + byte for byte in "é".encode()]
    transcript = transcript_of_ids(tokenizer, [*ids, 257])
    assert [token.text for token in transcript.tokens] == ["", "é", " cat"]
    assert text_pane.text_html(transcript).count('data-sign="&lt;0xC3&gt;"') == 1


def test_a_text_that_is_being_written_is_not_gone_on_with_by_another_press():
    transcript = transcript_of(chunk(1, 0.5))
    transcript.has_started = True
    assert list(make_continue(None)(transcript)) == []


def test_the_token_that_is_looked_at_is_marked_and_no_other():
    transcript = transcript_of(chunk(1, 0.5), chunk(1, 0.5), chunk(3, 0.5))
    marked = lambda: re.findall(r'data-place="([0-9]+)" aria-current', text_pane.text_html(transcript))  # noqa: E731
    assert marked() == ["3"], "the last one, while nobody looks at another"
    transcript.selected = 2
    assert marked() == ["2"]
