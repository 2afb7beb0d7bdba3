"""Write docs/options.md: what each option of choosing a token does, with an example by the embedded model.

    python docs/make_options.py

The texts are those of the machine it runs on: where two tokens are nearly equal another processor may take the other one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_textgen

PAGE = Path(__file__).with_name("options.md")
TOKENS, SEED = 26, 4
Examples = list[tuple[dict[str, Any], str]]
CHOOSING: Examples = [
    ({"temperature": 0}, "Always the likeliest token: sound, and soon the same."),
    ({"temperature": 0.5}, "Below 1 the likely become likelier."),
    ({"temperature": 1}, "As likely as the model says."),
    ({"temperature": 1.8}, "Above 1 the unlikely become likelier, until nothing holds together."),
    ({"temperature": 1.8, "top_k": 5}, "Only the five likeliest tokens: even so bold a temperature stays readable."),
    ({"temperature": 1.8, "top_p": 0.6}, "Only the fewest tokens that hold 60 % of the probability."),
    ({"temperature": 1.8, "min_p": 0.2}, "Only tokens at least a fifth as likely as the likeliest: few where the model is sure."),
    ({"temperature": 1.8, "typical_p": 0.5}, "The tokens of the most expected surprise; the likeliest may be left out."),
    ({"temperature": 1.8, "top_n_sigma": 1}, "Only logits within one standard deviation of the largest, whatever the temperature."),
    ({"temperature": 1, "xtc_probability": 1, "xtc_threshold": 0.1}, "Leaves the likeliest out where there is another likely one."),
    ({"temperature": 1, "mirostat": 2, "mirostat_tau": 2}, "Cuts so that each token surprises by about two bits."),
    ({"temperature": 0, "logit_bias": {457: -5}}, 'The logit of one token, " girl", lowered by 5.'),
    ({"temperature": 0, "suppress_tokens": [457]}, "A token that must not come."),
    ({"temperature": 0, "bad_words_ids": [[457, 448]]}, 'A sequence that must not come, " girl named", though its parts may.'),
    ({"temperature": 0, "num_beams": 4}, "The likeliest text as a whole, by four candidates side by side."),
    ({"temperature": 0, "stop": ["."]}, "Ends before a full stop."),
    ({"temperature": 0, "regex": " there (was|were) [a-z ]{8,30}\\."}, "Whatever matches a regular expression."),
]
REPEATING: Examples = [
    ({"temperature": 0}, "A text that repeats goes on repeating."),
    ({"temperature": 0, "repetition_penalty": 1.3}, "What came before, in the prompt too, becomes less likely."),
    ({"temperature": 0, "presence_penalty": 2}, "What the new text has already becomes less likely, once."),
    ({"temperature": 0, "frequency_penalty": 2}, "The same, by how often it came."),
    ({"temperature": 0, "no_repeat_ngram_size": 3}, "No three tokens in a row come twice, those of the prompt included."),
    ({"temperature": 0, "dry_multiplier": 1.5}, "What would lengthen a repeat becomes less likely, the more the longer it is."),
]
PAGES = {"Once upon a time": CHOOSING, "The dog ran and ran and ran. The dog ran and ran": REPEATING}


def call_of(options: dict[str, Any]) -> str:
    """The options as one writes them, for a table."""
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
        "# The options of choosing a token, by example",
        "",
        f"What the embedded model writes in {TOKENS} tokens with seed {SEED}. How the options work together is in",
        "[generating](generating.md); this page is written by `python docs/make_options.py`.",
        "",
        *(line for prompt, examples in PAGES.items() for line in table(model, prompt, examples)),
    ]
    PAGE.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
