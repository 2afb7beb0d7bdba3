"""Commands of other packages: they join without being imported, and a missing one is answered with the pip line."""

import sys
from importlib import metadata
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest
import typer

from onnx_textgen.cli import app, run
from onnx_textgen.cli.extensions import GROUP, add_extensions
from onnx_textgen.extras import remedy
from onnx_textgen.requirements import TRIED, wrong_version


@pytest.fixture
def install(monkeypatch):
    """Put an app, or an error that its import raises, behind an entry point named `name`."""

    def put(name, behind):
        module = ModuleType("an_extension")
        if isinstance(behind, Exception):
            monkeypatch.setattr(EntryPoint, "load", lambda self: (_ for _ in ()).throw(behind))
        module.app = behind
        monkeypatch.setitem(sys.modules, "an_extension", module)
        points = [EntryPoint(name, "an_extension:app", GROUP)] if behind is not None else []
        monkeypatch.setattr("onnx_textgen.cli.extensions.entry_points", lambda group: points)
        fresh = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode=None)
        fresh.callback()(lambda: None)
        add_extensions(fresh)
        monkeypatch.setattr(app, "app", fresh)

    return put


@pytest.fixture
def seen(install):
    seen = []
    extension = typer.Typer()

    @extension.command()
    def export(source: str, out: str = typer.Option(...), force: bool = False):
        """Make a folder."""
        seen.append((source, out, force))
        if source == "bad":
            raise typer.Exit(1)

    install("export", extension)
    return seen


def test_all_arguments_go_to_the_command_behind_the_entry_point(seen):
    assert run(["export", "checkpoint", "--out", "folder", "--force"]) == 0
    assert seen == [("checkpoint", "folder", True)]


def test_its_exit_code_is_that_of_the_process(seen):
    assert run(["export", "bad", "--out", "folder"]) == 1


def test_its_help_is_its_own(seen, capsys):
    assert run(["export", "-h"]) == 0
    out = capsys.readouterr().out
    assert "onnx-textgen export" in out
    assert "--out" in out


def test_its_usage_errors_are_one_line_that_names_it(seen, capsys):
    assert run(["export", "checkpoint"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("error: Missing option '--out'")
    assert err.endswith("see: onnx-textgen export -h\n")


@pytest.mark.parametrize(("name", "module"), [("export", "torch"), ("demo", "gradio")])
def test_a_missing_extra_is_answered_with_the_line_that_adds_it(install, capsys, name, module):
    install(name, ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert run([name]) == 1
    expected = f"error: the command {name} needs {module}, which is not installed; {remedy(name)}\n"
    assert capsys.readouterr() == ("", expected)


@pytest.mark.parametrize("name", ["export", "demo"])
def test_a_command_that_no_package_brings_is_answered_with_the_line_that_adds_it(install, capsys, name):
    install(name, None)
    assert run([name]) == 1
    assert remedy(name) in capsys.readouterr().err


def test_a_module_that_a_users_own_code_wants_is_named_without_a_pip_line(install, capsys):
    install("export", ModuleNotFoundError("No module named 'my_layers'", name="my_layers"))
    assert run(["export"]) == 1
    err = capsys.readouterr().err
    assert "my_layers" in err
    assert "pip install" not in err


def test_a_command_of_a_stranger_joins_too(install, capsys):
    extension = typer.Typer()
    extension.command()(lambda: typer.echo("here"))
    install("serve", extension)
    assert run(["serve"]) == 0
    assert capsys.readouterr().out == "here\n"


@pytest.fixture
def at_version(monkeypatch):
    """Pretend that a library is installed in some version, and that onnx-textgen asks for another."""

    def pretend(name, found):
        wanted = {"onnxruntime": ">=1.27", "transformers": ">=5.10,<6", "onnx-ir": ">=1.0", "gradio": "<7,>=6.31"}
        requires = [f"{library}{versions}; extra == 'export'" for library, versions in wanted.items()]
        monkeypatch.setattr(metadata, "requires", lambda distribution: requires)
        monkeypatch.setattr(metadata, "version", lambda distribution: found if distribution == name else "0")

    return pretend


@pytest.mark.parametrize(
    "case",
    [
        ("export", "transformers", "5.0.0", "transformers.cache_utils", '>=5.10,<6 does: pip install "transformers>=5.10,<6"'),
        ("export", "transformers", "6.0.0", "transformers", '>=5.10,<6 does: pip install "transformers>=5.10,<6"'),
        ("export", "onnx-ir", "0.1.0", "onnx_ir.passes", '>=1.0 does: pip install "onnx-ir>=1.0"'),
        ("demo", "gradio", "5.49.1", "gradio.events", '>=6.31,<7 does: pip install "gradio>=6.31,<7"'),
        (
            "export",
            "transformers",
            "5.99.0",
            "transformers",
            f'newest that was tried: pip install "transformers=={TRIED["transformers"]}"',
        ),
    ],
)
def test_an_import_that_a_version_fails_says_which_versions_work(install, at_version, capsys, case):
    extra, name, found, module, advice = case
    at_version(name, found)
    install(extra, ImportError(f"cannot import name 'Cache' from '{module}' (/somewhere/file.py)", name=module))
    assert run([extra]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{name} {found} does not work here: cannot import name 'Cache' from '{module}'; " in err
    assert err.endswith(f"{advice}\n") and "somewhere" not in err


def test_a_module_without_a_part_that_another_version_has_is_a_version_too(at_version):
    at_version("onnxruntime", "1.10.0")
    library = ModuleType("onnxruntime.capi")
    with pytest.raises(AttributeError) as raised:
        library.Something  # noqa: B018
    reason = wrong_version(raised.value)
    assert "onnxruntime 1.10.0 does not work here" in reason and '>=1.27 does: pip install "onnxruntime>=1.27"' in reason


def test_other_errors_are_no_versions(at_version):
    at_version("transformers", "5.0.0")
    for error in (
        ImportError("no name", name="my_layers.attention"),
        ModuleNotFoundError("No module named 'transformers'", name="transformers"),
        AttributeError("no attribute", obj=object(), name="there"),
        ValueError("transformers"),
    ):
        assert wrong_version(error) is None
