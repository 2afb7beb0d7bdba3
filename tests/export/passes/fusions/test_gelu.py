"""The written-out GELU."""

import onnx_ir as ir
import pytest

from onnx_textgen_export.passes.fusions.gelu import fuse_gelu
from support.small_graphs import Small, check_pass, tokens


def written_out(*, cubic: float = 0.044715, power: float = 3.0, halve: str = "x", other: bool = False) -> ir.Model:
    small = Small()
    x = small.op("Neg", small.input("x", ["batch", "new", 4]))
    numbers = {name: small.constant(name, value) for name, value in (("half", 0.5), ("one", 1), ("c", cubic), ("p", power))}
    root = small.constant("root", 0.7978845608)
    cube = small.op("Mul", small.op("Pow", x, numbers["p"]), numbers["c"])
    one_plus = small.op("Add", small.op("Tanh", small.op("Mul", small.op("Add", x, cube), root)), numbers["one"])
    factor = small.op("Sin", x) if other else x
    if halve == "x":
        return small.finish(small.op("Mul", small.op("Mul", factor, numbers["half"]), one_plus))
    if halve == "sum":
        return small.finish(small.op("Mul", factor, small.op("Mul", numbers["half"], one_plus)))
    return small.finish(small.op("Mul", numbers["half"], small.op("Mul", factor, one_plus)))


@pytest.mark.parametrize("halve", ["x", "sum", "all"])
def test_every_order_of_the_factors_becomes_one_gelu(halve: str) -> None:
    assert check_pass(written_out(halve=halve), fuse_gelu, {"x": tokens(4)}) == ["Neg", "Gelu"]


@pytest.mark.parametrize("change", [{"cubic": 0.05}, {"power": 2.0}, {"other": True}], ids=str)
def test_what_only_looks_like_it_stays(change: dict) -> None:
    assert "Tanh" in check_pass(written_out(**change), fuse_gelu, {"x": tokens(4)})
