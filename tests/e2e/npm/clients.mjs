// SPDX-License-Identifier: Apache-2.0
// The npm clients against a server: node clients.mjs BASE_URL. Prints {"client": text} for each way of asking; any failure
// ends it with a status that is not 0.
import assert from "node:assert/strict";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import OpenAI, { toFile } from "openai";

const baseURL = process.argv[2];
const model = "toy";
const question = "What is the capital of France? Answer in one word.";
const messages = [{ role: "user", content: question }];
const texts = {};

const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const whole = await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 16 });
texts.chat = whole.choices[0].message.content;
assert.equal(whole.choices[0].finish_reason, "stop");
const runner = client.chat.completions.stream({ model, messages, temperature: 0, max_tokens: 16 });
texts.chat_stream = (await runner.finalChatCompletion()).choices[0].message.content;

const response = await client.responses.create({ model, input: question, temperature: 0, max_output_tokens: 16 });
texts.responses = response.output_text;
const stream = client.responses.stream({ model, input: question, temperature: 0, max_output_tokens: 16 });
texts.responses_stream = (await stream.finalResponse()).output[0].content[0].text;
assert.equal((await client.responses.retrieve(response.id)).output_text, response.output_text);
await client.responses.delete(response.id);
await assert.rejects(client.responses.retrieve(response.id), OpenAI.NotFoundError);

const line = { custom_id: "a", method: "POST", url: "/v1/chat/completions", body: { model, messages, temperature: 0, max_tokens: 16 } };
const upload = await toFile(Buffer.from(JSON.stringify(line)), "in.jsonl");
const file = await client.files.create({ file: upload, purpose: "batch" });
const asBatch = { input_file_id: file.id, endpoint: line.url, completion_window: "24h" };
let batch = await client.batches.create(asBatch);
while (["validating", "in_progress", "finalizing"].includes(batch.status)) {
  await new Promise((resolve) => setTimeout(resolve, 50));
  batch = await client.batches.retrieve(batch.id);
}
assert.equal(batch.status, "completed");
const output = await (await client.files.content(batch.output_file_id)).text();
texts.batch = JSON.parse(output).response.body.choices[0].message.content;
const kept = [];
for await (const one of client.files.list({ limit: 1 })) {
  kept.push(one.id);
}
assert.deepEqual(kept, [batch.output_file_id, file.id]);
await Promise.all(kept.map((id) => client.files.delete(id)));

const provider = createOpenAICompatible({ name: "inferd", baseURL, includeUsage: true });
const asked = { model: provider(model), prompt: question, temperature: 0, maxOutputTokens: 16, maxRetries: 0 };
const generated = await generateText(asked);
texts.ai_sdk = generated.text;
assert.equal(generated.finishReason, "stop");
assert.ok(generated.usage.outputTokens > 0);
texts.ai_sdk_stream = "";
const streamed = streamText(asked);
for await (const piece of streamed.textStream) {
  texts.ai_sdk_stream += piece;
}
assert.equal((await streamed.usage).outputTokens, generated.usage.outputTokens);

console.log(JSON.stringify(texts));
