"""Chat templates of models that the tests make up."""

THINKING = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% elif begins %}<think>{% endif %}{% endif %}"
)
"""Of a model that thinks; with the variable `begins` a prompt ends where the thinking begins."""

ANALYSIS = "{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}"
HARMONY = (
    "{{ tools | tojson if tools }}{% for m in messages %}<|start|>{{ m.role }}{% if m.tool_calls %}"
    + ANALYSIS
    + "{% set c = m.tool_calls[0].function %}"
    " to=functions.{{ c.name }}<|channel|>commentary json<|message|>{{ c.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}"
    + ANALYSIS
    + "<|channel|>final<|message|>{{ m.content }}<|return|>{% else %}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""Of a model that writes in channels, with a header for each, as gpt-oss does."""
COMMAND = (
    "{{ tools | tojson if tools }}{% for m in messages %}<|TURN|><|{{ m.role }}|>{% if m.tool_calls %}<|START_THINKING|>"
    "{{ m.thinking }}<|END_THINKING|><|START_ACTION|>[{% for c in m.tool_calls %}"
    "{{ {'tool_name': c.function.name, 'parameters': c.function.arguments} | tojson }}{{ ', ' if not loop.last }}{% endfor %}]"
    "<|END_ACTION|>{% elif m.role == 'assistant' %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% else %}{{ m.content }}"
    "{% endif %}<|END_OF_TURN|>{% endfor %}<|TURN|><|assistant|>"
)
"""Of a model with marks around text, thinking and calls, as Command R7B has them; every chat ends with the next beginning."""
