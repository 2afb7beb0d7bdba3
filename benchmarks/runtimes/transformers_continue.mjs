/** Continues prompts greedily with a model of transformers.js; the folder's config names its dtype. */

export async function continueGreedily({ AutoModelForCausalLM, Tensor }, folder, device, { tasks, eos_ids: eosIds }) {
  const model = await AutoModelForCausalLM.from_pretrained(folder, { dtype: "auto", device });
  const found = [];
  for (const { prompt_ids: promptIds, new_tokens: newTokens } of tasks) {
    const shape = [1, promptIds.length];
    const ids = await model.generate({
      inputs: new Tensor("int64", BigInt64Array.from(promptIds, BigInt), shape),
      attention_mask: new Tensor("int64", new BigInt64Array(promptIds.length).fill(1n), shape),
      max_new_tokens: newTokens,
      do_sample: false,
    });
    const written = Array.from(ids.data, Number).slice(promptIds.length);
    const end = written.findIndex((id) => eosIds.includes(id));
    found.push(end < 0 ? written : written.slice(0, end));
  }
  return found;
}
