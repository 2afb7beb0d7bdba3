"""Texts that tokenizer conversions get wrong: spaces, emoji, bytes, digits, accents, scripts, control characters, code, look-alikes."""

# ruff: noqa: E501, RUF001 - a table of strings, confusable on purpose

from __future__ import annotations

PROBES: tuple[str, ...] = (
    "", " ", "  ", "a", " a", "a ", " a ", "a  b", "   three", "in   the   middle", "\n", "\n\n", "\t", "\r\n", " \n ",
    "Hello, world!", "Once upon a time, there was a little girl named Lily.", "don't can't WON'T she'll I'M", "ALL CAPS MiXeD",
    "1234567890", "3.14159, -2e10, 0x1F, 1,000,000", "2nd ½ ² ① Ⅷ ٣", "?!?!?!......", "``''\"\"", "aaaa aaaaaaa aaaaaaaaaaaaa",
    "café naïve", "cafe\u0301 nai\u0308ve", "Å Å Å ﬁ ﬂ ㎏ \uff46\uff55\uff4c\uff4c", "\xa0nbsp\xa0", "\u2028\u3000\u200a\u200b\u200d\ufeff", "▁", "a▁b", "▁▁x",
    "😀", "😀😁😂 ok", "I ❤️ you", "👨\u200d👩\u200d👧", "🇩🇰", "日本語のテスト", "你好\uff0c世界", "Привет, мир", "مرحبا", "नमस्ते", "שלום",
    "안녕하세요", "สวัสดี", "İstanbul ıI ẞß", "\x01\x02\x7f", "\x80\x9f", "\ue000\ufffd", "\U0010ffff", "<0x41>", "<0xFF>", "<0x0A>x",
    "<s>", "</s> b", "a<unk>b", "[INST] hi [/INST]", "[CLS] a [SEP]", "<|endoftext|>", "<|im_start|>user\nhi<|im_end|>", "<pad>",
    "def f(x):\n    return x ** 2\n\n\n\t# done\n", '{"a": [1, 2, {"b": null}]}', "{{ messages }}", "C:\\path\\file.txt \\n",
    "https://example.org/?q=1&x=%20#top", "a@b.co", "snake_case camelCase kebab-case", "“quoted” ‘single’ — dash – en …", "€5 ™ ñ",
    "tab\tand\nnewline\n\n\n", "trailing spaces   ", "\n\n  indented\n   more", "word" * 40, "x" * 120,
)  # fmt: skip
