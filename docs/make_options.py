"""Write docs/options.md: what each sampling option does, with an example by the embedded model.

    python docs/make_options.py

The texts are those of the machine it runs on: where two tokens are nearly equally likely, another processor may choose the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_textgen

PAGE = Path(__file__).with_name("options.md")
TOKENS, SEED = 26, 4
Examples = list[tuple[dict[str, Any], str]]
CHOOSING: Examples = [
    ({"temperature": 0}, "Always the most likely token: coherent, and soon repetitive."),
    ({"temperature": 0.5}, "Below 1, likely tokens become likelier."),
    ({"temperature": 1}, "Each token as likely as the model says."),
    ({"temperature": 1.8}, "Above 1, unlikely tokens become likelier, until the text makes no sense."),
    ({"temperature": 1.8, "top_k": 5}, "Only the five most likely tokens: even at this temperature the text stays readable."),
    ({"temperature": 1.8, "top_p": 0.6}, "Only the fewest tokens that hold 60 % of the probability."),
    (
        {"temperature": 1.8, "min_p": 0.2},
        "Only tokens at least a fifth as likely as the most likely one: few where the model is sure.",
    ),
    ({"temperature": 0, "logit_bias": {457: -5}}, 'The logit of one token, " girl", lowered by 5.'),
    ({"temperature": 0, "bad_words_ids": [[457]]}, "A token that must not appear."),
    ({"temperature": 0, "bad_words_ids": [[457, 448]]}, 'A sequence that must not appear, " girl named", although its tokens may.'),
    ({"temperature": 0, "num_beams": 4}, "The most likely text as a whole, from four candidates at a time."),
    ({"temperature": 0, "stop": ["."]}, "Ends before a full stop."),
    ({"temperature": 0, "regex": " there (was|were) [a-z ]{8,30}\\."}, "Only text that matches a regular expression."),
]
REPEATING: Examples = [
    ({"temperature": 0}, "A repetitive prompt leads to a repetitive text."),
    ({"temperature": 0, "repetition_penalty": 1.3}, "Tokens that occurred before, also in the prompt, become less likely."),
    ({"temperature": 0, "presence_penalty": 2}, "Tokens that occurred in the new text become less likely, once."),
    ({"temperature": 0, "frequency_penalty": 2}, "The same, for each occurrence."),
    ({"temperature": 0, "no_repeat_ngram_size": 3}, "No three tokens in a row occur twice, the prompt included."),
    (
        {"temperature": 0, "dry_multiplier": 1.5},
        "Tokens that would extend a repeat become less likely, more so for a longer repeat.",
    ),
]
PAGES = {"Once upon a time": CHOOSING, "The dog ran and ran and ran. The dog ran and ran": REPEATING}


def call_of(options: dict[str, Any]) -> str:
    """The options as Python code, for a table."""
    return ", ".join(f"{name}={value!r}" for name, value in options.items()).replace("|", "\\|")


def table(model: onnx_textgen.Model, prompt: str, examples: Examples) -> list[str]:
    """The lines of one table."""
    lines = [f'From "{prompt}":', "", "| options | what they do | what comes |", "|---|---|---|"]
    for options, remark in examples:
        text = model.generate(prompt, max_new_tokens=TOKENS, seed=SEED, **options).text  # type: ignore[arg-type]
        lines.append(f"| `{call_of(options)}` | {remark} | {' '.join(text.split())} |")
    return [*lines, ""]


def main() -> None:
    """Generate and write."""
    model = onnx_textgen.load(threads=1, device="cpu")
    lines = [
        "# The sampling options, by example",
        "",
        f"What the embedded model writes in {TOKENS} tokens with seed {SEED}. [Generating](generating.md) explains how the",
        "options work together. `python docs/make_options.py` writes this page.",
        "",
        *(line for prompt, examples in PAGES.items() for line in table(model, prompt, examples)),
    ]
    PAGE.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
