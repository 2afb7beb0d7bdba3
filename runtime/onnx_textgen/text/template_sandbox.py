"""Runs a chat template in a sandbox: it reaches only its messages, and its time and memory are limited.

jinja2's own sandbox keeps templates away from Python, but does not prevent endless loops or strings of a gigabyte. Here everything
that takes time or memory spends steps of a budget, which grows with the conversation: loop iterations, calls, comparisons, filters,
and each character or element that an expression produces. Features that real templates never use (`**`, `%` formatting, half of
jinja2's filters, most methods of str) are removed.
"""

from __future__ import annotations

import datetime
import functools
import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from ..errors import TemplateError
from .refused import RefusedError
from .template_budget import Budget, shallow_size

MAX_TEMPLATE_CHARACTERS = 64 * 1024
BASE_STEPS = 100_000
STEPS_PER_CHARACTER = 1_000
"""Steps for each character and element of the conversation; real templates take fewer than a hundred."""
CALL_STEPS = 20
MOST_COMPILED = 16
"""Templates whose code is kept: to compile one takes some fifty times as long as to run it."""

FILTERS_THAT_READ = "count default d first float int items last length list map reject rejectattr reverse select selectattr"
FILTERS_THAT_WRITE = (
    "capitalize dictsort e escape groupby indent join lower max min replace safe sort string sum title trim unique upper"
)
PRODUCTS = frozenset({"replace", "join", "indent", "tojson"})
"""Filters and methods whose result can be as long as the product of the lengths of their inputs."""
STR_METHODS = (
    "capitalize count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace istitle isupper join "
    "lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith "
    "strip title upper"
)
METHODS: tuple[tuple[tuple[type, ...], frozenset[str]], ...] = (
    ((str,), frozenset(STR_METHODS.split())),
    ((dict,), frozenset({"copy", "get", "items", "keys", "values"})),
    ((list, tuple), frozenset({"copy", "count", "index"})),
    ((int, float), frozenset()),
)


