"""The command `python -m artifacts.train`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .recipes import RECIPES
from .training_run import train


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("--corpora", type=Path, required=True, help="folder of the corpus files named in RECIPES")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, help="tokens to see in the whole run; default: the recipe's")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    train(options.recipe, options.corpora, options.out, tokens=options.tokens)


if __name__ == "__main__":
    main()
