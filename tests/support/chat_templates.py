"""Chat templates of models that the tests make up."""

THINKING = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% elif begins %}<think>{% endif %}{% endif %}"
)
"""Of a model that thinks; with the variable `begins` a prompt ends where the thinking begins."""