class MeteredNodes(NodeTransformer):
    """Adds the budget to the parts of a template that jinja2 runs without a call of its environment."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja2 finds visitors by the node's name
        """Charge each iteration of a loop, also those that its condition skips."""
        self.generic_visit(node)
        iteration = filtered("_charged", nodes.Const(True))
        node.body.insert(0, nodes.ExprStmt(iteration))
        if node.test is not None:
            node.test = nodes.And(iteration, node.test)
        return node

    def visit_Operand(self, node: nodes.Operand) -> nodes.Operand:  # noqa: N802
        """Charge a comparison for its right side: a comparison takes at most the time to read all of that."""
        self.generic_visit(node)
        node.expr = filtered("_charged_deep", node.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        """Charge `a ~ b` for the length of its parts."""
        self.generic_visit(node)
        return filtered("_concat", nodes.List(node.nodes))

    def visit_List(self, node: nodes.Expr) -> nodes.Filter:  # noqa: N802
        """Charge list and dict literals for their memory."""
        self.generic_visit(node)
        return filtered("_charged", node)

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        """Turn tuples into lists, unless all items are constants: the hash of nested tuples may take for ever; lists have none."""
        constant = all(isinstance(item, nodes.Const) for item in node.items)
        return node if constant or node.ctx != "load" else self.visit_List(nodes.List(node.items))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        """Charge a slice for its length."""
        self.generic_visit(node)
        return filtered("_charged", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Filter:  # noqa: N802
        """Output the text between the tags like any other value."""
        return filtered("_text", nodes.Const(node.data))


def filtered(name: str, value: nodes.Expr) -> nodes.Filter:
    """The expression `value | name`."""
    return nodes.Filter(value, name, [], [], None, None)


class GenerationTag(Extension):
    """`{% generation %}`, with which templates mark the assistant's text for training; here its content is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements inside the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateNamespace(Namespace):
    """`namespace()`; prints as its name only, because its values may be large."""

    def __repr__(self) -> str:
        return "<Namespace>"


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """jinja2 as transformers sets it up for chat templates, with a budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, budget: Budget, now: datetime.datetime) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[GenerationTag, loopcontrols],
            finalize=self._charged_deep,
        )
        self._budget = budget
        self.filters = {
            **{name: self._metered(name, FILTERS[name], deep=False) for name in FILTERS_THAT_READ.split()},
            **{name: self._metered(name, FILTERS[name], deep=True) for name in FILTERS_THAT_WRITE.split()},
            "tojson": self._metered("tojson", to_json, deep=True),
            "_charged": at_run_time(self._charged),
            "_charged_deep": at_run_time(self._charged_deep),
            "_concat": at_run_time(self._concat),
            "_text": at_run_time(lambda text: text),
        }
        self.tests = {name: self._metered(name, cast(Callable[..., object], test), deep=False) for name, test in TESTS.items()}
        del self.globals["lipsum"]
        self.globals |= {"namespace": TemplateNamespace, "raise_exception": raise_exception, "strftime_now": now.strftime}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = MeteredNodes().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Refuse `**`, and `%` on text; charge sums and products of texts and lists for their length."""
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise SecurityError(f"it uses the operator {operator}, which chat templates may not use")
        if isinstance(left, int) and isinstance(right, int):
            if operator == "*" and left.bit_length() + right.bit_length() > 1024:
                raise SecurityError("it multiplies numbers that are too large for a chat template")
        elif operator == "*":
            self._budget.spend(sum(shallow_size(x) * max(0, y) for x, y in ((left, right), (right, left)) if isinstance(y, int)))
        else:
            self._budget.spend(shallow_size(left) + shallow_size(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: object, /, *args: object, **kwargs: object) -> object:
        """Call a function; charge a fixed number of steps and the sizes of its inputs and result."""
        receiver = getattr(function, "__self__", None)
        given = [*args, *kwargs.values()]
        self._budget.spend(CALL_STEPS + shallow_size(receiver) + sum(map(shallow_size, given)))
        if receiver is not None:
            self._spend_product(getattr(function, "__name__", ""), shallow_size(receiver), given)
        result = super().call(context, function, *args, **kwargs)
        return self._charged(result)

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Allow only the methods of texts, lists, dicts and numbers in `METHODS`."""
        for kinds, names in METHODS:
            if isinstance(obj, kinds):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        """Replace `str.format` by one that has plain fields only: jinja2's could make texts of any length."""
        receiver = getattr(value, "__self__", None)
        if isinstance(receiver, str) and getattr(value, "__name__", "") == "format":
            return functools.partial(fill_fields, receiver)
        return None

    def _metered(self, name: str, function: Callable[..., object], *, deep: bool) -> Callable[..., object]:
        """Wrap a filter or a test: charge it for what it reads, writes out and returns."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0  # jinja2 passes its own state first to some

        @functools.wraps(function)  # keeps jinja2's mark of those
        def metered(*args: object, **kwargs: object) -> object:
            values = [list(arg) if isinstance(arg, Iterator) else arg for arg in args]
            subject, given = values[first], [*values[first + 1 :], *kwargs.values()]
            size = self._budget.spend_deep_size(subject) if deep else shallow_size(subject)
            self._budget.spend(CALL_STEPS + size)
            self._spend_product(name, size, given)
            return self._charged(function(*values, **kwargs))

        return metered

    def _spend_product(self, name: str, size: int, given: Sequence[object]) -> None:
        """Charge for reading the arguments, and in advance for the longest result that functions in `PRODUCTS` can have."""
        weights = sum(abs(value) if isinstance(value, int) else self._budget.spend_deep_size(value) for value in given)
        if name in PRODUCTS:
            self._budget.spend((1 + size) * weights)

    def _charged(self, value: object) -> object:
        self._budget.spend(1 + shallow_size(value))
        return value

    def _charged_deep(self, value: object) -> object:
        self._budget.spend_deep_size(value)
        return value

    def _concat(self, parts: list[object]) -> str:
        self._budget.spend_deep_size(parts)
        return "".join(map(str, parts))


def at_run_time(function: Callable[[Any], object]) -> Callable[[Context, Any], object]:
    """Mark a filter so that jinja2 does not evaluate a call of it at compile time."""

    @jinja2.pass_context
    def with_context(_: Context, value: object) -> object:
        return function(value)

    return with_context


def fill_fields(text: str, *values: object) -> str:
    """`str.format` with fields that are empty, one for each value.

    >>> fill_fields("<{}:{}>", "think", 1)
    '<think:1>'
    """
    pieces = text.split("{}")
    if len(pieces) != len(values) + 1 or any(brace in piece for piece in pieces for brace in "{}"):
        raise SecurityError("it formats a text with other fields than {}, one for each value")
    written = [str(value) if isinstance(value, str | int | float) else type(value).__name__ for value in values]
    return "".join(part for pair in zip(pieces, [*written, ""], strict=True) for part in pair)


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as the `tojson` filter of transformers does; jinja2's own would escape `<`, `>`, `&` and `'` for HTML."""
    if indent is not None and not (isinstance(indent, int) and indent <= 8):
        raise SecurityError("it indents JSON deeper than a chat template may")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> None:
    """Called by a template that refuses its messages."""
    raise jinja2.TemplateError(message)


def render_template(template: str, variables: Mapping[str, object], now: datetime.datetime) -> str:
    """Render `template` with `variables` (JSON values).

    Raises `TemplateError` for any failure, `RefusedError` for one that other messages may not have.
    """
    if len(template) > MAX_TEMPLATE_CHARACTERS:
        raise TemplateError(
            f"the chat template has {len(template):,} characters, more than {MAX_TEMPLATE_CHARACTERS:,}; shorten it"
        )
    size = Budget(sys.maxsize).spend_deep_size(variables)
    budget = Budget(BASE_STEPS + STEPS_PER_CHARACTER * size)
    try:
        environment = MeteredEnvironment(budget, now)
        made = jinja2.Template.from_code(environment, compiled(template), environment.make_globals(None))
        return made.render(variables)
    except SecurityError as error:
        raise TemplateError(f"the chat template was stopped: {on_one_line(error)}; use another template") from error
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template is not valid: {on_one_line(error)} (line {error.lineno})") from error
    except jinja2.TemplateError as error:
        raise RefusedError(f"the chat template refused the messages: {on_one_line(error)}; change them as it asks") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {on_one_line(error)}"
        raise RefusedError(f"the chat template failed on the messages ({reason}); change the messages or the template") from error


@functools.lru_cache(maxsize=MOST_COMPILED)
def compiled(template: str) -> types.CodeType:
    """The code of a template, which depends on nothing else: budget, filters and time come from the environment that runs it."""
    return MeteredEnvironment(Budget(BASE_STEPS), datetime.datetime.min).compile(template)


def on_one_line(error: Exception) -> str:
    """The message of an error on one line, of at most 300 characters."""
    return " ".join(str(error).split())[:300]
