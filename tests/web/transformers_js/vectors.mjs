// What transformers.js makes of texts: node vectors.mjs JOB, which has {folder, texts} or {folder, query, documents}.
import { AutoModelForSequenceClassification, AutoTokenizer, env, pipeline } from "@huggingface/transformers";

const { folder, texts, query, documents } = JSON.parse(process.argv[2]);
env.allowRemoteModels = false;
env.localModelPath = "/";
if (texts) {
  const extractor = await pipeline("feature-extraction", folder);
  const vectors = [];
  for (const text of texts) {
    vectors.push((await extractor(text, { pooling: "mean", normalize: true })).tolist()[0]);
  }
  console.log(JSON.stringify({ vectors, dtype: extractor.model.sessions.model.config.dtype }));
} else {
  const [tokenizer, model] = [await AutoTokenizer.from_pretrained(folder), await AutoModelForSequenceClassification.from_pretrained(folder)];
  const pairs = tokenizer(documents.map(() => query), { text_pair: documents, padding: true, truncation: true });
  console.log(JSON.stringify({ scores: (await model(pairs)).logits.sigmoid().tolist().flat() }));
}
