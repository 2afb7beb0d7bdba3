"""Hostile chat templates: ways out of the sandbox, work and texts without end, and what they say to a terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypothesis import example, given, note
from hypothesis import strategies as st

from onnx_textgen.cli.terminal.screen import CONTROL_CHARACTERS
from onnx_textgen.errors import TemplateError
from onnx_textgen.text.chat_template import render_chat
from support.examples import examples

from .law import HARMLESS, REFUSED, Cell, Verdict, Violation, check_line

CPU_SECONDS = 10
HELLO = [{"role": "user", "content": "Hello"}]
LONGEST_TEXT = 300_000
"""More than any budget for these messages allows."""
TELLTALES = ("<class ", "<module ", "<function ", "<built-in ", "object at 0x", "subclass", "root:x:", "uid=", "environ(")
"""What a text shows that has Python's own objects in it, or a file of the system."""
OWN_NAMES = re.compile(
    r"<(class '(dict|jinja2\.utils\.\w+|onnx_textgen\.text\.template_sandbox\.TemplateNamespace)'"
    r"|function (raise_exception|safe_range) at \w+|jinja2\.utils\.\w+ object at \w+"
    r"|built-in method \w+ of (str|dict|list|tuple|datetime\.datetime) object at \w+)>"
)
"""How what a template may call is written where it is written out and not called."""

