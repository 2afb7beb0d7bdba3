"""How often the first answer of a chat is right, by sampling: `python benchmarks/first_answers.py DIR... [--seeds 1]`.

A hundred short questions whose right answers are a word or a number; an answer is right if it holds one of them as a whole word. So
the figures compare settings on one model; between models they say little.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import onnx_textgen

TRUNCATED = {"top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""llama.cpp's."""
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "0.2, top_p 0.9": {"temperature": 0.2, "top_k": 0, "top_p": 0.9, "min_p": 0.0},
    **{f"{each}, top_k 40, top_p 0.95, min_p 0.05": {"temperature": each, **TRUNCATED} for each in (0.3, 0.5, 0.8)},
    "0.8, top_k 40, top_p 0.9": {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.0},
    "0.8, whole vocabulary": {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
}
CAPITALS = (
    "France Paris, Italy Rome, Japan Tokyo, Germany Berlin, Spain Madrid, Egypt Cairo, Russia Moscow, Greece Athens, "
    "China Beijing, Norway Oslo, Sweden Stockholm, Austria Vienna, Portugal Lisbon, Ireland Dublin, Poland Warsaw, "
    "Canada Ottawa, Cuba Havana"
)
LANGUAGES = (
    "Brazil Portuguese, Germany German, France French, Japan Japanese, Mexico Spanish, Italy Italian, Russia Russian, Poland Polish"
)
OPPOSITES = "hot cold, big small|little|tiny, up down, day night, black white, happy sad|unhappy, wet dry, fast slow, full empty"
SOUNDS = "barks dog, meows cat, moos cow, roars lion, oinks pig, quacks duck, buzzes bee, neighs horse"
SUMS = "2+2 4|four, 3+4 7|seven, 10-3 7|seven, 5*5 25, 8+1 9|nine, 6/2 3|three, 9-9 0|zero, 7+7 14, 2*3 6|six, 20+30 50"
COUNTS = (
    "days in a week 7|seven, months in a year 12|twelve, legs on a spider 8|eight, hours in a day 24, minutes in an hour 60, "
    "sides in a triangle 3|three, wheels on a bicycle 2|two, letters in the English alphabet 26, legs on a dog 4|four, "
    "cents in a dollar 100"
)
OTHERS = {
    "What colour is the sky on a clear day?": "blue",
    "What colour is grass?": "green",
    "What colour is a ripe banana?": "yellow",
    "What colour is snow?": "white",
    "What colour is blood?": "red",
    "Who wrote Romeo and Juliet?": "Shakespeare",
    "Who painted the Mona Lisa?": "Leonardo|Vinci",
    "Who developed the theory of relativity?": "Einstein",
    "Who was the first person on the Moon?": "Armstrong",
    "Who was the first president of the United States?": "Washington",
    "What planet do we live on?": "Earth",
    "Which planet is closest to the Sun?": "Mercury",
    "Which planet is known as the red planet?": "Mars",
    "What is the largest planet of the solar system?": "Jupiter",
    "What star does the Earth orbit?": "Sun",
    "What is the largest ocean?": "Pacific",
    "What is the tallest mountain on Earth?": "Everest",
    "What is the fastest land animal?": "cheetah",
    "What is the largest animal on Earth?": "whale",
    "What is frozen water called?": "ice",
    "What is the chemical formula of water?": "H2O|H₂O",
    "What do bees make?": "honey",
    "What gas do plants take in from the air?": "carbon dioxide|CO2",
    "What gas do people need to breathe?": "oxygen",
    "What is the currency of the United Kingdom?": "pound|sterling",
    "What is the currency of Japan?": "yen",
    "On which continent is Egypt?": "Africa",
    "What is the opposite of left?": "right",
    "On which continent is Brazil?": "South America",
    "Which season comes after winter?": "spring",
    "Which day comes after Monday?": "Tuesday",
    "Which month comes after March?": "April",
    "Which organ pumps blood?": "heart",
    "With which organ do we see?": "eyes?",
    "Name a fruit that is yellow.": "banana|lemon|mango|pineapple",
    "Name a programming language.": "Python|Java|JavaScript|C|Ruby|Rust|Go|Perl",
    "What metal is attracted by magnets?": "iron|steel|nickel|cobalt",
    "At how many degrees Celsius does water boil?": "100",
}


def pairs(text: str) -> list[list[str]]:
    """The entries of a list: what is asked about, and the right answers."""
    return [entry.rsplit(" ", 1) for entry in text.split(", ")]


QUESTIONS = {
    **{f"What is the capital of {country}?": right for country, right in pairs(CAPITALS)},
    **{f"What language do most people in {country} speak?": right for country, right in pairs(LANGUAGES)},
    **{f"What is the opposite of {word}?": right for word, right in pairs(OPPOSITES)},
    **{f"Which animal {does}?": right for does, right in pairs(SOUNDS)},
    **{f"What is {what}?": right for what, right in pairs(SUMS)},
    **{f"How many {what}?".replace(" in ", " are in ").replace(" on ", " are on "): right for what, right in pairs(COUNTS)},
    **OTHERS,
}
"""The right answers, as a pattern, by question."""


def is_right(text: str, right: str) -> bool:
    """Whether an answer holds one of the right ones.

    >>> is_right("The answer is four.", "4|four"), is_right("It is 45.", "4|four")
    (True, False)
    """
    return re.search(rf"(?<!\w)(?:{right})(?!\w)", text, re.IGNORECASE) is not None


def main() -> None:
    """Ask, and print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+", metavar="DIR", help="model folders, or short names, with a chat template")
    parser.add_argument("--seeds", type=int, default=1, help="answers to each question by each setting that draws")
    parser.add_argument("--tokens", type=int, default=48, help="longest answer")
    parser.add_argument("--shown", help="print the answers of this setting")
    asked = parser.parse_args()
    for package in asked.packages:
        model, right, count = onnx_textgen.load(package), Counter[str](), Counter[str]()
        trials = [
            (question, name, seed)
            for question in QUESTIONS
            for name, settings in SETTINGS.items()
            for seed in (range(asked.seeds) if settings["temperature"] else (None,))
        ]

        def answer(trial: tuple[str, str, int | None], model: onnx_textgen.Model = model) -> str:
            question, name, seed = trial
            messages = [{"role": "user", "content": question}]
            return model.chat(messages, max_new_tokens=asked.tokens, seed=seed, **SETTINGS[name]).text

        with ThreadPoolExecutor(8) as threads:  # whose rows are computed together
            for (question, name, _), text in zip(trials, threads.map(answer, trials), strict=True):
                is_ok = is_right(text, QUESTIONS[question])
                right[name] += is_ok
                count[name] += 1
                if name == asked.shown:
                    print(f"{'ok ' if is_ok else 'BAD'} {question} {text!r:.100}", flush=True)
        print(f"\n{package}, {len(QUESTIONS)} questions\n| sampling | right |\n|---|---:|")
        for name in SETTINGS:
            print(f"| {name} | {right[name]} of {count[name]} |", flush=True)


if __name__ == "__main__":
    main()
