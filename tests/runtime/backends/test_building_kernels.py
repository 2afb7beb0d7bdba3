"""The hook that compiles the kernels for a wheel: it adds them, or says why not, and never fails an installation."""

import importlib.util
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="the hook is hatchling's")
SOURCE = Path(__file__).resolve().parents[3] / "runtime" / "kernels" / "build.py"
SPEC = importlib.util.spec_from_file_location("build_kernels", SOURCE)
assert SPEC is not None and SPEC.loader is not None
build = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(build)


class App:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def display_warning(self, line: str) -> None:
        self.warnings.append(line)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A hook over sources in another folder, so that the installed library stays."""
    monkeypatch.delenv("CXX", raising=False)
    (tmp_path / "kernels").mkdir()
    (tmp_path / "onnx_textgen" / "backends").mkdir(parents=True)
    (tmp_path / "kernels" / "library.cpp").write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(build, "HERE", tmp_path / "kernels")
    monkeypatch.setattr(build, "SOURCES", {"library.cpp": ()})
    return build.KernelsHook(str(tmp_path), {}, None, None, str(tmp_path), "wheel", App())


needs_compiler = pytest.mark.skipif(bool(build.why_not()), reason="no kernels are compiled here")


@needs_compiler
def test_a_wheel_has_the_library_and_its_platform(hook):
    data = {"force_include": {}}
    hook.initialize("standard", data)
    (made,) = data["force_include"]
    assert Path(made).read_bytes().startswith(b"\x7fELF")
    assert data["force_include"][made] == "onnx_textgen/backends/libtextgen.so.1"
    assert (data["tag"], data["pure_python"]) == ("py3-none-linux_x86_64", False)
    assert hook.app.warnings == []
    hook.finalize("standard", data, "")
    assert not Path(made).exists()


@needs_compiler
def test_an_editable_installation_gets_it_among_the_sources(hook, monkeypatch):
    library = build.HERE.parent / build.TARGET
    hook.initialize("editable", {"force_include": {}})
    assert library.exists()
    assert [path.name for path in library.parent.iterdir()] == [library.name]
    monkeypatch.setenv("ONNX_TEXTGEN_KERNELS", "0")
    hook.initialize("editable", {"force_include": {}})
    assert not library.exists()
    assert hook.app.warnings == ["built without its kernels, which make it faster: ONNX_TEXTGEN_KERNELS is 0"]


@needs_compiler
@pytest.mark.parametrize("trouble", ["source", "program", "none"])
def test_no_trouble_fails_an_installation(hook, monkeypatch, tmp_path, trouble):
    if trouble == "source":
        (build.HERE / "library.cpp").write_text("not C++")
    elif trouble == "program":
        broken = tmp_path / "c++"
        broken.write_text("#!/no/such/interpreter\n")
        broken.chmod(0o755)
        monkeypatch.setenv("CXX", str(broken))
    else:
        monkeypatch.setenv("CXX", "no-such-compiler -m64")
    data = {"force_include": {}}
    hook.initialize("standard", data)
    assert data == {"force_include": {}}
    (line,) = hook.app.warnings
    assert line.startswith("built without its kernels, which make it faster: ")
    hook.finalize("standard", data, "")


@pytest.mark.parametrize("platform", ["linux-aarch64", "macosx-14.0-arm64", "win-amd64"])
def test_other_platforms_are_named(monkeypatch, platform):
    monkeypatch.delenv("ONNX_TEXTGEN_KERNELS", raising=False)
    monkeypatch.setattr(sysconfig, "get_platform", lambda: platform)
    assert build.why_not() == f"they are for linux-x86_64, and this is {platform}"
