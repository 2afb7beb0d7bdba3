"""What two texts share from their beginning."""

from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.text.prefixes import common_prefix

IDS = st.lists(st.integers(0, 2), max_size=40)


@given(shared=IDS, first=IDS, second=IDS, kind=st.sampled_from([list, tuple]))
def test_it_is_the_number_of_items_before_the_first_that_differ(shared: list, first: list, second: list, kind: type) -> None:
    one, other = [*shared, *first], kind([*shared, *second])
    pairs = list(zip(one, other, strict=False))
    assert common_prefix(one, other) == next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