# Each begins a loop of sixty rounds over a variable that can grow; the last also ends it.
TEXT = "{% set n = namespace(x='aa') %}{% for i in range(60) %}"
LIST = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
TWO_LISTS = (
    "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}"
)
REFUSED_ALWAYS = (
    "".join(f"{{% macro m{i}() %}}{{{{ m{i - 1}() }}}}{{{{ m{i - 1}() }}}}{{% endmacro %}}" for i in range(1, 40)) + "{{ m39() }}",
    *("{% set b = range(9999)|list %}" + LIST + "{% for i in b %}{% set n.x = [n.x, b[:]] %}{% endfor %}{% endfor %}", "x" * 2**17),
    *("{% set n = namespace(x=1) %}{% for i in range(9999) %}{% set n.x = n.x * 100003 %}{% endfor %}{{ n.x }}", "{{ a }}" * 20000),
    *(LIST + "{% for i in range(9999) %}{% set n.x = [n.x, [" + "0," * 9999 + "]] %}{% endfor %}{% endfor %}", "{{ 1 is system }}"),
    *("{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x }}", "{% raw %}{{ 1 }}"),
    *("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{% call m() %}x{% endcall %}", "{{ eval('1') }}"),
    *("{% macro m(n) %}{% if n > 0 %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}", "{{ '%2000000000d' % 1 }}"),
    *("{% macro m() %}{{ caller._func.__globals__.os }}{% endmacro %}{% call m() %}{% endcall %}", "{{ range.__self__.__dict__ }}"),
    *("{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}", "{{ '{:2000000000}'.format(1) }}"),
    *("{% set a %}{% for i in range(99999) %}" + "x" * 10000 + "{% endfor %}{% endset %}", "{{ (1).to_bytes(3000000000, 'big') }}"),
    *("{{ self.__init__.__globals__.__builtins__.__import__('os').popen('id').read() }}", "{{ [[1]]|tojson(indent=3000000000) }}"),
    *("{% set s = 'x' * 9999 %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}", "{{ [1]|batch(3000000000, 0)|list }}"),
    *("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "{{ '{0.__class__.__mro__}'.format(1) }}"),
    *("{% for m in messages %}{{ loop._iterator.__class__.__base__.x }}{% endfor %}", "{{ ''|attr('__class__')|attr('__mro__') }}"),
    *("{{ raise_exception('\x1b]0;owned\x07\x1b[2J\x1b]52;c;cm0gLXJmIC8K\x07') }}", "{% for i in range(1000000000) %}{% endfor %}"),
    *("{% for a in [range(999)] recursive %}{{ loop([range(999)]) }}{% endfor %}", "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}"),
    *("{% for i in [1] %}{% set loop = 5 %}{{ loop.index }}{% endfor %}{{ 1/0 }}", "{% for a in [1] %}" * 60 + "{% endfor %}" * 60),
    *(LIST + "{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}{{ n.x|string }}", "{{ strftime_now.__func__.__code__.co_consts[0] }}"),
    *(TEXT + "{% set n.x = (n.x ~ 'ß' * 9)|upper ~ n.x|lower %}{% endfor %}", "{{ (messages|map('upper')).gi_frame.f_globals }}"),
    *(TWO_LISTS + "{{ [{'a': n.x}]|selectattr('a', 'equalto', n.y)|list }}", "{% autoescape true %}{{ x.y.z }}{% endautoescape %}"),
    *("{{ ['']|map(attribute='__class__.__mro__')|list|first|first() }}", LIST + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}"),
    *("{{ ['']|groupby('__class__.__base__')|first|first|attr('x')() }}", "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}"),
    *(LIST + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|tojson }}", TEXT + "{% set n.x = n.x.replace('a', n.x) %}{% endfor %}"),
    *("{{ namespace.__init__.__globals__['os'].popen('id').read() }}", TEXT + "{% set n.x = (n.x ~ '&')|e ~ n.x|e %}{% endfor %}"),
    *("{{ ['', 'a']|sort(attribute='__class__')|tojson(default=1) }}", "{{ cycler.__init__.__globals__.os.popen('id').read() }}"),
    *(LIST + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ 'a' ~ n.x }}", "{% for i in range(99999) %}" + "x" * 10000 + "{% endfor %}"),
    *("{{ self._TemplateReference__context.environment.globals.x }}", TEXT + "{% set n.x = n.x.join([n.x, n.x]) %}{% endfor %}"),
    *(LIST + "{% set n.x = (n.x, n.x) %}{% endfor %}{{ {n.x: 1} }}", LIST + "{% set n.x = [n.x|tojson, n.x|tojson] %}{% endfor %}"),
    *(TEXT + "{% set n.x = [n.x, n.x]|join(n.x) %}{% endfor %}", TEXT + "{% set n.x = n.x|replace('', n.x) %}{% endfor %}", "{# "),
    *("{{ raise_exception('\x9b31m\x85\x08\x08\x7f') }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ 1|system }}"),
    *("{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ raise_exception('a\nb\r\nc\u2028d\x0be') }}", "{{ __import__('os') }}"),
    *(TEXT + "{% set n.x = n.x ~ n.x %}{% endfor %}", TEXT + "{% set n.x = n.x + n.x %}{% endfor %}", "{{ 1e308 * 10 * 10**400 }}"),
    *(LIST + "{% set n.x = n.x + n.x %}{% endfor %}", "{{ raise_exception.__traceback__.tb_frame }}", "{% trans %}x{% endtrans %}"),
    *("{{ '{x.__class__}'.format_map({'x': 1}) }}", "{% if a %}" * 2_000 + "{% endif %}" * 2_000, "{{ '%2000000000d'|format(1) }}"),
    *("{{ ('{0.__class__}'|attr('format'))(1) }}", "{% include 'x' ignore missing %}{{ 1/0 }}", "{{ [1]|slice(3000000000)|list }}"),
    *("{{ " + "[" * 5_000 + "]" * 5_000 + " }}", "{{ ('9' * 5000)|int + 1 }}{{ 1/0 }}", TWO_LISTS + "{{ [n.x].index(n.y) }}"),
    *("{{ '\t'.expandtabs(3000000000) }}", "{{ dict.fromkeys(range(10**9)) }}", "{{ ['a']|map('format', 1)|list }}", "{% debug %}"),
    *("{% include messages[0].content %}", "{{ raise_exception('x' * 9999) }}", TWO_LISTS + "{{ n.x is eq(n.y) }}", "{{ 1 // 0 }}"),
    *("{{ open('/etc/passwd').read() }}", "{{ 1" + "|string" * 5_000 + " }}", "{{ raise_exception('\\ud800') }}", "{{ 1 + 'a' }}"),
    *("{{ 'a\nb'|indent(3000000000) }}", "{% import '/etc/passwd' as a %}", "{{ raise_exception(messages) }}", "{{ }}"),
    *("{{ " + "not " * 10_000 + "1 }}", "{{ range(1000000000)|list }}", "{{ 'x'.center(3000000000) }}", "{{ messages.append(1) }}"),
    *("{{ 'x'|center(3000000000) }}", TWO_LISTS + "{{ n.x == n.y }}", "{{ 1" + "+1" * 20_000 + " }}", "{% do messages.clear() %}"),
    *("{{ " + "a" * 60_000 + "() }}", "{{ (10**10000000)|string }}", "{{ 'x'.zfill(3000000000) }}", "{{ a" + ".a" * 20000 + " }}"),
    *("{% include '/etc/passwd' %}", "{% extends '/etc/passwd' %}", "{{ " + "-" * 30_000 + "1 }}", "{{ 1|round(300000000) }}"),
    *("{{ 'A' * 10000000000 }}", "{{ 10000000000 * 'A' }}", "{{ [0] * 10000000000 }}", "{% for m in messages %}"),
    *("{{ raise_exception() }}", "{% \x1b]0;owned\x07 %}", "{{ lipsum(1000000) }}"),
)  # fmt: skip
QUIET = (
    *("{{ messages[0].update({'role': 'x'}) }}{{ messages[0].role }}", "{{ strftime_now('%') }}{{ strftime_now('%Q%E%\\0') }}", ""),
    *("{{ raise_exception }}{{ strftime_now }}{{ range }}{{ dict }}", "{% set _ = messages.clear() %}{{ messages|length }}"),
    *("{{ strftime_now('%999999999d')|length }}", "{{ 'a'.upper }}{{ messages[0].items }}", "{{ messages|map(attribute='role') }}"),
    *("{{ strftime_now.__self__.__class__ }}", "{% macro m() %}{% endmacro %}{{ m }}", "{{ raise_exception.__globals__ }}"),
    *("{{ self }}{{ loop }}{{ caller }}", "{{ cycler(1, 2) }}{{ joiner() }}", "{{ strftime_now('\ud800') }}", " \n" * 10_000),
    *("{{ messages.__class__ }}", "{{ ''['__class__'] }}", "{{ namespace(a=1) }}"),
)  # fmt: skip


