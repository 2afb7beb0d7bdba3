"""What Python, an editor and a type checker see of the package: its names, what they are, and what is shown of objects."""

import ast
import gc
import inspect
import itertools
import pydoc
import runpy
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen import ChatAnswer, errors
from onnx_textgen.api.model import MOVED
from onnx_textgen.options.generation_config import OPTION_NAMES, GenerationConfig
from onnx_textgen.options.keywords import Options

TREE = ast.parse(Path(onnx_textgen.__file__).read_text(encoding="utf-8"))


def test_dir_has_the_public_names_and_imports_nothing():
    code = "import onnx_textgen, sys; print(dir(onnx_textgen), 'onnxruntime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    listed, _, has_imported = done.stdout.strip().rpartition(" ")
    assert [name for name in ast.literal_eval(listed) if not name.startswith("__")] == sorted(onnx_textgen.__all__, key=str)
    assert has_imported == "False"


def test_type_checkers_are_told_of_every_public_name_where_it_comes_from():
    (block,) = [each for each in TREE.body if isinstance(each, ast.If)]
    told = {alias.name: each.module for each in block.body if isinstance(each, ast.ImportFrom) for alias in each.names}
    assert told == {name: home for home, names in onnx_textgen.HOMES.items() for name in names}
    assert sorted(told) == sorted(onnx_textgen.__all__)
    for name, home in told.items():
        assert getattr(onnx_textgen, name) is getattr(sys.modules[f"onnx_textgen.{home}"], name)


def test_every_error_is_an_attribute_of_the_package():
    kinds = [name for name, each in vars(errors).items() if inspect.isclass(each) and each.__module__ == errors.__name__]
    assert len(kinds) >= 9
    assert [name for name in kinds if getattr(onnx_textgen, name) is not vars(errors)[name]] == []
    with pytest.raises(AttributeError, match="has no attribute 'PromtError'"):
        _ = onnx_textgen.PromtError


def test_every_option_is_a_keyword_with_the_text_of_its_field():
    made = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "make_keywords.py"))
    assert made["written"]() == made["KEYWORDS"].read_text(encoding="utf-8"), "python docs/make_keywords.py writes it anew"
    assert tuple(Options.__annotations__) == OPTION_NAMES


@pytest.mark.parametrize("thing", [GenerationConfig, onnx_textgen.Model.generate], ids=["the class", "the call"])
def test_help_has_every_option_with_its_default_and_the_text_below_its_field(thing: object) -> None:
    source = ast.parse(Path(inspect.getfile(GenerationConfig)).read_text(encoding="utf-8"))
    (fields,) = [each.body for each in source.body if isinstance(each, ast.ClassDef)]
    texts = {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(fields)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    assert tuple(texts) == OPTION_NAMES
    shown = pydoc.plain(pydoc.render_doc(thing)).replace(" |  ", "")
    missing = [
        name
        for name, text in texts.items()
        if f"{name} = {getattr(GenerationConfig(), name)!r}\n" not in shown or text not in shown
    ]
    assert missing == []


def test_help_of_an_application_without_sources_has_the_docstring_alone() -> None:
    code = "import onnx_textgen.options.generation_config as g; print(g.GenerationConfig.__doc__, g.OPTION_NAMES)"
    absent = f"import pathlib; pathlib.Path.read_text = lambda *_, **__: open('/none/at/all'); {code}"
    done = subprocess.run([sys.executable, "-c", absent], capture_output=True, text=True, check=True, timeout=60)
    assert "Options:" not in done.stdout
    assert "The checked options of one generation" in done.stdout


def test_a_text_and_an_answer_print_as_what_the_model_wrote(story):
    made = story.generate("The dog", max_new_tokens=3, seed=3)
    assert f"{made}" == str(made) == made.text != repr(made)
    answer = ChatAnswer(text="Paris", reasoning="", tool_calls=(), finish_reason="eos", generation=made)
    assert str(answer) == "Paris" != repr(answer)


def test_what_python_shows_of_a_model_a_session_and_a_text_is_one_short_line(story):
    session = story.session()
    shown = [repr(story), repr(session)]
    session.append("Once upon a time\nthere was")
    made = session.generate(max_new_tokens=60, seed=3)
    several = story.generate("The dog", max_new_tokens=3, num_return_sequences=2, seed=3)
    shown += [repr(session), repr(made), repr(several)]
    assert [each for each in shown if "\n" in each or len(each) > 160] == []
    assert shown[:2] == [
        "<onnx_textgen.Model 'story': int8, context of 512 tokens, on cpu>",
        "<onnx_textgen.Session with 'story': 0 tokens>",
    ]
    assert f"{len(session)} tokens, ending " in shown[2]
    assert shown[3].startswith(f"<Generation {made.text[:20]!r}"[:-1])
    assert shown[3].endswith(f"...': {len(made.token_ids)} tokens, {made.finish_reason}, seed 3>")
    assert shown[4].endswith("seed 3, 2 sequences>")


def test_a_configuration_shows_what_was_set():
    config = GenerationConfig(temperature=0.5, stop=(".",), seed=7)
    assert repr(config) == "GenerationConfig(temperature=0.5, seed=7, stop=('.',))"
    assert eval(repr(config)) == config  # noqa: S307 - our own


def test_a_closed_model_lets_go_of_its_graph_at_once_and_says_that_it_is_closed():
    gc.disable()
    try:
        with onnx_textgen.load(threads=1, device="cpu") as model:
            graph = weakref.ref(model.graph)
            model.generate(["The dog", "A cat"], max_new_tokens=3, prompt_lookup_num_tokens=2)
            list(model.stream("Once upon a time", max_new_tokens=3))
            model.attentions("The dog")
            assert graph() is not None
        assert graph() is None
    finally:
        gc.enable()
    assert repr(model).endswith("closed>")
    assert model.generator.prefixes.held_bytes == 0
    calls = {
        "generate": lambda: model.generate("a"),
        "stream": lambda: list(model.stream("a")),
        "score": lambda: model.score("a b"),
        "session": model.session,
        "attentions": lambda: model.attentions("a"),
        "memory": model.memory,
    }
    for call in calls.values():
        with pytest.raises(onnx_textgen.ModelError, match="this model was closed; load it again"):
            call()
    model.close()


def test_a_session_of_a_closed_model_says_so_too():
    with onnx_textgen.load(threads=1, device="cpu") as model:
        session = model.session()
        session.append("The dog")
        session.generate(max_new_tokens=2)
    with pytest.raises(onnx_textgen.ModelError, match="this model was closed"):
        session.generate(max_new_tokens=2)
    assert session.text.startswith("The dog")


def test_a_model_has_thirty_public_members_at_most(story: onnx_textgen.Model) -> None:
    assert len([name for name in dir(story) if not name.startswith("_")]) <= 30


@pytest.mark.parametrize("name", MOVED)
def test_an_attribute_of_a_model_that_has_moved_works_for_one_release_and_warns(story: onnx_textgen.Model, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"Model.{name} goes in the next release; use "):
        assert getattr(story, name) is not None


def test_an_attribute_that_a_model_never_had_is_an_attribute_error(story: onnx_textgen.Model) -> None:
    with pytest.raises(AttributeError, match="'Model' object has no attribute 'tokeniser'"):
        _ = story.tokeniser  # type: ignore[attr-defined]


def test_the_old_name_of_a_session_works_for_one_release_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match="onnx_textgen.Conversation is called Session now"):
        assert onnx_textgen.Conversation is onnx_textgen.Session
