"""`bench --forms`: the options that it names make the form that it timed."""

import pytest

from onnx_textgen.cli import run
from onnx_textgen.diagnostics.product_forms import Form, other_forms, package_products

MODULE = """
import torch
from onnx_textgen_export import DecoderConfig, TinyTransformer

def build():
    torch.manual_seed(0)
    return TinyTransformer(DecoderConfig(vocab_size=60, width=64, layers=1, context_length=40))
"""


@pytest.mark.parametrize("form", [Form(4, 64), Form(4, 32, "whole"), Form(8, 64, accuracy_level=0)], ids=Form.describe)
def test_an_export_with_the_options_of_a_form_has_its_products_in_that_form(tmp_path, form):
    (tmp_path / "mine.py").write_text(MODULE, encoding="utf-8")
    folder = tmp_path / "package"
    always = ["--max-kl", "9", "--no-calibrate", "--no-other-runtimes"]
    assert run(["export", f"{tmp_path / 'mine.py'}:build", "--out", str(folder), *form.export_options.split(), *always]) == 0
    products, manifest = package_products(folder)
    assert {product.form for product in products} == {form}
    assert sum(product.is_head for product in products) == 1
    others = list(other_forms(products, manifest.geometry.hidden_size))
    assert form not in others
    assert len(others) == 5
