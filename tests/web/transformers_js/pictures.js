/** What transformers.js answers to prompts with pictures, in Node and in a browser. */

/**
 * Greedy answers to tasks {messages or prompt, pictures: [{data, width, height}]}; `data`: base64 of bytes [height, width, 3].
 * `library`: transformers.js, set up to load `folder`.
 */
export async function answers({ AutoModelForImageTextToText, AutoProcessor, RawImage }, { folder, tokens, tasks }) {
  const processor = await AutoProcessor.from_pretrained(folder);
  const model = await AutoModelForImageTextToText.from_pretrained(folder);
  const found = [];
  for (const { messages, prompt, pictures } of tasks) {
    const text = prompt ?? processor.apply_chat_template(messages, { add_generation_prompt: true });
    const images = pictures.map(({ data, width, height }) => {
      const bytes = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
      return new RawImage(bytes, width, height, 3);
    });
    const options = { add_special_tokens: false };
    const inputs = images.length ? await processor(images, text, options) : processor.tokenizer(text, options);
    const ids = (await model.generate({ ...inputs, max_new_tokens: tokens, do_sample: false })).tolist()[0].map(Number);
    const length = inputs.input_ids.dims[1];
    found.push({ prompt: ids.slice(0, length), written: ids.slice(length) });
  }
  return found;
}
