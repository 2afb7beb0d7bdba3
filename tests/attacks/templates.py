"""Hostile chat templates: ways out of the sandbox, work and texts without end, and what they say to a terminal."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onnx_textgen.cli.terminal.screen import CONTROL_CHARACTERS
from onnx_textgen.errors import TemplateError
from onnx_textgen.text.chat_template import render_chat

from .law import HARMLESS, REFUSED, Case, Law, Verdict, Violation, check_line, spread

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
HOSTILE = {
    "reaches for os through a global": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "reaches for os through self": "{{ self.__init__.__globals__.__builtins__.__import__('os').popen('id').read() }}",
    "climbs the classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "climbs the classes by a filter": "{{ ''|attr('__class__')|attr('__mro__') }}",
    "takes format by a filter": "{{ ('{0.__class__}'|attr('format'))(1) }}",
    "formats an attribute": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "formats an attribute of a map": "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "formats to a width": "{{ '{:2000000000}'.format(1) }}",
    "formats to a width by a filter": "{{ '%2000000000d'|format(1) }}",
    "formats to a width by an operator": "{{ '%2000000000d' % 1 }}",
    "changes the messages": "{{ messages.append(1) }}",
    "lists a large range": "{{ range(1000000000)|list }}",
    "loops over a large range": "{% for i in range(1000000000) %}{% endfor %}",
    "nests loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nests loops that skip": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "nests loops over text": "{% set s = 'x' * 9999 %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
    "recurses in a loop": "{% for a in [range(999)] recursive %}{{ loop([range(999)]) }}{% endfor %}",
    "takes a power": "{{ (10**10000000)|string }}",
    "squares again and again": "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x }}",
    "calls itself twice": "{% macro m(n) %}{% if n > 0 %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "calls itself for ever": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "multiplies text": "{{ 'A' * 10000000000 }}",
    "multiplies text from the right": "{{ 10000000000 * 'A' }}",
    "multiplies a list": "{{ [0] * 10000000000 }}",
    "centers text": "{{ 'x'.center(3000000000) }}",
    "centers text by a filter": "{{ 'x'|center(3000000000) }}",
    "fills with zeros": "{{ 'x'.zfill(3000000000) }}",
    "expands tabs": "{{ '\t'.expandtabs(3000000000) }}",
    "makes bytes of a number": "{{ (1).to_bytes(3000000000, 'big') }}",
    "indents far": "{{ 'a\nb'|indent(3000000000) }}",
    "indents JSON far": "{{ [[1]]|tojson(indent=3000000000) }}",
    "rounds far": "{{ 1|round(300000000) }}",
    "makes many slices": "{{ [1]|slice(3000000000)|list }}",
    "fills a batch": "{{ [1]|batch(3000000000, 0)|list }}",
    "writes much": "{% for i in range(99999) %}" + "x" * 10000 + "{% endfor %}",
    "writes much into a variable": "{% set a %}{% for i in range(99999) %}" + "x" * 10000 + "{% endfor %}{% endset %}",
    "doubles text": TEXT + "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubles text by adding": TEXT + "{% set n.x = n.x + n.x %}{% endfor %}",
    "doubles text by replacing": TEXT + "{% set n.x = n.x.replace('a', n.x) %}{% endfor %}",
    "doubles text by joining": TEXT + "{% set n.x = n.x.join([n.x, n.x]) %}{% endfor %}",
    "doubles a list": LIST + "{% set n.x = n.x + n.x %}{% endfor %}",
    "nests a list in itself": LIST + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "nests a list in itself for JSON": LIST + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|tojson }}",
    "nests a list in itself for a sum": LIST + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ 'a' ~ n.x }}",
    "nests a dict in itself": LIST + "{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}{{ n.x|string }}",
    "compares nested lists": TWO_LISTS + "{{ n.x == n.y }}",
    "compares nested lists in a test": TWO_LISTS + "{{ n.x is eq(n.y) }}",
    "compares nested lists in a filter": TWO_LISTS + "{{ [{'a': n.x}]|selectattr('a', 'equalto', n.y)|list }}",
    "looks a nested list up": TWO_LISTS + "{{ [n.x].index(n.y) }}",
    "hashes nested tuples": LIST + "{% set n.x = (n.x, n.x) %}{% endfor %}{{ {n.x: 1} }}",
    "keeps many slices": "{% set b = range(9999)|list %}"
    + LIST
    + "{% for i in b %}{% set n.x = [n.x, b[:]] %}{% endfor %}{% endfor %}",
    "keeps many lists": LIST + "{% for i in range(9999) %}{% set n.x = [n.x, [" + "0," * 9999 + "]] %}{% endfor %}{% endfor %}",
    "opens many brackets": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "asks for many attributes": "{{ a" + ".a" * 20000 + " }}",
    "is long": "{{ a }}" * 20000,
    "includes a file": "{% include '/etc/passwd' %}",
    "extends a file": "{% extends '/etc/passwd' %}",
    "imports a file": "{% import '/etc/passwd' as a %}",
    "makes random text": "{{ lipsum(1000000) }}",
    "ends too early": "{% for m in messages %}",
    "is no template": "{{ }}",
}
REFUSALS = HOSTILE | {
    "reaches for os through a namespace": "{{ namespace.__init__.__globals__['os'].popen('id').read() }}",
    "reaches for os through range": "{{ range.__self__.__dict__ }}",
    "reaches for os through the loop": "{% for m in messages %}{{ loop._iterator.__class__.__base__.x }}{% endfor %}",
    "reaches for os through a macro": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "reaches for os through a caller": "{% macro m() %}{{ caller._func.__globals__.os }}{% endmacro %}{% call m() %}{% endcall %}",
    "reaches for the environment": "{{ self._TemplateReference__context.environment.globals.x }}",
    "reaches for a traceback": "{{ raise_exception.__traceback__.tb_frame }}",
    "reaches for code": "{{ strftime_now.__func__.__code__.co_consts[0] }}",
    "reaches for a generator's frame": "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "maps an attribute": "{{ ['']|map(attribute='__class__.__mro__')|list|first|first() }}",
    "groups by an attribute": "{{ ['']|groupby('__class__.__base__')|first|first|attr('x')() }}",
    "sorts by an attribute": "{{ ['', 'a']|sort(attribute='__class__')|tojson(default=1) }}",
    "calls a class": "{{ dict.fromkeys(range(10**9)) }}",
    "calls through a map": "{{ ['a']|map('format', 1)|list }}",
    "names a filter that does not exist": "{{ 1|system }}",
    "names a test that does not exist": "{{ 1 is system }}",
    "is full of unknown names": "{{ open('/etc/passwd').read() }}",
    "imports": "{{ __import__('os') }}",
    "evaluates": "{{ eval('1') }}",
    "includes by a variable": "{% include messages[0].content %}",
    "includes and passes over what is missing": "{% include 'x' ignore missing %}{{ 1/0 }}",
    "divides by zero": "{{ 1 // 0 }}",
    "overflows": "{{ 1e308 * 10 * 10**400 }}",
    "adds unlike things": "{{ 1 + 'a' }}",
    "makes many digits": "{% set n = namespace(x=1) %}{% for i in range(9999) %}{% set n.x = n.x * 100003 %}{% endfor %}{{ n.x }}",
    "reads a long number": "{{ ('9' * 5000)|int + 1 }}{{ 1/0 }}",
    "sums texts without end": TEXT + "{% set n.x = [n.x, n.x]|join(n.x) %}{% endfor %}",
    "repeats by replacing nothing": TEXT + "{% set n.x = n.x|replace('', n.x) %}{% endfor %}",
    "writes tokens of JSON without end": LIST + "{% set n.x = [n.x|tojson, n.x|tojson] %}{% endfor %}",
    "escapes without end": TEXT + "{% set n.x = (n.x ~ '&')|e ~ n.x|e %}{% endfor %}",
    "upper-cases sharp s": TEXT + "{% set n.x = (n.x ~ 'ß' * 9)|upper ~ n.x|lower %}{% endfor %}",
    "nests macros": "".join(f"{{% macro m{i}() %}}{{{{ m{i - 1}() }}}}{{{{ m{i - 1}() }}}}{{% endmacro %}}" for i in range(1, 40))
    + "{{ m39() }}",
    "recurses by call blocks": "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{% call m() %}x{% endcall %}",
    "nests loops by tags": "{% for a in [1] %}" * 60 + "{% endfor %}" * 60,
    "nests conditions by tags": "{% if a %}" * 2_000 + "{% endif %}" * 2_000,
    "has many minus signs": "{{ " + "-" * 30_000 + "1 }}",
    "has many nots": "{{ " + "not " * 10_000 + "1 }}",
    "has many filters": "{{ 1" + "|string" * 5_000 + " }}",
    "has many sums": "{{ 1" + "+1" * 20_000 + " }}",
    "has a list of lists": "{{ " + "[" * 5_000 + "]" * 5_000 + " }}",
    "sets a loop's own variable": "{% for i in [1] %}{% set loop = 5 %}{{ loop.index }}{% endfor %}{{ 1/0 }}",
    "says much to a person": "{{ raise_exception('x' * 9999) }}",
    "says it in lines": "{{ raise_exception('a\nb\r\nc\u2028d\x0be') }}",
    "says it to the terminal": "{{ raise_exception('\x1b]0;owned\x07\x1b[2J\x1b]52;c;cm0gLXJmIC8K\x07') }}",
    "says it in other controls": "{{ raise_exception('\x9b31m\x85\x08\x08\x7f') }}",
    "says a thing that is no text": "{{ raise_exception(messages) }}",
    "says nothing": "{{ raise_exception() }}",
    "says half a character": "{{ raise_exception('\\ud800') }}",
    "is called like a terminal's command": "{% \x1b]0;owned\x07 %}",
    "has a long name": "{{ " + "a" * 60_000 + "() }}",
    "is too long": "x" * 2**17,
    "opens a comment": "{# ",
    "opens a raw text": "{% raw %}{{ 1 }}",
    "has a tag of its own": "{% do messages.clear() %}",
    "translates": "{% trans %}x{% endtrans %}",
    "debugs": "{% debug %}",
    "escapes by itself": "{% autoescape true %}{{ x.y.z }}{% endautoescape %}",
}
QUIET = {
    "asks a text for its class by brackets": "{{ ''['__class__'] }}",
    "asks the messages for their class": "{{ messages.__class__ }}",
    "asks a function for its globals": "{{ raise_exception.__globals__ }}",
    "asks a bound method for its self": "{{ strftime_now.__self__.__class__ }}",
    "asks the clock for a wide year": "{{ strftime_now('%999999999d')|length }}",
    "writes a namespace": "{{ namespace(a=1) }}",
    "writes a function": "{{ raise_exception }}{{ strftime_now }}{{ range }}{{ dict }}",
    "writes a generator": "{{ messages|map(attribute='role') }}",
    "writes a macro": "{% macro m() %}{% endmacro %}{{ m }}",
    "writes itself": "{{ self }}{{ loop }}{{ caller }}",
    "writes a cycler and a joiner": "{{ cycler(1, 2) }}{{ joiner() }}",
    "writes a method": "{{ 'a'.upper }}{{ messages[0].items }}",
    "changes a dict by itself": "{{ messages[0].update({'role': 'x'}) }}{{ messages[0].role }}",
    "empties the messages": "{% set _ = messages.clear() %}{{ messages|length }}",
    "clocks with odd marks": "{{ strftime_now('%') }}{{ strftime_now('%Q%E%\\0') }}",
    "clocks with half a character": "{{ strftime_now('\ud800') }}",
    "does nothing at all": "",
    "is all blanks": " \n" * 10_000,
}


def render(template: str, _: Path) -> tuple[str, str]:
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


def must_be_refused(template: str, folder: Path) -> Verdict:
    """Neither a text, nor an end of patience."""
    text, error = render(template, folder)
    if not error:
        raise Violation(f"it wrote {text!r:.200}")
    return REFUSED


def may_be_written(template: str, folder: Path) -> Verdict:
    """What it writes shows nothing of Python."""
    return REFUSED if render(template, folder)[1] else HARMLESS


CASES = [Case(name, functools.partial(must_be_refused, template)) for name, template in REFUSALS.items()]
CASES += [Case(name, functools.partial(may_be_written, template)) for name, template in QUIET.items()]

PIECES = (
    *(
        "messages",
        "messages[0]",
        "messages[0].content",
        "''",
        "[1]",
        "{'a': 1}",
        "(1, 2)",
        "range",
        "dict",
        "namespace",
        "cycler",
        "joiner",
        "lipsum",
    ),
    *(
        "raise_exception",
        "strftime_now",
        "self",
        "loop",
        "caller",
        "varargs",
        "bos_token",
        "none",
        "1",
        "1.5",
        "namespace(x=1)",
        "cycler(1)",
    ),
)
STEPS = (
    *(
        ".__class__",
        ".__init__",
        ".__globals__",
        ".__mro__",
        ".__subclasses__()",
        ".__dict__",
        ".__self__",
        ".__func__",
        ".__getitem__",
        "['__class__']",
    ),
    *(
        "|attr('__class__')",
        "|map(attribute='__class__')|list",
        "|list",
        "|first",
        "|tojson",
        "|string",
        "|items|list",
        "|dictsort",
        "|groupby('__class__')",
    ),
    *(
        "|select('callable')|list",
        "|map('attr', '__class__')|list",
        "()",
        "(1)",
        "[0]",
        "[-1]",
        "[:]",
        ".x",
        ".format(1)",
        ".format_map({})",
        "|format",
    ),
    *(
        ".gi_frame",
        ".f_globals",
        ".__code__",
        ".__reduce__()",
        ".__reduce_ex__(2)",
        ".__doc__",
        ".__module__",
        ".mro()",
        "|reverse|list",
        "|join",
    ),
    *(
        "|replace('', 'x' * 99)",
        " * 99999",
        " ~ self",
        " + [1]",
        "|unique|list",
        "|min",
        "|max",
        "|sum",
        "|length",
        "|upper",
        ".items",
        ".get",
        ".index",
    ),
)


def hostile(count: int, _: random.Random) -> Sequence[Case]:
    """Some of those above."""
    return spread(CASES, count)


def chained(count: int, choose: random.Random) -> Iterator[Case]:
    """Chains of steps from whatever a template can name, towards whatever Python has."""
    for _ in range(count):
        chain = choose.choice(PIECES) + "".join(choose.choices(STEPS, k=choose.randrange(1, 7)))
        template = choose.choice(("{{ %s }}", "{%% set a = %s %%}{{ a }}", "{%% for a in %s %%}{{ a }}{%% endfor %%}")) % chain
        yield Case(template, functools.partial(may_be_written, template))


LAWS = (
    Law(
        "A hostile chat template is refused in one line, or reveals nothing of Python",
        hostile,
        whole=len(CASES),
        quick=len(CASES),
        cpu_seconds=10,
    ),
    Law(
        "No chain of steps in a template reaches Python, changes the messages or runs without end",
        chained,
        whole=5_000,
        quick=300,
        cpu_seconds=10,
    ),
)