PIECES = (
    *("messages", "messages[0]", "messages[0].content", "''", "[1]", "{'a': 1}", "(1, 2)", "range", "dict", "namespace"),
    *("cycler", "joiner", "lipsum", "raise_exception", "strftime_now", "self", "loop", "caller", "varargs", "bos_token"),
    *("none", "1", "1.5", "namespace(x=1)", "cycler(1)"),
)  # fmt: skip
STEPS = (
    *(".__class__", ".__init__", ".__globals__", ".__mro__", ".__subclasses__()", ".__dict__", ".__self__", ".__func__"),
    *(".__getitem__", "['__class__']", "|attr('__class__')", "|map(attribute='__class__')|list", "|list", "|first", "|tojson"),
    *("|string", "|items|list", "|dictsort", "|groupby('__class__')", "|select('callable')|list"),
    *("|map('attr', '__class__')|list", "()", "(1)", "[0]", "[-1]", "[:]", ".x", ".format(1)", ".format_map({})", "|format"),
    *(".gi_frame", ".f_globals", ".__code__", ".__reduce__()", ".__reduce_ex__(2)", ".__doc__", ".__module__", ".mro()"),
    *("|reverse|list", "|join", "|replace('', 'x' * 99)", " * 99999", " ~ self", " + [1]", "|unique|list", "|min", "|max"),
    *("|sum", "|length", "|upper", ".items", ".get", ".index"),
)  # fmt: skip
FRAMES = ("{{ %s }}", "{%% set a = %s %%}{{ a }}", "{%% for a in %s %%}{{ a }}{%% endfor %%}")


def render(template: str) -> tuple[str, str]:
    """The text, and the error where there is none."""
    messages: list[dict[str, Any]] = [dict(message) for message in HELLO]
    try:
        text = render_chat(template, messages, bos_token="<s>", eos_token="</s>")
    except TemplateError as error:
        check_line(str(error))
        if "\x1b" in str(error).translate(CONTROL_CHARACTERS):
            raise Violation("a terminal would obey it") from error
        return "", str(error)
    finally:
        if messages != HELLO:
            raise Violation("it changed the messages")
    if len(text) > LONGEST_TEXT or any(told in OWN_NAMES.sub("", text) for told in TELLTALES):
        raise Violation(f"it wrote {text!r:.200}")
    return text, ""


def must_be_refused(_: Path, template: str) -> Verdict:
    """Neither a text, nor an end of patience."""
    text, error = render(template)
    if not error:
        raise Violation(f"it wrote {text!r:.200}")
    return REFUSED


def may_be_written(_: Path, template: str) -> Verdict:
    """What it writes shows nothing of Python."""
    return REFUSED if render(template)[1] else HARMLESS


TEMPLATES = [*((must_be_refused, each) for each in REFUSED_ALWAYS), *((may_be_written, each) for each in QUIET)]


@examples(len(TEMPLATES))
@given(st.sampled_from(range(len(TEMPLATES))))
def test_a_hostile_chat_template_is_refused_in_one_line_or_reveals_nothing_of_python(cell: Cell, number: int) -> None:
    note(f"{TEMPLATES[number][1]:.200}")
    cell.hold(*TEMPLATES[number], cpu_seconds=CPU_SECONDS)


chains = st.builds(
    lambda frame, piece, steps: frame % (piece + "".join(steps)),
    st.sampled_from(FRAMES),
    st.sampled_from(PIECES),
    st.lists(st.sampled_from(STEPS), min_size=1, max_size=6),
)


@examples(150)
@given(chains)
@example("{{ self.__init__.__globals__ }}")
def test_no_chain_of_steps_in_a_template_reaches_python_changes_the_messages_or_runs_without_end(cell: Cell, template: str) -> None:
    cell.hold(may_be_written, template, cpu_seconds=CPU_SECONDS)
