"""The page's answers come in their parts: thinking apart from the text."""

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen_demo.chat.answering import answers_to, session_for
from onnx_textgen_demo.conversation.message_tree import MessageTree
from onnx_textgen_demo.conversation.parts import Reasoning, Text, parts_of

THINKER = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
)


def test_thinking_is_a_part_of_its_own_while_the_answer_grows() -> None:
    story = onnx_textgen.load(threads=1, device="cpu")
    model = Model(story.folder, story.manifest, story.graph, chat_template=THINKER)
    text = model.tokenizer.encode("It may rain.</think>It rains.", add_special_tokens=False)
    prompt = model.encode_chat([{"role": "user", "content": "Does it rain?"}])

    def said(token_ids, logits):
        written = len(token_ids) - len(prompt)
        logits[text[written] if written < len(text) else model.tokenizer.eos_ids[0]] += 1e4
        return logits

    tree = MessageTree().add(-1, {"role": "user", "content": "Does it rain?"})
    chat, options = session_for(model, None), {"temperature": 0, "logits_processor": said, "max_new_tokens": 60}
    frames = [each.messages_to(1)[-1] for each in answers_to(tree, 0, chat, options, name="model")]
    thoughts = [each.get("reasoning_content", "") for each in frames]
    assert sorted(thoughts, key=len) == thoughts, "it grows"
    assert any(thought and not frame["content"] for thought, frame in zip(thoughts, frames, strict=True))
    assert parts_of(frames[-1]) == [Reasoning("It may rain."), Text("It rains.")]
    assert chat.session.messages[-1] == frames[-1]


def test_an_answer_that_was_cut_off_goes_on_as_if_it_had_not_been() -> None:
    story = onnx_textgen.load(threads=1, device="cpu")
    model = Model(story.folder, story.manifest, story.graph, chat_template=THINKER.replace("<think>\n", ""))
    tree, options = MessageTree().add(-1, {"role": "user", "content": "Once upon a time"}), {"temperature": 0}
    whole, cut = (
        list(answers_to(tree, 0, session_for(model, None), {**options, "max_new_tokens": count}, name="model"))[-1].nodes[1].message
        for count in (16, 8)
    )
    chat = session_for(model, None)
    frames = [
        each.nodes[1].message["content"]
        for each in answers_to(tree, 0, chat, {**options, "max_new_tokens": 8}, name="model", beginning=cut)
    ]
    assert frames[-1] == whole["content"] != cut["content"]
    assert all(frame.startswith(cut["content"]) for frame in frames)
